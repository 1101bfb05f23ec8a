"""What the page asks for, answered by a trained model: places on the map, data, completions.

An `Explorer` is not safe in threads (the networks of a draw share one module): the server asks it from one thread.
Shapes: A axes, K latent dimensions, data (*shape); answers are plain JSON types.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.model import Model
from lapae.predict import predict
from lapae.predict.complete import impute
from lapae.predict.decode import GROUP, Decoded, decode, encode_mean
from lapae.tasks.base import subset, tensor
from lapae.view.display import TOP, choose_display, deviation_in_units, in_units, short, shorts
from lapae.view.explore.comparison import Comparison
from lapae.view.explore.networks import KeptNetworks
from lapae.view.latent_map import LatentSpace, latent_space
from lapae.view.material import Material
from lapae.view.pictures import packed, packed_deviation

MODES, STEPS = 6, 3
"""Completions, and networks that refine each, one after the other (fewer where networks are large)."""
SIDES = (32, 24, 16, 12, 8)
MIN_REFERENCES = 40
PATIENCE = 10.0
"""Seconds that a map's shades, or the data to compare with, may take: fewer are computed where networks are slow."""
Axes = tuple[int, int]


@dataclass(frozen=True)
class Options:
    """How much an explorer shows."""

    n_samples: int = 30
    """Networks behind each mean and deviation."""
    points: int = 1500
    """Training data on the map at most."""
    references: int = 500
    """Data of a kind that a datum is compared with at most."""
    side: int = 32
    """Cells along a side of the map's shades at most."""
    seed: int = 0
    """Of subsets and draws."""


