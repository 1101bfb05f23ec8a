"""Calibration of the uncertainty itself: are errors larger where the model is less certain?

- In equal-count bins of the predicted standard deviation: its mean against the root mean square error. For the output
  by element, with the standard deviation over networks, and of networks and noise together; and by sample, with the
  summed latent and output standard deviations that out-of-distribution detection uses.
- Coverage: the share of values inside their central intervals. The code has no truth of its own: its intervals, from
  one half of the draws, are asked to hold codes of the other half. (Not of an ensemble: its members have a latent space
  each.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.data import Data
from lapae.data.progress import progress as progress_bar
from lapae.model import Model
from lapae.predict.decode import encode_draws
from lapae.predict.mc import n_distinct
from lapae.predict.prediction import numpy
from lapae.runs.results import Table
from lapae_paper.tasks.base import tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Levels of the intervals."""
MOST_VALUES = 1_000_000
"""Maximum number of elements of the output that are used, chosen at random."""


@dataclass(frozen=True)
class Bins:
    """Equal-count bins of the predicted standard deviation."""

    deviation: np.ndarray
    """(n_bins,): root mean square predicted standard deviation."""
    error: np.ndarray
    """(n_bins,): root mean square error."""
    rank_correlation: float
    """Spearman's rank correlation between standard deviation and absolute error, by value; 0 if one is constant."""
    ence: float | None
    """Expected normalised calibration error, mean |error - deviation| / deviation over bins; None if the two do not
    have one scale, or a standard deviation is 0."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"deviation": self.deviation.tolist(), "error": self.error.tolist()}


@dataclass(frozen=True)
class CalibrationResult:
    """Bins by space, and coverage."""

    bins: dict[str, Bins]
    """ "output" and "output_total" by element; "latent_deviation" and "output_deviation" by sample."""
    coverage: dict[str, list[float]]
    """Share of values inside the intervals of each of LEVELS, by space ("output", "output_total", "latent")."""

    def to_dict(self) -> dict[str, Any]:
        bins = {name: found.to_dict() for name, found in self.bins.items()}
        return {"bins": bins, "levels": list(LEVELS), "coverage": self.coverage}

    def table(self) -> Table:
        """Return rank correlation and coverage of each standard deviation."""
        shown, rows = (0.5, 0.9, 0.99), []
        for space in dict.fromkeys([*self.bins, *self.coverage]):
            bins, covered = self.bins.get(space), dict(zip(LEVELS, self.coverage.get(space, ()), strict=False))
            inside = [round(covered[level], 3) if covered else None for level in shown]
            numbers = (bins and round(bins.rank_correlation, 3), bins and bins.ence)
            rows.append((space.replace("_", " "), *numbers, *inside))
        columns = ("deviation of", "rank correlation with the error", "ENCE")
        return Table((*columns, *(f"inside {100 * level:.0f} %" for level in shown)), rows)

    def figures(self) -> dict[str, Figure]:
        """Draw error against standard deviation, and coverage."""
        from lapae_paper.tasks.figures import coverage_curves, error_against_deviation

        titles = {
            "output": "output, by element",
            "output_total": "output with noise, by element",
            "latent_deviation": "latent, by sample",
            "output_deviation": "output, by sample",
        }
        panels = {titles[k]: (b.deviation, b.error, k in ("output", "output_total")) for k, b in self.bins.items()}
        return {
            "calibration_bins": error_against_deviation(panels),
            "calibration_coverage": coverage_curves(LEVELS, self.coverage),
        }


def equal_count_bins(deviation: np.ndarray, error: np.ndarray, n_bins: int = 10, *, same_scale: bool = True) -> Bins:
    """Sort values (n,) by standard deviation, cut them into bins of equal count (to within one), and average squares.

    Equal deviations are spread over bins as they come.
    """
    if not 1 <= n_bins <= len(deviation):
        raise ValueError(f"expected from 1 to {len(deviation)} bins (the number of values), got {n_bins}")
    order = np.argsort(deviation, kind="stable")
    parts = np.array_split(order, n_bins)
    predicted = np.array([np.sqrt(np.mean(np.square(deviation[part], dtype=np.float64))) for part in parts])
    found = np.array([np.sqrt(np.mean(np.square(error[part], dtype=np.float64))) for part in parts])
    ence = float(np.mean(np.abs(found - predicted) / predicted)) if same_scale and predicted.min() > 0 else None
    return Bins(predicted, found, _rank_correlation(deviation, np.abs(error)), ence)


def coverage(error: np.ndarray, deviation: np.ndarray, levels: Sequence[float] = LEVELS) -> list[float]:
    """Return the share of values within the central Gaussian interval of each level: |error| <= q deviation."""
    quantiles = [NormalDist().inv_cdf(0.5 + level / 2) for level in levels]
    return [float(np.mean(np.abs(error) <= q * deviation)) for q in quantiles]


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1]) if np.ptp(a) and np.ptp(b) else 0.0


@dataclass(frozen=True)
class CalibrationOptions:
    """Calibration of the uncertainty itself."""

    n_samples: int = 100
    """Number of networks to draw."""
    bins: int = 10
    """Equal-count bins of the predicted standard deviation."""
    limit: int | None = 5000
    """Number of test samples, at most."""
    seed: int = 0
    """Seed of draws and subset."""


def evaluate(model: Model, data: Data, options: CalibrationOptions) -> CalibrationResult:
    x = tensor(model, data.held_out, data.held_out.some(options.limit, options.seed))
    networks, seed = n_distinct(model.method, options.n_samples), options.seed
    with progress_bar("calibration", len(x) * networks) as advance:
        found = model.predict(
            x, predictive=replace(model.predictive, kind="mc", n_samples=networks, seed=seed), progress=advance
        )
    mean, var, noise, z_var = found.x_mean, found.x_var, found.x_noise, found.z_var
    every = (x.cpu().to(mean.dtype) - mean, var.sqrt(), (var + noise).sqrt())
    error, deviation, total = (numpy(values.flatten(1)) for values in every)
    some = np.random.default_rng(seed).permutation(error.size)[:MOST_VALUES]
    e, d, t = (values.reshape(-1)[some] for values in (error, deviation, total))
    by_value, by_sample = min(options.bins, len(e)), min(options.bins, len(x))
    whole, latent = np.sqrt(np.square(error).mean(1)), numpy(z_var.sqrt().flatten(1).sum(1))
    bins = {
        "output": equal_count_bins(d, e, by_value),
        "output_total": equal_count_bins(t, e, by_value),
        "latent_deviation": equal_count_bins(latent, whole, by_sample, same_scale=False),
        "output_deviation": equal_count_bins(deviation.sum(1), whole, by_sample, same_scale=False),
    }
    covered = {"output": coverage(e, d), "output_total": coverage(e, t)}
    if model.method.distinct_draws is None and networks >= 4:
        codes = numpy(encode_draws(model.method, x[:1000], networks, seed=seed))
        first, second = codes[:, ::2], codes[:, 1::2]
        covered["latent"] = coverage(second - first.mean(1, keepdims=True), first.std(1, keepdims=True, ddof=1))
    return CalibrationResult(bins, covered)
