"""How samples are shown on the pages: as images, as bars of features, or as lines. The scripts read what is made here,
in plain JSON types. Flat samples (F,) have the user's order, units and layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.data.source import even
from lapae.model import Model
from lapae.predict.decode import Decoded
from lapae.runs.numbers import number
from lapae.space import Column, Space
from lapae.space.columns import UNSEEN
from lapae.view.pictures import amounts, data_url, is_image, pixels, shrink, tiled

MOST_BARS, MOST_POINTS, MOST_STRIPS = 24, 128, 6
TOP = 99.5
"""Percentile of the standard deviations that gets the brightest colour: a few large ones would darken all others."""


@dataclass(frozen=True)
class Display:
    """How a sample is shown."""

    kind: str
    """ "image", "bars" or "lines"; "photo" for images whose features are learned."""
    names: tuple[str, ...] = ()
    """(F,)"""
    ranges: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    """(F, 2): low and high of the data, in their units."""
    features: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))
    """Indices of the values, out of F, that bars and lines show."""
    channels: tuple[str, ...] = ()
    """Names of the channels of a window (T, channels) that are shown, one strip each: `features` go strip by strip."""
    columns: tuple[Column, ...] | None = None
    """(F,): columns of a table whose columns have names and kinds."""

    def range(self, j: int) -> tuple[float, float]:
        return float(self.ranges[j, 0]), float(self.ranges[j, 1])

    def is_word(self, j: int) -> bool:
        """Whether value j is the code of a word, so that there is nothing between two of them."""
        return self.columns is not None and self.columns[j].kind in ("category", "boolean")

    def text(self, j: int, value: float, digits: int = 4) -> str:
        """Value j as people read it: a number, a category, a date; or that it is missing."""
        if np.isnan(value):
            return "missing"
        column = None if self.columns is None else self.columns[j]
        if column is not None and self.is_word(j) and value == UNSEEN:
            return "never seen"
        if column is not None and self.is_word(j):
            words = column.categories or ("no", "yes")
            return words[int(np.clip(round(value), 0, len(words) - 1))]
        if column is not None and column.kind == "date":
            moment = np.datetime64("1970-01-01T00:00") + np.timedelta64(round(1440 * value), "m")
            return str(moment).replace("T00:00", "").replace("T", " ")
        low, high = self.range(j)
        return number(float(value), digits, high - low)

    def row(self, j: int, x: float, mean: float, low: float, high: float, *, wide: bool = False) -> dict[str, Any]:
        """Describe value j of a sample and what was expected, as text and as positions along the range of the data.

        With `wide`, the range is extended to include value and interval.
        """
        expected = self.text(j, mean) if self.is_word(j) else f"{self.text(j, low, 3)} to {self.text(j, high, 3)}"
        seen = [*self.range(j), low, high, x] if wide else self.range(j)
        return {
            "name": self.names[j],
            "value": self.text(j, x),
            "expected": expected,
            "outside": x == x and not low <= x <= high,
            **places(x, mean, low, high, within=(np.nanmin(seen), np.nanmax(seen))),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return what is shown, and of how many values, for the page's script."""
        return {
            "kind": self.kind,
            "features": self.described(self.features),
            "channels": list(self.channels),
            "of": len(self.names),
        }

    def described(self, index: np.ndarray) -> list[dict[str, Any]]:
        """Name and range of the values at `index`."""
        found: list[dict[str, Any]] = []
        for j in index:
            low, high = self.range(int(j))
            found.append({"name": self.names[j], "low": short(low), "high": short(high), "kind": "number"})
            if self.columns is not None:
                found[-1]["kind"] = "word" if self.is_word(j) else self.columns[j].kind
                found[-1]["words"] = list(self.columns[j].categories or ("no", "yes")) if self.is_word(j) else None
        return found

    @property
    def strips(self) -> list[slice]:
        """Slice of the features that each strip of a line plot shows."""
        each = len(self.features) // max(len(self.channels), 1)
        return [slice(start, start + each) for start in range(0, len(self.features), max(each, 1))]


def channel_names(space: Space) -> tuple[str, ...]:
    """Names of all channels of a series; numbered if the data have none."""
    return space.names or tuple(f"channel {c}" for c in range(space.shape[-1]))


