"""Measurements and drawings of a trained model that several experiments share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lapae.predict import Predictive
from lapae.view.latent_map import latent_space, plane
from lapae_paper.tasks.base import batches, tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lapae.data import Data, Split
    from lapae.model import Model

SHOWN = 2000
"""Maximum number of codes in a map."""


def sampled(model: Model, n_samples: int, seed: int) -> Predictive:
    """Return the model's predictive by sampled networks."""
    return replace(model.predictive, kind="mc", n_samples=n_samples, seed=seed)


def squared_errors(model: Model, split: Split, *, n_samples: int = 100) -> dict[str, float]:
    """Measure the squared error per sample: of sampled networks ("-log p"), of their mean reconstruction ("MSE")."""
    x = batches(model, split, None)
    found = model.predict(x, ("outputs", "error"), sampled(model, n_samples, 0))
    numbers = {"-log p": found.squared_error, "MSE": found.squared_error_of_mean}
    return {name: float(error.mean()) for name, error in numbers.items()}


def latent_row(model: Model, data: Data, *, title: str, n_samples: int = 50) -> Figure:
    """Draw the latent space with the decoder's standard deviation, and mean and deviation of one reconstruction."""
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    space, mean, deviation = figure.subplots(1, 3, width_ratios=(1.4, 1, 1))
    draw_latent(space, model, data, n_samples=n_samples)
    draw_reconstruction(mean, deviation, model, data, n_samples=n_samples)
    figure.suptitle(title, fontsize=10)
    return figure


def draw_reconstruction(mean: Axes, deviation: Axes, model: Model, data: Data, *, n_samples: int = 50) -> None:
    """Draw mean and standard deviation of the reconstruction of one test sample: the first of the last class."""
    y = np.asarray(data.test.y)
    x = tensor(model, data.test, np.flatnonzero(y == y.max())[:1])
    found = model.predict(x, ("outputs",), sampled(model, n_samples, 0))
    variance = found.x_var + (found.x_noise if found.x_learned else 0)
    mean.imshow(found.x_mean[0].mean(0).clamp(0, 1), cmap="gray", vmin=0, vmax=1)
    deviation.imshow(variance[0].mean(0).sqrt(), cmap="viridis", vmin=0)
    for axes, name in ((mean, "mean"), (deviation, "deviation")):
        axes.set(xticks=[], yticks=[])
        axes.set_title(name, fontsize=9)


def draw_latent(axes: Axes, model: Model, data: Data, *, n_samples: int = 50, side: int = 48) -> None:
    """Draw codes of test data, coloured by class, over the decoder's summed standard deviation (dark: large)."""
    index = data.test.some(SHOWN)
    space = latent_space(model.method, tensor(model, data.test, index))
    heat = plane(model.method, space, side=side, n_samples=n_samples).total.view(side, side)
    axes.imshow(
        heat, extent=(*space.limits[0], *space.limits[1]), aspect="auto", cmap="Greys", interpolation="bilinear"
    )
    y = None if data.test.y is None or np.ndim(data.test.y) != 1 else np.asarray(data.test.y)[index]
    axes.scatter(*space.points[:, :2].T, s=1.5, linewidths=0, c=y, cmap="tab10")
    axes.set(xlim=space.limits[0], ylim=space.limits[1])
    axes.tick_params(labelsize=6)


def growth(model: Model, data: Data, *, n_samples: int = 50, side: int = 32) -> float:
    """Return how much larger the decoder's standard deviation is away from the data than on it: a ratio of means."""
    on, away = on_and_away(model, data, n_samples=n_samples, side=side)
    return float(away.mean() / on.mean()) if len(away) else float("nan")


def on_and_away(model: Model, data: Data, *, n_samples: int = 50, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Return the decoder's summed standard deviation in the cells of a map on the data, and in those away from them.

    On: cells that hold codes of training data. Away: cells at least a fifth of the map from every code.
    """
    index = data.train.some(5 * SHOWN)
    space = latent_space(model.method, tensor(model, data.train, index))
    heat = plane(model.method, space, side=side, n_samples=n_samples).total.numpy().reshape(side, side)
    (left, right), (low, high) = space.limits[:2]
    u = (space.points[:, 0] - left) / (right - left)
    v = (high - space.points[:, 1]) / (high - low)
    centres = (np.arange(side) + 0.5) / side
    distance = np.full((side, side), np.inf)
    for start in range(0, len(u), 1000):
        du, dv = centres[None, :, None] - u[start : start + 1000], centres[:, None, None] - v[start : start + 1000]
        distance = np.minimum(distance, np.hypot(du, dv).min(2))
    on, away = distance < 0.5 / side, distance > 0.2
    return heat[on], heat[away]


def reconstruction_figure(model: Model, x: Tensor, *, n_samples: int = 100, seed: int = 0) -> Figure:
    """Draw one column per sample of x (n, C, H, W): input, mean reconstruction, standard deviation."""
    found = model.predict(x, ("outputs",), sampled(model, n_samples, seed))
    deviation = found.x_var.sqrt().mean(1, keepdim=True)
    figure = Figure(figsize=(0.9 * len(x) + 0.4, 2.9), layout="constrained")
    rows = {"input": x, "mean": found.x_mean, "deviation": deviation}
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


def draw_mosaic(axes: Axes, rows: Tensor, *, title: str = "") -> None:
    """Draw images (R, C, channels, H, W) from 0 to 1 edge to edge, with a thin line between."""
    framed = torch.nn.functional.pad(rows.detach().float().clamp(0, 1), (0, 1, 0, 1), value=1.0)
    whole = framed.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)[:-1, :-1]
    axes.imshow(whole if whole.shape[2] == 3 else whole.mean(2), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=9)
