"""Figures of the paper's tasks, drawn without pyplot so that nothing is left behind in its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from lapae.evaluate.figures import on_diagonal
from lapae.impute.chains import Imputation


def reliability_diagram(bins: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Draw accuracy against confidence, one line for each set of bins of `reliability`."""
    lines = {name: (b["confidence"][b["share"] > 0], b["accuracy"][b["share"] > 0]) for name, b in bins.items()}
    return on_diagonal(lines, xlabel="confidence", ylabel="accuracy")


def coverage_curves(levels: Sequence[float], covered: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the share of values inside their intervals against the level of the intervals."""
    lines = {name: (levels, values) for name, values in covered.items()}
    return on_diagonal(lines, xlabel="level of the interval", ylabel="share of values inside")


def imputed_images(x: Tensor, observed: Tensor, imputation: Imputation) -> Figure:
    """Draw one row for each of the first eight images: truth, what is observed, the modes, their mean and deviation."""
    rows, titles = [], ["truth", "observed", *(f"mode {m + 1}" for m in range(len(imputation.samples)))]
    for i in range(min(8, len(x))):
        visible = x[i].masked_fill(~observed[i], 0.0)
        rows.append([x[i], visible, *imputation.samples[:, i], imputation.mean[i], imputation.var[i].sqrt()])
    return image_grid(rows, [*titles, "mean", "deviation"])


def image_grid(rows: Sequence[Sequence[Tensor]], titles: Sequence[str] = ()) -> Figure:
    """Draw images (C, H, W) in rows, on one grey scale except for a last column titled "deviation"."""
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
    """Turn (C, H, W) into (H, W), or (H, W, 3) for colours."""
    array = image.detach().float().clamp(0, 1).numpy()
    return np.moveaxis(array, 0, -1) if len(array) == 3 else array.mean(0)


def accuracy_curve(n_labels: Sequence[int], mean: np.ndarray, std: np.ndarray, xlabel: str) -> Figure:
    """Draw accuracy against the number of labels, with a band of one standard deviation."""
    figure = Figure(figsize=(4.8, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(n_labels, mean, "o-")
    axes.fill_between(n_labels, mean - std, mean + std, alpha=0.25)
    axes.set(xlabel=xlabel, ylabel="accuracy", xscale="log")
    return figure


def error_against_deviation(panels: Mapping[str, tuple[np.ndarray, np.ndarray, bool]]) -> Figure:
    """Draw the error against the mean standard deviation of bins.

    Args:
        panels: standard deviation and error (n_bins,), and whether both have one scale (then with the diagonal), by
            title.
    """
    figure = Figure(figsize=(3.6 * len(panels), 3.2), layout="constrained")
    for axes, (title, (deviation, error, same)) in zip(
        np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True
    ):
        if same:
            top = max(deviation.max(), error.max())
            axes.plot([0, top], [0, top], color="0.7", linewidth=1)
        axes.plot(deviation, error, "o-")
        axes.set(title=title, xlabel="predicted standard deviation", ylabel="root mean square error")
    return figure
