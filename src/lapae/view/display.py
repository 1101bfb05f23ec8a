"""How data are shown on the page: as images, as bars of features, or as lines. The page's script reads what is made
here, in plain JSON types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.model import Model
from lapae.predict.decode import Decoded
from lapae.view.pictures import amounts, data_url, is_image, pixels, shrink, tiled

MOST_BARS, MOST_POINTS, MOST_STRIPS = 24, 128, 6
TOP = 99.5
"""Percentile of deviations that the brightest colour stands for: a few large ones would darken all others."""


@dataclass(frozen=True)
class Display:
    """What is shown of a datum."""

    kind: str
    """ "image", "bars" or "lines"."""
    features: np.ndarray
    """Indices into the flat datum that bars and lines show."""
    names: tuple[str, ...] = ()
    ranges: tuple[tuple[float, float], ...] = ()
    """For each feature: low and high of the data, in the units of the data."""
    channels: tuple[int, ...] = ()
    """Of a window of a time series (T, channels): those shown, a strip each. `features` go strip by strip."""

    def to_dict(self) -> dict[str, Any]:
        """For the page's script."""
        features = [
            {"name": name, "low": short(low), "high": short(high)}
            for name, (low, high) in zip(self.names, self.ranges, strict=True)
        ]
        return {"kind": self.kind, "features": features, "channels": list(self.channels)}


def choose_display(model: Model, x: Tensor) -> Display:
    """Images as such; few features as bars, those that vary most; long arrays and windows as lines.

    x (N, *shape) are data.
    """
    if model.space.kind == "image" and is_image(model.shape):
        return Display("image", np.zeros(0, dtype=int))
    flat = in_units(model, x)
    n = flat.shape[1]
    channels: tuple[int, ...] = ()
    if len(model.shape) == 2 and model.shape[0] > 2:  # a channel's values lie apart, by the number of channels
        steps, stride = model.shape
        channels = tuple(range(min(stride, MOST_STRIPS)))
        along = _evenly(steps, MOST_POINTS // len(channels))
        kind, index = "lines", np.concatenate([along * stride + channel for channel in channels])
    elif n <= MOST_BARS or model.space.feature_names is not None:
        kind, index = "bars", np.arange(n)
        if n > MOST_BARS:  # in model space, where features have one unit
            spread = np.nanvar(x.flatten(1).numpy(), axis=0)
            index = np.sort(np.argsort(-np.nan_to_num(spread), kind="stable")[:MOST_BARS])
    else:
        kind, index = "lines", _evenly(n, MOST_POINTS)
    shown = flat[:, index]
    shown = np.where(np.isnan(shown).all(0), 0.0, shown)  # a feature without any value has no range
    low, high = np.nanpercentile(shown, [0.5, 99.5], axis=0)
    names = model.space.feature_names or tuple(str(i) for i in range(n))
    ranges = tuple(zip(low.tolist(), high.tolist(), strict=True))
    if channels:  # one range a strip, so that its shape is seen
        ranges = tuple((low[part].min(), high[part].max()) for part in _strips(len(index), channels) for _ in low[part])
    return Display(kind, index, tuple(names[i] for i in index), ranges, channels)


def _evenly(n: int, most: int) -> np.ndarray:
    """Indices below n, `most` at most."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))


def _strips(n: int, channels: tuple[int, ...]) -> list[slice]:
    """The part of n features that each strip of a line plot shows."""
    each = n // max(len(channels), 1)
    return [slice(start, start + each) for start in range(0, n, each)]


def in_units(model: Model, x: Tensor) -> np.ndarray:
    """Data (N, *shape) of the model's space in the units of the data, flat: (N, F)."""
    return model.space.to_user(x.double().numpy()).reshape(len(x), -1)


def deviation_in_units(model: Model, deviation: Tensor) -> np.ndarray:
    """Deviations (N, *shape) of the model's space in the units of the data, flat: (N, F)."""
    return model.space.to_user(deviation.double().numpy(), deviation=True).reshape(len(deviation), -1)


def tiles(model: Model, display: Display, decoded: Decoded, side: int) -> dict[str, Any]:
    """What the page shows at each place of a map: two sprites, or the numbers of the features."""
    if display.kind == "image":
        mean, deviation = shrink(decoded.mean), shrink(decoded.deviation)
        top = float(np.percentile(deviation.mean(1).numpy(), TOP))
        lossy = mean.shape[1] > 1
        return {
            "tile": [int(mean.shape[-1]), int(mean.shape[-2])],
            "mean": data_url(tiled(pixels(mean), side), lossy=lossy),
            "deviation": data_url(tiled(amounts(deviation, top), side), colours=True),
            "top": short(top),
        }
    mean, deviation = in_units(model, decoded.mean), deviation_in_units(model, decoded.deviation)
    return {"mean": shorts(mean[:, display.features]), "deviation": shorts(deviation[:, display.features])}


def cards(model: Model, display: Display, x: Tensor, mean: Tensor, deviation: Tensor) -> list[dict[str, Any]]:
    """Input, mean and deviation of each datum: images as URLs, features as numbers with their places in their range."""
    if display.kind == "image":
        x, mean, deviation = (shrink(images, 128) for images in (x, mean, deviation))
        top = float(deviation.mean(1).max())
        lossy = x.shape[1] > 1 and x.shape[-1] > 48
        inputs, means = pixels(x), pixels(mean)
        spread = amounts(deviation, top)
        return [
            {
                "input": data_url(inputs[i], lossy=lossy),
                "mean": data_url(means[i], lossy=lossy),
                "deviation": data_url(spread[i], colours=True),
            }
            for i in range(len(x))
        ]
    given, told = in_units(model, x), in_units(model, mean)
    spread = deviation_in_units(model, deviation)
    index = display.features[:12] if display.kind == "bars" else display.features
    made = [
        [_feature(display, j, given[i, f], told[i, f], spread[i, f]) for j, f in enumerate(index)]
        for i in range(len(x))
    ]
    if display.kind == "bars":
        return [{"features": features} for features in made]
    return [{"strips": [features[part] for part in _strips(len(index), display.channels)]} for features in made]


def _feature(display: Display, j: int, given: float, mean: float, deviation: float) -> dict[str, Any]:
    """A feature of a datum, with places from 0 to 100 along the range of the data."""
    low, high = display.ranges[j]
    span = max(high - low, 1e-12)

    def place(value: float) -> float:
        return round(float(np.clip(100 * (value - low) / span, 0, 100)), 2)

    return {
        "name": display.names[j],
        "input": None if np.isnan(given) else short(given),
        "mean": short(mean),
        "deviation": short(deviation),
        "at_input": None if np.isnan(given) else place(given),
        "at_mean": place(mean),
        "from": place(mean - deviation),
        "to": place(mean + deviation),
        "surprising": bool(not np.isnan(given) and abs(given - mean) > 0.25 * span),
    }


def short(value: float) -> float:
    """A number of four digits, as JSON has it: infinities and NaN become 0."""
    return float(f"{value:.4g}") if np.isfinite(value) else 0.0


def shorts(values: np.ndarray | Tensor) -> list[Any]:
    """Numbers of four digits, in nested lists."""
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    return [shorts(row) for row in array] if array.ndim > 1 else [short(float(v)) for v in array]
