"""Figures of the tasks, drawn without pyplot so that nothing is left behind in its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lapae.evaluate.ranking import Detection


def on_diagonal(lines: Mapping[str, tuple[Any, Any]], style: str = "o-", **labels: str) -> Figure:
    """Draw lines in a square from 0 to 1, with its diagonal.

    Args:
        lines: x and y (n,) of each, by label.
        style: matplotlib's style of the lines.
        labels: `xlabel`, `ylabel`, `title`.
    """
    figure = Figure(figsize=(4.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for label, line in lines.items():
        axes.plot(*line, style, label=label)
    axes.set(xlim=(0, 1), ylim=(0, 1.01), **labels)
    axes.legend(fontsize=8)
    return figure


def roc_curves(detections: Mapping[str, Detection], title: str) -> Figure:
    """Draw ROC curves, by label; the legend has their AUROC."""
    lines = {f"{label}  {d.auroc.value:.3f}": d.roc for label, d in detections.items()}
    return on_diagonal(lines, "-", xlabel="false positive rate", ylabel="true positive rate", title=title)


def histograms(scores: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Draw histograms of scores (n,): one panel for each score, in it one histogram for each set, by label."""
    figure = Figure(figsize=(3.2 * len(scores), 2.8), layout="constrained")
    for axes, (title, sets) in zip(np.atleast_1d(figure.subplots(1, len(scores))), scores.items(), strict=True):
        low, high = np.percentile(np.concatenate(list(sets.values())), [0, 99.5])  # a few far values flatten the rest
        bins = np.linspace(low, high if high > low else low + 1, 51)
        for label, values in sets.items():
            axes.hist(np.clip(values, bins[0], bins[-1]), bins=list(bins), alpha=0.6, density=True, label=label)
        axes.set(title=title, yticks=[])
    figure.axes[0].legend(fontsize=8)
    return figure
