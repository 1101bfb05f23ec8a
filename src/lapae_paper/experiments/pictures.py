"""Measurements and drawings of a trained model that several experiments share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.spatial import KDTree
from torch import Tensor

from lapae.data import Data, Split
from lapae.model import Model
from lapae.predict import Predictive
from lapae.view.latent_map import latent_space, plane
from lapae_paper.tasks.base import batches, tensor

SHOWN = 2000
"""Maximum number of codes in a map."""


def sampled(model: Model, n_samples: int) -> Predictive:
    """Return the model's predictive by sampled networks."""
    return replace(model.predictive, kind="mc", n_samples=n_samples, seed=0)


def squared_errors(model: Model, split: Split, *, n_samples: int = 100, limit: int | None = None) -> dict[str, float]:
    """Measure the squared error per sample: of sampled networks ("-log p"), of their mean reconstruction ("MSE").

    At most `limit` samples of the split are taken.
    """
    x = batches(model, split, limit)
    found = model.predict(x, ("outputs", "error"), sampled(model, n_samples))
    numbers = {"-log p": found.squared_error, "MSE": found.squared_error_of_mean}
    return {name: float(error.mean()) for name, error in numbers.items()}


def latent_picture(model: Model, data: Data, *, n_samples: int = 50, side: int = 48) -> dict[str, Any]:
    """Measure what `latent_row` draws, as plain JSON.

    "heat": the decoder's summed standard deviation on a map of the latent space; "limits" of its two axes; "points" and
    "classes": codes of test data; "mean" and "deviation": reconstruction of the first test sample of the last class.
    """
    index = data.test.some(SHOWN)
    space = latent_space(model.method, tensor(model, data.test, index))
    heat = plane(model.method, space, side=side, n_samples=n_samples).total.view(side, side)
    classes = None if data.test.y is None or np.ndim(data.test.y) != 1 else np.asarray(data.test.y)[index].tolist()
    y = np.asarray(data.test.y)
    x = tensor(model, data.test, np.flatnonzero(y == y.max())[:1])
    found = model.predict(x, ("outputs",), sampled(model, n_samples))
    variance = found.x_var + (found.x_noise if found.x_learned else 0)
    return {
        "heat": heat.tolist(),
        "limits": [[float(end) for end in limits] for limits in space.limits[:2]],
        "points": np.asarray(space.points[:, :2]).tolist(),
        "classes": classes,
        "mean": found.x_mean[0].mean(0).clamp(0, 1).tolist(),
        "deviation": variance[0].mean(0).sqrt().tolist(),
    }


def latent_row(picture: Mapping[str, Any], *, title: str) -> Figure:
    """Draw the latent space with the decoder's standard deviation, and mean and deviation of one reconstruction."""
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    space, mean, deviation = figure.subplots(1, 3, width_ratios=(1.4, 1, 1))
    draw_latent(space, picture)
    draw_reconstruction(mean, deviation, picture)
    figure.suptitle(title, fontsize=10)
    return figure


def draw_reconstruction(mean: Axes, deviation: Axes, picture: Mapping[str, Any]) -> None:
    """Draw mean and standard deviation of the reconstruction of a `latent_picture`."""
    mean.imshow(picture["mean"], cmap="gray", vmin=0, vmax=1)
    deviation.imshow(picture["deviation"], cmap="viridis", vmin=0)
    for axes, name in ((mean, "mean"), (deviation, "deviation")):
        axes.set(xticks=[], yticks=[])
        axes.set_title(name, fontsize=9)


def draw_latent(axes: Axes, picture: Mapping[str, Any]) -> None:
    """Draw codes of test data, coloured by class, over the decoder's summed standard deviation (dark: large)."""
    (left, right), (low, high) = picture["limits"]
    axes.imshow(picture["heat"], extent=(left, right, low, high), aspect="auto", cmap="Greys", interpolation="bilinear")
    axes.scatter(*np.array(picture["points"]).T, s=1.5, linewidths=0, c=picture["classes"], cmap="tab10")
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.tick_params(labelsize=6)


def growth(model: Model, data: Data, *, n_samples: int = 50) -> float:
    """Return how much larger the decoder's standard deviation is away from the data than on it: a ratio of means."""
    on, away = on_and_away(model, data, n_samples=n_samples)
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
    distance = KDTree(np.stack([u, v], 1)).query(np.stack(np.meshgrid(centres, centres), 2))[0]
    on, away = distance < 0.5 / side, distance > 0.2
    return heat[on], heat[away]


def reconstructions(model: Model, x: Tensor, *, n_samples: int = 100) -> dict[str, Any]:
    """Return input, mean reconstruction and standard deviation of samples x (n, C, H, W), as plain JSON."""
    found = model.predict(x, ("outputs",), sampled(model, n_samples))
    deviation = found.x_var.sqrt().mean(1, keepdim=True)
    return {"input": x.tolist(), "mean": found.x_mean.tolist(), "deviation": deviation.tolist()}


def reconstruction_figure(images: Mapping[str, Any]) -> Figure:
    """Draw one column per sample of `reconstructions`: input, mean reconstruction, standard deviation."""
    rows = {name: torch.tensor(images[name]) for name in ("input", "mean", "deviation")}
    deviation, n = rows["deviation"], len(rows["input"])
    figure = Figure(figsize=(0.9 * n + 0.4, 2.9), layout="constrained")
    grid = figure.subplots(3, n, squeeze=False)
    for line, (name, row) in zip(grid, rows.items(), strict=True):
        top = float(deviation.max()) if name == "deviation" else 1.0
        for axes, image in zip(line, row, strict=True):
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