def choose_display(model: Model, x: Tensor, codes: np.ndarray) -> Display:
    """Choose how to show samples: images as such, columns as bars, windows and long arrays as lines.

    Args:
        model: the trained model.
        x: samples (N, *shape), in the model's space.
        codes: latent codes of x, (N, K). If there are many columns, those best explained by the codes are shown.
    """
    space = model.space
    if space.kind == "image" and is_image(model.shape):
        return Display("image")
    flat = in_units(model, x)
    n = flat.shape[1]
    channels: tuple[str, ...] = ()
    names = space.names or tuple(f"{'column' if space.kind == 'table' else 'value'} {i}" for i in range(n))
    known = np.where(np.isnan(flat).all(0), 0.0, flat)  # a feature without any value has no range
    ranges = np.nanpercentile(known, [0.5, 99.5], axis=0).T
    if len(space.shape) == 2 and space.shape[0] > 2:  # a channel's values lie apart, by the number of channels
        steps, stride = space.shape
        of = channel_names(space)
        channels = of[:MOST_STRIPS]
        along = even(steps, MOST_POINTS // len(channels))
        kind, index = "lines", np.concatenate([along * stride + c for c in range(len(channels))])
        names = tuple(f"{of[i % stride]}, step {i // stride}" for i in range(n))
        by_channel = ranges.reshape(steps, stride, 2)  # one range per strip, so that its shape is seen
        widest = np.stack([by_channel[..., 0].min(0), by_channel[..., 1].max(0)], 1)
        ranges = np.tile(widest, (steps, 1))
    elif n <= MOST_BARS or space.kind == "table":
        kind, index = "bars", np.sort(np.argsort(-_explained(known, codes), kind="stable")[:MOST_BARS])
    else:
        kind, index = "lines", even(n, MOST_POINTS)
    return Display(kind, names, ranges, index, channels, space.columns if space.kind == "table" else None)


def _explained(flat: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Share (F,) of the variance of each feature (N, F) explained linearly by the codes (N, K) and their squares."""
    filled = np.where(np.isnan(flat), np.nanmean(flat, 0), flat)
    centred = filled - filled.mean(0)
    design = np.concatenate([np.ones((len(codes), 1)), codes, codes**2], 1)
    left = centred - design @ np.linalg.lstsq(design, centred, rcond=None)[0]
    total = np.square(centred).sum(0)
    return np.where(total > 0, 1 - np.square(left).sum(0) / np.maximum(total, 1e-300), 0.0)


def in_units(model: Model, x: Tensor, *, deviation: bool = False) -> np.ndarray:
    """Convert samples (N, *shape) from the model's space, or standard deviations, to the units of the data: (N, F)."""
    return model.space.to_user(x.double().numpy(), deviation=deviation).reshape(len(x), -1)


def image_of(space: Space, x: np.ndarray, *, scaled: bool = True) -> Tensor:
    """Convert a user's images (N, *shape) to (N, C, H, W), with values from 0 to 1 if `scaled`."""
    found = space.convert(x) if scaled else space.arrange(x)
    return torch.from_numpy(np.ascontiguousarray(found)).float()


def tiles(model: Model, display: Display, decoded: Decoded, side: int) -> dict[str, Any]:
    """Return what the page shows at each place of a map: two sprites, or the numbers of the features."""
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
    mean, deviation = in_units(model, decoded.mean), in_units(model, decoded.deviation, deviation=True)
    return {"mean": shorts(mean[:, display.features]), "deviation": shorts(deviation[:, display.features])}


def curves_of(
    display: Display, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray
) -> list[list[dict[str, Any]]]:
    """Return a sample and its interval, flat (F,) each, as strips of positions along the range of the data, or of the
    sample if that is wider."""
    strips = []
    for part in display.strips:
        index = display.features[part]
        both = np.concatenate([x[index], mean[index], display.ranges[index].reshape(-1)])
        within = np.nanmin(both), np.nanmax(both)
        values = zip(*(part[index].tolist() for part in (x, mean, low, high)), strict=True)
        strips.append([places(*value, within=within) for value in values])
    return strips


def places(x: float, mean: float, low: float, high: float, within: tuple[float, float]) -> dict[str, float | None]:
    """Position of a value, its expectation and its interval within a range, from 0 to 100; None for a missing value."""

    def at(value: float) -> float:
        share = (value - within[0]) / max(within[1] - within[0], 1e-12)
        return round(float(np.clip(100 * share, 0, 100)), 2) if value == value else 0.0

    return {"at_input": at(x) if x == x else None, "at_mean": at(mean), "from": at(low), "to": at(high)}


def triples(space: Space, x: np.ndarray, mean: np.ndarray, amount: np.ndarray) -> tuple[list[tuple[str, ...]], float]:
    """Return images x (n, *shape), their expectations and an amount at each pixel as picture URLs, and the amount that
    the brightest colour stands for."""
    given, expected = (shrink(image_of(space, v), 128) for v in (x, mean))
    much = shrink(image_of(space, amount, scaled=False), 128)
    top = float(much.mean(1).max())
    lossy = given.shape[1] > 1 and given.shape[-1] > 48
    shown = [[data_url(image, lossy=lossy) for image in pixels(images)] for images in (given, expected)]
    shown.append([data_url(image, colours=True) for image in amounts(much, top)])
    return list(zip(*shown, strict=True)), top


def short(value: float) -> float:
    """Round a number to four digits for JSON: infinities and NaN become 0."""
    return float(f"{value:.4g}") if np.isfinite(value) else 0.0


def shorts(values: np.ndarray | Tensor) -> list[Any]:
    """Round numbers to four digits, as nested lists."""
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    return [shorts(row) for row in array] if array.ndim > 1 else [short(float(v)) for v in array]
