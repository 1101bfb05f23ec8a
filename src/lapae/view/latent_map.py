"""The latent space in two dimensions: the data on it, and what the decoder says everywhere around them.

With K = 2 the two axes are the latent ones. With more, they are principal axes of the codes of the data, and a map is
the plane of two of them through the mean code. K = 1 is a line: its second axis has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.methods.base import Method
from lapae.model import Model
from lapae.predict.decode import Decoded, decode, encode_mean
from lapae.view.display import shorts
from lapae.view.named_splits import NamedSplits
from lapae.view.verdicts import Verdicts

MARGIN = 0.35
"""Margin around the codes as a share of their range, so that the map shows the decoder away from the data too."""
BEYOND = 1.0
"""Share of the range of usual samples by which a map reaches further on each side, to show samples far from them."""
LEAST_USUAL = 20
"""Minimum number of held-out samples that say what is usual."""
DRAWS = 20
"""Maximum number of networks drawn, for a model that does not predict in a single pass."""


@dataclass(frozen=True)
class LatentSpace:
    """Codes of samples, and the axes of the map."""

    codes: np.ndarray
    """(N, K)"""
    origin: np.ndarray
    """(K,): the code at which all coordinates are zero."""
    directions: np.ndarray
    """(A, K): unit vectors."""
    names: tuple[str, ...]
    """(A,)"""
    limits: np.ndarray
    """(A, 2): range of each axis on the map."""
    share: tuple[float, ...] | None = None
    """(A,): share of the variance of the codes along each axis, for principal axes."""

    @property
    def points(self) -> np.ndarray:
        """(N, A): coordinates of the codes."""
        return (self.codes - self.origin) @ self.directions.T

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every pair of axes."""
        return list(combinations(range(len(self.directions)), 2))

    def to_dict(self) -> dict[str, Any]:
        """Axes and points, for the pages' scripts."""
        return {
            "axes": [
                {"name": name, "low": float(low), "high": float(high)}
                for name, (low, high) in zip(self.names, self.limits, strict=True)
            ],
            "share": None if self.share is None else shorts(np.asarray(self.share)),
            "points": shorts(self.points),
        }

    def through(self, code: np.ndarray, axes: tuple[int, int]) -> LatentSpace:
        """Return these axes with the plane of two of them moved through `code` (K,); coordinates do not change."""
        gap = code - self.origin
        pair = self.directions[list(axes)]
        return replace(self, origin=self.origin + gap - (pair @ gap) @ pair)

    def code(self, axes: tuple[int, int], at: tuple[float, float]) -> np.ndarray:
        """Return the code (K,) at two coordinates of a map."""
        return self.origin + np.asarray(at) @ self.directions[list(axes)]

    def spanned(self, axes: tuple[int, int]) -> np.ndarray:
        """Return the directions (1 or 2, K) that lead anywhere on a map."""
        return np.array([self.directions[axis] for axis in axes if self.directions[axis].any()])

    def grid(self, axes: tuple[int, int], side: int) -> np.ndarray:
        """Return codes (side * side, K) at the centres of the cells of a map, row by row from the top."""
        centres = (np.arange(side) + 0.5) / side
        (a_low, a_high), (b_low, b_high) = self.limits[list(axes)]
        a, b = a_low + centres * (a_high - a_low), b_high - centres * (b_high - b_low)
        u, v = self.directions[list(axes)]
        return (self.origin + a[None, :, None] * u + b[:, None, None] * v).reshape(side * side, -1)


def latent_space(method: Method, x: Tensor, *, n_axes: int = 4, usual: int = 0) -> LatentSpace:
    """Return the codes of x (N, *shape) and at most `n_axes` axes.

    Args:
        method: the trained method.
        x: samples.
        n_axes: maximum number of axes.
        usual: number of usual samples, the last ones of x: they set the axes, and the map reaches beyond
            them by at most `BEYOND` of their range. By default all samples set both.
    """
    codes = encode_mean(method, x).double().numpy()
    k, some = codes.shape[1], slice(len(codes) - usual, None) if usual else slice(None)
    share = None
    if k <= 2:
        origin, directions = np.zeros(k), np.eye(k)
        names = tuple(f"z{i + 1}" for i in range(k))
        if k == 1:
            directions, names = np.array([[1.0], [0.0]]), ("z1", "no second axis")
    else:
        origin = codes[some].mean(0)
        _, values, rows = np.linalg.svd(codes[some] - origin, full_matrices=False)
        n = min(n_axes, k, len(rows))
        # the sign of a principal axis is arbitrary: the largest entry is positive
        directions = rows[:n] * np.sign(rows[np.arange(n), np.abs(rows[:n]).argmax(1)])[:, None]
        names = tuple(f"PC {i + 1}" for i in range(n))
        share = tuple(float(s) for s in (values**2 / max((values**2).sum(), 1e-300))[:n])
    points = (codes - origin) @ directions.T
    low, high = np.percentile(points[some], [0.5, 99.5], axis=0)
    if usual:
        far, reach = np.percentile(points, [0.5, 99.5], axis=0), BEYOND * (high - low)
        low, high = np.maximum(np.minimum(low, far[0]), low - reach), np.minimum(np.maximum(high, far[1]), high + reach)
    room = MARGIN * np.maximum(high - low, 1e-6)
    if k == 1:
        low[1], high[1], room[1] = -1.0, 1.0, 0.0
    return LatentSpace(codes, origin, directions, names, np.stack([low - room, high + room], 1), share)


def usual_samples(verdicts: Verdicts, splits: NamedSplits, most: int) -> Tensor:
    """Return at most `most` held-out samples (n, *shape) of the model, in its space, to show given ones beside them.

    They set the axes of the map and the ranges of values: given samples may be few, or far from what is usual. None for
    the samples of a run, or if there are too few.
    """
    held_out = verdicts.calibration.held_out
    return held_out[: most if splits.are_given and len(held_out) >= LEAST_USUAL else 0]


def beside_usual(n: int, usual: int) -> list[dict[str, Any]]:
    """Return the labeling that tells n samples from the usual ones that follow them; none without any."""
    if not usual:
        return []
    return [{"name": "samples", "names": ["held-out samples", "given samples"], "values": [1] * n + [0] * usual}]


def plane(
    method: Method,
    space: LatentSpace,
    axes: tuple[int, int] = (0, 1),
    *,
    side: int = 32,
    n_samples: int | None = 50,
    seed: int = 0,
    batch_size: int = 64,
) -> Decoded:
    """Decode the grid of a map: (side * side, *shape), row by row from the top, the largest value of the second axis.

    The map is that of two axes of the latent space, with `side` cells along each; `n_samples` networks are drawn.
    """
    z = torch.as_tensor(space.grid(axes, side))
    return decode(method, z, n_samples=n_samples, seed=seed, batch_size=batch_size)


def networks_of(model: Model, n_samples: int | None) -> int | None:
    """Number of networks to decode with; None if the model predicts in one pass that carries a variance."""
    if n_samples is not None or model.config.method.predictive == "moments" or model.natural:
        return n_samples
    return min(DRAWS, model.config.method.n_samples or DRAWS)
