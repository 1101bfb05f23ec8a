"""The pictures of the tasks, drawn without pyplot so that nothing is left behind in its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from lapae.tasks.metrics import Detection

if TYPE_CHECKING:
    from lapae.impute.chains import Imputation

TITLES = {
    "log_likelihood": "negative log-likelihood",
    "typicality": "typicality",
    "latent_deviation": "latent deviation",
    "output_deviation": "output deviation",
    "varying_deviation": "output deviation, varying features",
}


def _on_diagonal(lines: Mapping[str, tuple[Any, Any]], style: str = "o-", **labels: str) -> Figure:
    """Lines in a square from 0 to 1, with its diagonal."""
    figure = Figure(figsize=(4.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for label, line in lines.items():
        axes.plot(*line, style, label=label)
    axes.set(xlim=(0, 1), ylim=(0, 1.01), **labels)
    axes.legend(fontsize=8)
    return figure


def roc_curves(detections: Mapping[str, Detection], title: str) -> Figure:
    """ROC curves of all scores for one out-of-distribution set (paper, figure 9); the legend has their AUROC."""
    lines = {f"{TITLES.get(score, score)}  {d.auroc.value:.3f}": d.roc for score, d in detections.items()}
    return _on_diagonal(lines, "-", xlabel="false positive rate", ylabel="true positive rate", title=title)


def reliability_diagram(bins: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Accuracy against confidence, a line for each set of bins of `metrics.reliability`."""
    lines = {name: (b["confidence"][b["share"] > 0], b["accuracy"][b["share"] > 0]) for name, b in bins.items()}
    return _on_diagonal(lines, xlabel="confidence", ylabel="accuracy")


def coverage_curves(levels: Sequence[float], covered: Mapping[str, Sequence[float]]) -> Figure:
    """Share of values inside their intervals against the level of the intervals."""
    lines = {name: (levels, values) for name, values in covered.items()}
    return _on_diagonal(lines, xlabel="level of the interval", ylabel="share of values inside")


def histograms(inside: Mapping[str, np.ndarray], outside: Mapping[str, np.ndarray], name: str, other: str) -> Figure:
    """Histograms of each score inside and outside of the distribution (paper, figure 10)."""
    figure = Figure(figsize=(3.2 * len(inside), 2.8), layout="constrained")
    for axes, score in zip(np.atleast_1d(figure.subplots(1, len(inside))), inside, strict=True):
        both = np.concatenate([inside[score], outside[score]])
        low, high = np.percentile(both, [0, 99.5])  # a few far values would flatten all others
        bins = np.linspace(low, high if high > low else low + 1, 51)
        for values, label in ((inside[score], name), (outside[score], other)):
            axes.hist(np.clip(values, bins[0], bins[-1]), bins=list(bins), alpha=0.6, density=True, label=label)
        axes.set(title=TITLES.get(score, score), yticks=[])
    figure.axes[0].legend(fontsize=8)
    return figure


def imputed_images(x: Tensor, observed: Tensor, imputation: Imputation, n: int = 8) -> Figure:
    """One row per datum: truth, what is observed, the modes, their mean and deviation."""
    rows, titles = [], ["truth", "observed", *(f"mode {m + 1}" for m in range(len(imputation.samples)))]
    for i in range(min(n, len(x))):
        visible = x[i].masked_fill(~observed[i], 0.0)
        rows.append([x[i], visible, *imputation.samples[:, i], imputation.mean[i], imputation.var[i].sqrt()])
    return image_grid(rows, [*titles, "mean", "deviation"])


def image_grid(rows: Sequence[Sequence[Tensor]], titles: Sequence[str] = ()) -> Figure:
    """Images (C, H, W) in rows, on one grey scale but for a last column titled "deviation"."""
    n_columns = max(len(row) for row in rows)
    figure = Figure(figsize=(0.9 * n_columns, 0.9 * len(rows) + 0.3), layout="constrained")
    axes = figure.subplots(len(rows), n_columns, squeeze=False)
    for r in range(len(rows)):
        for c in range(n_columns):
            axes[r, c].set_axis_off()
            if c < len(rows[r]):
                own_scale = c < len(titles) and titles[c] == "deviation"
                picture = _picture(rows[r][c])
                limits = {} if own_scale else {"vmin": 0.0, "vmax": 1.0}
                axes[r, c].imshow(picture, cmap="viridis" if own_scale else "gray", **limits)
            if r == 0 and c < len(titles):
                axes[r, c].set_title(titles[c], fontsize=7)
    return figure


def _picture(image: Tensor) -> np.ndarray:
    """(C, H, W) -> (H, W), or (H, W, 3) for colours."""
    array = image.detach().float().clamp(0, 1).numpy()
    return np.moveaxis(array, 0, -1) if len(array) == 3 else array.mean(0)


def accuracy_curve(n_labels: Sequence[int], mean: np.ndarray, std: np.ndarray, xlabel: str) -> Figure:
    """Accuracy against the number of labels, with a band of one standard deviation."""
    figure = Figure(figsize=(4.8, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(n_labels, mean, "o-")
    axes.fill_between(n_labels, mean - std, mean + std, alpha=0.25)
    axes.set(xlabel=xlabel, ylabel="accuracy", xscale="log")
    return figure


def error_against_deviation(panels: Mapping[str, tuple[np.ndarray, np.ndarray, bool]]) -> Figure:
    """By title: mean deviation and error of each bin, and whether both have one scale (then with the diagonal)."""
    figure = Figure(figsize=(3.6 * len(panels), 3.2), layout="constrained")
    for axes, (title, (deviation, error, same)) in zip(
        np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True
    ):
        if same:
            top = max(deviation.max(), error.max())
            axes.plot([0, top], [0, top], color="0.7", linewidth=1)
        axes.plot(deviation, error, "o-")
        axes.set(title=title, xlabel="predicted deviation", ylabel="root mean square error")
    return figure
