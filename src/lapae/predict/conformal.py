"""Split conformal prediction: p-values, thresholds and intervals that hold on new data of the same kind.

With surprises s_1 … s_n of held-out normal data, the p-value of a new surprise s is

    p = (1 + #{s_i >= s}) / (n + 1)

which is uniform if the new datum and the held-out ones are exchangeable. An interval is mean ± q · deviation with q the
(n + 1) · level-th smallest held-out |residual| / deviation, between two of them interpolated; it holds the value with
probability `level`. Both hold on average over data, not for each datum (Vovk et al. 2005; Lei et al. 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEVELS = np.concatenate([np.arange(0.01, 0.99, 0.01), [0.99, 0.995, 0.999, 0.9995]])
"""Levels at which the radius of intervals is kept; between them it is interpolated."""
ENOUGH = 20
"""Held-out values of one feature, at least, for quantiles of its own; below, those of all features together serve."""


def p_values(surprise: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Conformal p-values of `surprise` (m,) among `held_out` (n,): uniform on new normal data, NaN where it is NaN."""
    known = np.sort(held_out[~np.isnan(held_out)])
    at_least = len(known) - np.searchsorted(known, surprise, side="left")
    return np.where(np.isnan(surprise), np.nan, (1.0 + at_least) / (len(known) + 1.0))


def threshold(held_out: np.ndarray, rate: float) -> float:
    """The surprise above which a datum is flagged, so that new normal data are flagged at `rate`.

    Between two held-out surprises it is interpolated, so that the rate is met on average for any number of data. With
    too few held-out data for so small a rate it lies above all of them.
    """
    known = np.sort(held_out[~np.isnan(held_out)])
    if not len(known):
        return math.inf
    place = (1 - rate) * (len(known) + 1) - 1  # of n + 1 gaps between n surprises, the share `rate` lies above
    if place >= len(known) - 1:
        return float(np.nextafter(known[-1], math.inf))
    return float(np.quantile(known, 1 - rate, method="weibull"))


def discoveries(p: np.ndarray, rate: float) -> np.ndarray:
    """Which p-values (m,) to flag so that at most `rate` of the flagged are false (Benjamini & Hochberg 1995)."""
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    bound = rate * np.arange(1, len(order) + 1) / max(len(order), 1)
    below = np.flatnonzero(p[order] <= bound)
    flagged = np.zeros(p.shape, bool)
    if len(below):
        flagged[order[: below[-1] + 1]] = True
    return flagged


@dataclass(frozen=True)
class Radius:
    """How many deviations an interval reaches to either side, by level."""

    levels: np.ndarray
    """(L,), increasing."""
    table: np.ndarray
    """(L, *features), or (L, 1, …, 1) where all features share it."""

    @classmethod
    def of(cls, ratio: np.ndarray, *, shared: bool = False) -> Radius:
        """From held-out |residual| / deviation (n, *features), NaN where there is no value.

        Args:
            ratio: one row per held-out datum.
            shared: one radius for all features; else one per feature, where there are enough values.
        """
        n, features = len(ratio), ratio.shape[1:]
        flat = np.sort(ratio.reshape(n, math.prod(features)), axis=0)  # NaN sort to the end
        pooled = np.sort(flat[~np.isnan(flat)])[:, None]
        together = _widened(_quantiles(pooled, LEVELS))
        if shared or n < ENOUGH:
            return cls(LEVELS, together.reshape(-1, *(1 for _ in features)))
        table = _widened(_quantiles(flat, LEVELS))
        few = (~np.isnan(flat)).sum(0) < ENOUGH
        return cls(LEVELS, np.where(few, together, table).reshape(-1, *features))

    def at(self, level: float) -> np.ndarray:
        """The radius (*features) at `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level={level!r}: expected a number between 0 and 1, such as 0.9")
        if level <= self.levels[0]:
            return self.table[0] * (level / self.levels[0])
        above = int(np.searchsorted(self.levels, level))
        if above == len(self.levels):
            return self.table[-1]
        low, high = self.levels[above - 1], self.levels[above]
        part = (level - low) / (high - low)
        below, over = self.table[above - 1], self.table[above]
        return below + part * np.where(np.isinf(over), np.inf, over - np.where(np.isinf(below), 0.0, below))


def _quantiles(ordered: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Conformal quantiles of each column of `ordered` (n, F), increasing with NaN at the end: (L, F).

    Infinite where a column has too few values for the level.
    """
    counts = (~np.isnan(ordered)).sum(0)
    place = levels[:, None] * (counts[None] + 1) - 1  # of n + 1 gaps between n values, the share `level` lies below
    if not len(ordered):
        return np.full(place.shape, np.inf)
    low = np.clip(np.floor(place + 1e-9).astype(int), 0, len(ordered) - 1)
    below = np.take_along_axis(ordered, low, axis=0)
    above = np.take_along_axis(ordered, np.minimum(low + 1, len(ordered) - 1), axis=0)
    part = np.clip(place - low, -1.0, 1.0)  # below the first, between 0 and it
    found = np.where(part < 0, below * (1 + part), below + part * np.where(np.isnan(above), 0.0, above - below))
    return np.where(place <= counts[None] - 1 + 1e-9, found, np.inf)


def _widened(table: np.ndarray) -> np.ndarray:
    """Quantiles (L, F) with those that are beyond the largest value in place of infinity: as a normal tail goes on."""
    normal = np.array([NormalDist().inv_cdf(0.5 + level / 2) for level in LEVELS])
    finite = np.isfinite(table)
    last = finite.sum(0) - 1  # levels increase, so the finite ones come first
    most = np.take_along_axis(table, np.maximum(last, 0)[None], axis=0)
    beyond = np.where(last < 0, np.inf, most * (normal[:, None] / normal[np.maximum(last, 0)]))
    return np.where(finite, table, beyond)
