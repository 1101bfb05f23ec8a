"""Answers of a trained model to the page's questions: places on the map, samples, completions.

An `Explorer` is not safe in threads (the networks of a draw share one module): the server asks it from one thread.
`volume` and `path` use a copy of the decoder, `geometry`: one other thread may ask them meanwhile.
Shapes: A axes, K latent dimensions; samples have the user's units and layout, except images, which are (C, H, W).
Answers are plain JSON types.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.errors import ConfigError
from lapae.generate.geometry import SEGMENTS, Geometry
from lapae.model import Model
from lapae.predict import predict
from lapae.predict.decode import GROUP, Decoded, decode, encode_mean
from lapae.predict.statistics import expected
from lapae.view.display import TOP, choose_display, image_of, in_units, short, shorts
from lapae.view.explore.networks import KeptNetworks
from lapae.view.latent_map import LatentSpace, latent_space, networks_of, usual_samples
from lapae.view.named_splits import NamedSplits
from lapae.view.pictures import packed, packed_deviation
from lapae.view.sizes import Sizes
from lapae.view.verdicts import Verdicts, in_words

COMPLETIONS = 6
SIDES = (32, 24, 16, 12, 8)
PATIENCE = 10.0
"""Seconds that the shades of a map, or a path, may take: fewer cells or points are computed if networks are slow."""
EVALUATIONS = 150
"""How often a path is decoded, and its gradient taken, until it is short: a guess at high."""
STOPS = 7
"""Number of places along a path that are decoded, both ends among them."""
LARGEST = 60.0
"""Largest logarithm of a volume element, up or down, that is told: a decoder that ignores a direction has -∞."""
Axes = tuple[int, int]
End = dict[str, Any]
"""Where a path begins or ends: {"point": index of a dot}, {"at": two coordinates} or {"code": a code (K,)}."""


@dataclass(frozen=True)
class Options(Sizes):
    """How much an explorer shows."""

    draws: int = 30
    """Number of networks drawn for the ellipse of a code."""
    side: int = 32
    """Maximum number of cells along a side of the map."""


class Explorer:
    """A trained model, its data if there are any, and everything that is computed once."""

    def __init__(self, model: Model, splits: NamedSplits, options: Options | None = None) -> None:
        if model.space.features is not None:
            raise ConfigError(
                "a model of features has no map to explore: lapae report RUN, with --data FOLDER for other images, "
                "shows which images are unusual and where"
            )
        if model.from_others:
            model = model.with_imputer()  # so that no question waits for it
        self.model, self.splits = model, splits
        self.options = options = options or Options()
        self.verdicts = Verdicts(model)
        self.method = KeptNetworks(model.method)
        most = max(2, self.method.n_networks)
        self.draws = min(options.draws, most)
        n_samples = networks_of(model, options.n_samples)
        self.n_samples = None if n_samples is None else min(n_samples, most)
        self.index, self.points = self._points()
        shown = model.tensor(self.points)
        usual = usual_samples(self.verdicts, splits, len(shown))
        space = latent_space(self.method, torch.cat([shown, usual]).nan_to_num(0.0), n_axes=8, usual=len(usual))
        self.space: LatentSpace = replace(space, codes=space.codes[: len(shown)])
        some = torch.as_tensor(self.space.codes[:8])
        self.display = choose_display(
            model, *((usual, space.codes[len(shown) :]) if len(usual) else (shown, space.codes))
        )
        self.side = fitting(seconds_each(lambda: self._decode(some), some), options.side)
        """Number of cells along a side of the map."""
        decoded = self._decode(torch.as_tensor(self.space.grid((0, 1), min(self.side, 12))))
        everywhere = decoded.deviation.mean(1) if self.image else decoded.deviation
        self.top = float(np.percentile(everywhere.numpy(), TOP))
        self.spread = self.top > 0
        """Whether there is a standard deviation to show: a single network that learns no noise has none."""

    @property
    def image(self) -> bool:
        """Whether samples are shown as pictures."""
        return self.display.kind == "image"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample on the page: (C, H, W) for images."""
        return self.model.shape if self.image else self.model.space.shape

    def given(self, stored: np.ndarray) -> np.ndarray:
        """Convert a sample from the page's layout (see `shape`) to the model's input: (1, *shape)."""
        return self.model.space.as_given(stored[None]) if self.image else stored[None]

    def place(self, axes: Axes, at: tuple[float, float], anchor: np.ndarray | None) -> dict[str, Any]:
        """Decode the code at a place of the map."""
        z = self._through(axes, anchor).code(axes, at)
        decoded = self._decode(torch.as_tensor(z)[None])
        mean, deviation = decoded.mean[0], decoded.deviation[0]
        found: dict[str, Any] = {"total": short(float(decoded.total[0])), "z": shorts(z)}
        if self.image:
            return found | {"mean": packed(mean), "deviation": packed_deviation(deviation, self.top)}
        of = self.display.features
        return found | {
            "mean": exact(in_units(self.model, mean[None])[0, of]),
            "deviation": shorts(in_units(self.model, deviation[None], deviation=True)[0, of]),
        }

    def heat(self, axes: Axes, anchor: np.ndarray | None, rows: range) -> list[float]:
        """Return the summed standard deviation in the cells of some rows of the map, from the top."""
        side = self.side
        codes = self._through(axes, anchor).grid(axes, side)[rows.start * side : rows.stop * side]
        return shorts(self._decode(torch.as_tensor(codes)).total)

    @cached_property
    def geometry(self) -> Geometry:
        """What distances and volumes are measured with. Paths have a quarter of the points of `Model.distance`, which
        changes lengths by about 2e-4, or an eighth if decoders are slow.
        """
        made = self.model.geometry
        some = torch.as_tensor(self.space.codes[:8]).double()
        # its gradient takes twice as long as decoding, and everything is done from two first paths
        whole = 6 * EVALUATIONS * SEGMENTS * seconds_each(lambda: made.length(some[None]), some)
        parts = 4 if whole / 4 <= PATIENCE / 4 else 8
        return replace(made, segments=SEGMENTS // parts)

    @cached_property
    def volume_side(self) -> int:
        """Number of cells along a side of the map of volume elements."""
        some = torch.as_tensor(self.space.codes[:8])
        return fitting(seconds_each(lambda: self._log_volume((0, 1), some), some), self.side)

    def volume(self, axes: Axes, anchor: np.ndarray | None, rows: range) -> list[float]:
        """Return the logarithm of the decoder's volume element in some rows of a map of `volume_side`, from the top."""
        side = self.volume_side
        codes = self._through(axes, anchor).grid(axes, side)[rows.start * side : rows.stop * side]
        return shorts(self._log_volume(axes, torch.as_tensor(codes)))

    def path(self, axes: Axes, anchor: np.ndarray | None, ends: tuple[End, End]) -> dict[str, Any]:
        """Return the shortest path between two codes for the decoder, and samples along it."""
        a, b = (torch.as_tensor(self._end(axes, anchor, end)).double()[None] for end in ends)
        points, length = self.geometry.shortest(a, b)
        stops = points[0, np.linspace(0, points.shape[1] - 1, STOPS).round().astype(int)]
        found = {"length": short(float(length)), "straight": short(float(self.geometry.straight(a, b)))}
        with torch.no_grad():
            mean = expected(self.geometry.likelihood, self.geometry.decode(stops)).mean(0).cpu()
        of = self.display.features
        shown = list(map(packed, mean)) if self.image else [exact(row[of]) for row in in_units(self.model, mean)]
        return found | {"at": self._at(points[0]), "stops": self._at(stops), "samples": shown}

    def item(self, split: str, index: int) -> dict[str, Any]:
        """Return everything about one sample of the data set."""
        source = self.splits.parts[split]
        given = np.asarray(source.x[np.array([index])])
        stored = (self.model.space.arrange(given) if self.image else given)[0]
        found = self.look(stored, itself=split == "calibration")
        told = {"id": self.splits.id(split, index), "label": self.splits.label(split, index)}
        return found | told | {"split": split, "index": index}

    def look(self, stored: np.ndarray, *, itself: bool = False) -> dict[str, Any]:
        """Return everything about one sample: its code, what was expected instead, how unusual it is and why."""
        given = self.given(stored)
        x = self._tensor(given)
        verdict = self.verdicts(given, itself=itself)
        return {
            "values": values(stored),
            "unusual": in_words(verdict.p[0], verdict.anomaly_score[0], self.verdicts.n_references, self.verdicts.rate),
            **self._code(x),
            **self._shown_of("mean", verdict.mean),
            **self._interval(verdict.low, verdict.high),
            **self._blame(verdict.contribution),
        }

    def complete(self, stored: np.ndarray, seed: int) -> dict[str, Any]:
        """Return possible completions of a sample whose missing values are NaN."""
        given = self.given(stored)
        x = self._tensor(given)
        samples = self.model.completions(x, COMPLETIONS, seed)[:, 0]
        low, high = self.model.impute_interval(given)
        mean = torch.where(x.isnan(), self.model.complete(x).x_mean, x)[0]
        found = {
            "samples": [self._shown_of("x", self._user(sample))["x"] for sample in samples],
            "at": self._at(encode_mean(self.method, samples)),
            **self._shown_of("mean", self._user(mean)),
        }
        deviation = samples.std(0)
        return found | ({"deviation": packed_deviation(deviation)} if self.image else self._interval(low, high))

    def _code(self, x: Tensor) -> dict[str, Any]:
        """Return the code of a sample on the map, with its covariance over networks."""
        code = encode_mean(self.method, x)[0].double()
        # members of an ensemble have a latent space each: their codes have no common mean
        spread = self.method.stochastic and self.method.shared_codes
        found: dict[str, Any] = {"code": exact(code.numpy()), "at": self._at(code[None])[0]}
        if not spread:
            return found | {"center": found["at"], "covariance": None, "code_deviation": None}
        how: Any = {"n_samples": self.draws, "seed": self.options.seed, "draws_at_once": GROUP}
        codes = predict(self.method, x, want=("codes", "covariance"), **how)
        axes, covariance = self.space.directions, codes.z_cov[0].double().numpy()
        return found | {
            "center": self._at(codes.z_mean)[0],
            "covariance": shorts(axes @ covariance @ axes.T),
            "code_deviation": shorts(np.sqrt(covariance.diagonal())),
        }

    def _decode(self, z: Tensor) -> Decoded:
        method = self.model.method if self.n_samples is None else self.method
        return decode(method, z, n_samples=self.n_samples, seed=self.options.seed)

    def _through(self, axes: Axes, anchor: np.ndarray | None) -> LatentSpace:
        return self.space if anchor is None else self.space.through(anchor, axes)

    def _at(self, codes: Tensor) -> list[Any]:
        """Coordinates (n, A) of codes (n, K) along the axes."""
        return shorts((codes.flatten(1).double().numpy() - self.space.origin) @ self.space.directions.T)

    def _points(self) -> tuple[np.ndarray, np.ndarray]:
        """Return samples for the map and their indices in the main part; generated samples if there are no data."""
        if self.splits.parts:
            main = self.splits.parts[self.splits.main]
            index = main.some(self.options.points, self.options.seed)
            return index, np.asarray(main.x[index])
        return np.zeros(0, dtype=int), self.model.sample(min(self.options.points, 500), self.options.seed)

    def _end(self, axes: Axes, anchor: np.ndarray | None, end: End) -> np.ndarray:
        """Return the code (K,) at an end of a path."""
        if "point" in end:
            return self.space.codes[end["point"]]
        return end["code"] if "code" in end else self._through(axes, anchor).code(axes, end["at"])

    def _log_volume(self, axes: Axes, codes: Tensor) -> Tensor:
        """Return the logarithm of the volume element at codes (B, K), of a plane what a piece of that is: (B,)."""
        along = torch.as_tensor(self.space.spanned(axes))
        return self.geometry.log_volume(codes.double(), along).nan_to_num(-LARGEST).clamp(-LARGEST, LARGEST)

    def _tensor(self, given: np.ndarray) -> Tensor:
        """Convert a sample to (1, *shape) in the model's space, keeping missing values."""
        weight = next(self.method.parameters())
        return torch.from_numpy(np.ascontiguousarray(self.model.space.convert(given))).to(weight.dtype)

    def _user(self, x: Tensor) -> np.ndarray:
        return self.model.space.to_user(x[None].double().numpy())

    def _shown_of(self, name: str, x: np.ndarray) -> dict[str, Any]:
        return {name: packed(image_of(self.model.space, x)[0]) if self.image else exact(x)}

    def _interval(self, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
        """Return the ends of the intervals; for an image, half their width."""
        if not self.image:
            return {"low": exact(low), "high": exact(high)}
        return {"width": packed_deviation(image_of(self.model.space, (high - low) / 2, scaled=False)[0])}

    def _blame(self, contribution: np.ndarray) -> dict[str, Any]:
        """Return the share of each value in what makes a sample unusual."""
        share = contribution / max(float(contribution.sum()), 1e-300)
        if not self.image:
            return {"blame": shorts(share.reshape(-1))}
        return {"blame": packed_deviation(image_of(self.model.space, share, scaled=False)[0])}


def seconds_each(work: Callable[[], Any], codes: Tensor) -> float:
    """Measure the seconds that some work takes per code, the second time that it is done."""
    work()
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / len(codes)


def fitting(seconds: float, most: int) -> int:
    """Return the largest side of a map, up to `most`, that takes at most `PATIENCE` at `seconds` per cell."""
    quick = (side for side in SIDES if side <= most and side**2 * seconds <= PATIENCE)
    return next(quick, min(SIDES[-1], most))


def values(x: np.ndarray) -> list[float | None]:
    """Flatten a sample (*shape), in the units of the data, for JSON: None where missing."""
    return [None if np.isnan(v) else v for v in np.asarray(x, np.float64).reshape(-1).tolist()]


def exact(numbers: np.ndarray) -> list[float]:
    """Flatten a code or values with eight digits: codes are decoded again, and dates as days need more than four."""
    return [float(f"{v:.8g}") if np.isfinite(v) else 0.0 for v in numbers.reshape(-1).tolist()]