class Explorer:
    """A trained model, its data where there are any, and everything that is computed once."""

    def __init__(
        self,
        model: Model,
        material: Material,
        options: Options | None = None,
    ) -> None:
        self.model, self.material = model, material
        self.options = options = options or Options()
        self.method = KeptNetworks(model.method)
        # half of the room is for completions
        self.n_samples = max(2, min(options.n_samples, self.method.n_networks // 2))
        self.index, self.shown = self._shown()
        self.space: LatentSpace = latent_space(self.method, self.shown.nan_to_num(0.0), n_axes=8)
        self.display = choose_display(model, self.shown, self.space.codes)
        each = self._seconds_each()
        self.side = fitting(each, SIDES, options.side)
        """Cells along a side of the map's shades."""
        most = min(options.references, max(MIN_REFERENCES, int(PATIENCE / (2 * each))))
        self.comparison = Comparison(model, material.parts, self._score, most=most, seed=options.seed)
        grid = torch.as_tensor(self.space.grid((0, 1), min(self.side, 12)))
        decoded = self._decode(grid)
        everywhere = decoded.deviation.mean(1) if self.display.kind == "image" else decoded.deviation
        self.top = float(np.percentile(everywhere.numpy(), TOP))
        self.spread = self.top > 0
        """Whether there is a deviation to show: one network that learns no noise says one thing."""

    @property
    def takes_missing(self) -> bool:
        """Whether the likelihood of data with missing values is known."""
        return self.model.likelihood.missing

    @property
    def n_values(self) -> int:
        return int(np.prod(self.model.shape))

    def place(self, axes: Axes, at: tuple[float, float], anchor: np.ndarray | None) -> dict[str, Any]:
        """What is decoded at a place of the map."""
        z = self._through(axes, anchor).code(axes, at)
        decoded = self._decode(torch.as_tensor(z)[None])
        mean, deviation = decoded.mean[0], decoded.deviation[0]
        found: dict[str, Any] = {"total": short(float(decoded.total[0])), "z": shorts(z)}
        if self.display.kind == "image":
            return found | {"mean": packed(mean), "deviation": packed_deviation(deviation, self.top)}
        of = self.display.features
        return found | {
            "mean": shorts(in_units(self.model, mean[None])[0, of]),
            "deviation": shorts(deviation_in_units(self.model, deviation[None])[0, of]),
        }

    def heat(self, axes: Axes, anchor: np.ndarray | None, rows: range) -> list[float]:
        """Summed deviation in some rows of the map's cells, from the top."""
        side = self.side
        codes = self._through(axes, anchor).grid(axes, side)[rows.start * side : rows.stop * side]
        return shorts(self._decode(torch.as_tensor(codes)).total)

    def item(self, split: str, index: int) -> dict[str, Any]:
        """A datum of the data set."""
        source = self.material.parts[split]
        stored = self.model.space.arrange(np.asarray(source.x[np.array([index])]))[0]
        found = self.look(stored, split=split, index=index)
        return found | {"label": self.material.label(split, index), "row": source.row(index)}

    def look(self, stored: np.ndarray, *, split: str | None = None, index: int | None = None) -> dict[str, Any]:
        """Everything about one datum (*shape) in storage units: its code, its reconstruction, how unusual it is."""
        x = self._tensor(stored)
        found = predict(
            self.method,
            x,
            n_samples=self.n_samples,
            seed=self.options.seed,
            want=("codes", "covariance", "outputs", "density"),
            draws_at_once=GROUP,
        )
        assert found.z_mean is not None
        assert found.z_cov is not None
        assert found.x_mean is not None
        assert found.x_var is not None
        assert found.x_noise is not None
        assert found.log_likelihood is not None
        deviation = (found.x_var + found.x_noise if found.x_learned else found.x_var).sqrt()[0]
        code = encode_mean(self.method, x)[0].double().numpy()
        axes = self.space.directions
        # members of an ensemble have a latent space each: their codes have no common mean
        spread = self.method.stochastic and self.method.distinct_draws is None
        center = found.z_mean[0].double().numpy() if spread else code
        covariance = axes @ found.z_cov[0].double().numpy() @ axes.T
        return {
            "values": values(stored),
            "code": exact(code),
            "at": shorts((code - self.space.origin) @ axes.T),
            "center": shorts((center - self.space.origin) @ axes.T),
            "covariance": shorts(covariance) if spread else None,
            "code_deviation": shorts(found.z_cov[0].diagonal().sqrt()) if spread else None,
            "deviation_total": short(float(deviation.sum())),
            "unusual": self.comparison.of(stored, float(found.log_likelihood[0]), split, index),
            **self._shown_of("mean", found.x_mean[0]),
            **self._deviation_of("deviation", deviation),
        }

    def complete(self, stored: np.ndarray, seed: int) -> dict[str, Any]:
        """Possible completions of a datum (*shape) in storage units whose missing values are NaN."""
        x = self._tensor(stored).to(next(self.method.parameters()).dtype)
        steps = max(1, min(STEPS, self.method.n_networks // (2 * MODES)))
        # Chains that start from data differ several times more than those from noise, and their mean is no worse.
        chosen = np.random.default_rng(seed).integers(len(self.shown), size=MODES)
        start = self.shown[chosen].nan_to_num(0.0)[:, None]
        found = impute(self.method, x, modes=MODES, average=0, steps=steps, seed=seed, start=start)
        samples, deviation = found.samples[:, 0], found.var[0].sqrt()
        codes = encode_mean(self.method, samples).double().numpy()
        return {
            "samples": [self._shown_of("x", sample)["x"] for sample in samples],
            "at": shorts((codes - self.space.origin) @ self.space.directions.T),
            **self._shown_of("mean", found.mean[0]),
            **self._deviation_of("deviation", deviation),
        }

    def _decode(self, z: Tensor) -> Decoded:
        return decode(self.method, z, n_samples=self.n_samples, seed=self.options.seed)

    def _through(self, axes: Axes, anchor: np.ndarray | None) -> LatentSpace:
        return self.space if anchor is None else self.space.through(anchor, axes)

    def _shown(self) -> tuple[np.ndarray, Tensor]:
        """Training data for the map, or generated ones where there are none."""
        if self.material.parts:
            main = self.material.parts[self.material.main]
            index = subset(main, self.options.points, self.options.seed)
            return index, tensor(self.model, main, index)
        n = min(self.options.points, 500)
        return np.zeros(0, dtype=int), self.model.tensor(self.model.sample(n, self.options.seed))

    def _seconds_each(self) -> float:
        """What it takes to decode a code, with the networks drawn already."""
        codes = torch.as_tensor(self.space.codes[:8])
        self._decode(codes)
        began = time.perf_counter()
        self._decode(codes)
        return (time.perf_counter() - began) / len(codes)

    def _score(self, x: Tensor) -> np.ndarray:
        """Log-likelihoods (N,) of x (N, *shape)."""
        options: Any = {"n_samples": self.n_samples, "seed": self.options.seed, "draws_at_once": GROUP}
        scores = predict(self.method, x, want=("density",), **options).log_likelihood
        assert scores is not None
        return scores.double().numpy()

    def _tensor(self, stored: np.ndarray) -> Tensor:
        """(1, *shape) in the model's space."""
        return torch.from_numpy(np.ascontiguousarray(self.model.space.convert(self.model.space.as_given(stored[None]))))

    def _shown_of(self, name: str, x: Tensor) -> dict[str, Any]:
        return {name: packed(x) if self.display.kind == "image" else shorts(in_units(self.model, x[None])[0])}

    def _deviation_of(self, name: str, x: Tensor) -> dict[str, Any]:
        image = self.display.kind == "image"
        return {name: packed_deviation(x) if image else shorts(deviation_in_units(self.model, x[None])[0])}


def fitting(seconds: float, sides: tuple[int, ...], most: int) -> int:
    """The largest side of a map, at most `most`, whose cells take no longer than `PATIENCE` at so many seconds each."""
    quick = (side for side in sides if side <= most and side**2 * seconds <= PATIENCE)
    return next(quick, min(sides[-1], most))


def values(x: np.ndarray) -> list[float | None]:
    """A datum (*shape) in the units of the data as it is sent back: flat, None where missing."""
    return [None if np.isnan(v) else v for v in np.asarray(x, np.float64).reshape(-1).tolist()]


def exact(code: np.ndarray) -> list[float]:
    """A code (K,) as it is sent back, to decode around it."""
    return [float(f"{v:.8g}") if np.isfinite(v) else 0.0 for v in code]
