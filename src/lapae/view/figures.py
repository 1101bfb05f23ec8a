"""Pictures of a trained model, drawn without pyplot: functions of a model and data that return matplotlib figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lapae.predict.prediction import sure
from lapae.tasks.figures import image_grid
from lapae.tasks.imputation import MaskName, mask
from lapae.view.latent_map import latent_space, plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lapae.model import Model


def latent_figure(
    model: Model,
    x: Tensor,
    y: np.ndarray | None = None,
    *,
    label_names: Sequence[str] | None = None,
    side: int = 64,
    n_samples: int = 100,
    seed: int = 0,
) -> Figure:
    """The codes of data on the deviation of the decoder (paper, figure 1): low on the data, high away.

    Args:
        model: the trained model.
        x: data (N, *shape) in the model's space.
        y: their classes (N,), for colours.
        label_names: of the classes, for a legend.
        side: cells along a side of the map.
        n_samples: networks drawn.
        seed: of the networks.
    """
    space = latent_space(model.method, x)
    found = plane(model.method, space, side=side, n_samples=n_samples, seed=seed)
    figure = Figure(figsize=(5.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    extent = (*space.limits[0], *space.limits[1])
    heat = axes.imshow(found.total, extent=extent, aspect="auto", cmap="Greys", interpolation="bilinear")
    figure.colorbar(heat, label="standard deviation, summed over the datum", shrink=0.85)
    _points(axes, space.points[:, :2], y, label_names)
    axes.set(xlabel=space.names[0], ylabel=space.names[1], xlim=space.limits[0], ylim=space.limits[1])
    return figure


def _points(axes: Axes, points: np.ndarray, y: np.ndarray | None, names: Sequence[str] | None) -> None:
    if y is None or np.ndim(y) != 1:
        axes.scatter(*points.T, s=3, linewidths=0)
        return
    for i, value in enumerate(np.unique(y)):
        label = names[int(value)] if names is not None and 0 <= value < len(names) else str(value)
        axes.scatter(*points[y == value].T, s=4, linewidths=0, color=f"C{i % 10}", label=label)
    if len(np.unique(y)) <= 12:
        style = {"fontsize": 8, "markerscale": 3, "frameon": False, "handletextpad": 0.1, "columnspacing": 0.8}
        axes.figure.legend(loc="outside lower center", ncols=len(np.unique(y)), **style)


def reconstruction_figure(model: Model, x: Tensor, *, n_samples: int = 100, seed: int = 0) -> Figure:
    """One column per datum of x (n, C, H, W): input, mean reconstruction, deviation."""
    found = model.predict(x, ("outputs",), predictive="mc", n_samples=n_samples, seed=seed)
    deviation = sure(found.x_var).sqrt().mean(1, keepdim=True)
    figure = Figure(figsize=(0.9 * len(x) + 0.4, 2.9), layout="constrained")
    rows = {"input": x, "mean": sure(found.x_mean), "deviation": deviation}
    grid = figure.subplots(3, len(x), squeeze=False)
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        top = float(deviation.max()) if name == "deviation" else 1.0
        for axes, image in zip(line, images, strict=True):
            axes.set(xticks=[], yticks=[])
            axes.set_frame_on(False)
            array = image.clamp(0, top).movedim(0, -1).numpy()
            axes.imshow(array, cmap="magma" if name == "deviation" else "gray", vmin=0, vmax=top)
        line[0].set_ylabel(name, fontsize=9)
    return figure


def imputation_figure(model: Model, x: Tensor, *, which: MaskName = "upper", modes: int = 6, seed: int = 0) -> Figure:
    """One row per datum of x (n, C, H, W): truth, what is left of it, completions of the missing half."""
    observed = mask(which, tuple(x.shape[1:]), n=len(x), seed=seed)
    holes = model.space.to_user(x.masked_fill(~observed, torch.nan).numpy())
    made = [model.tensor(part) for part in model.impute(holes, n_samples=modes)]
    rows = [[x[i], x[i].masked_fill(~observed[i], 0.5), *(part[i] for part in made)] for i in range(len(x))]
    return image_grid(rows, ["truth", "seen", *(f"{m + 1}" for m in range(modes))])


def sample_figure(model: Model, n: int = 64, *, columns: int = 16, seed: int = 0) -> Figure:
    """n new images, side by side."""
    made = list(model.tensor(model.sample(n, seed)))
    return image_grid([made[first : first + columns] for first in range(0, n, columns)])
