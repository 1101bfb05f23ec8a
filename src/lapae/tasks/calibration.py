"""Calibration of the uncertainty itself: are errors larger where the model is less certain?

- In equal-count bins of the predicted deviation: its mean against the root mean square error. For the output by
  element, with the deviation over networks and with that of networks and noise together; and by datum, with the summed
  latent and output deviations that out-of-distribution detection uses.
- Coverage: the share of values inside their central intervals. The code has no truth of its own: its intervals, from
  one half of the draws, are asked to hold codes of the other half. (Not of an ensemble: its members have a latent space
  each.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lapae.data.progress import progress as progress_bar
from lapae.methods.base import Method
from lapae.predict import predict
from lapae.predict.mc import n_distinct
from lapae.predict.prediction import Progress
from lapae.runs.results import Table
from lapae.tasks.base import subset, tensor
from lapae.tasks.semi_supervised import embed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.data import Data
    from lapae.model import Model

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Bins:
    """Equal-count bins of the predicted deviation."""

    deviation: np.ndarray
    """(n_bins,): root mean square predicted deviation."""
    error: np.ndarray
    """(n_bins,): root mean square error."""
    rank_correlation: float
    """Spearman's, between deviation and absolute error, value by value; 0 where one of them is constant."""
    ence: float | None
    """Expected normalised calibration error, mean |error - deviation| / deviation over bins; None where the two are not
    of one scale, or a deviation is 0."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "deviation": self.deviation.tolist(),
            "error": self.error.tolist(),
            "rank_correlation": self.rank_correlation,
            "ence": self.ence,
        }


@dataclass(frozen=True)
class CalibrationResult:
    """Bins by space, and coverage."""

    bins: dict[str, Bins]
    """ "output" and "output_total" by element; "latent_deviation" and "output_deviation" by datum."""
    levels: tuple[float, ...]
    coverage: dict[str, list[float]]
    """By space ("output", "output_total", "latent"): share inside the intervals of each level."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "bins": {name: found.to_dict() for name, found in self.bins.items()},
            "levels": list(self.levels),
            "coverage": self.coverage,
        }

    def table(self) -> Table:
        """Rank correlation and coverage of each deviation."""
        shown = [level for level in (0.5, 0.9, 0.99) if level in self.levels]
        rows = []
        for space in dict.fromkeys([*self.bins, *self.coverage]):
            bins, covered = self.bins.get(space), self.coverage.get(space)
            inside = [None if covered is None else round(covered[self.levels.index(level)], 3) for level in shown]
            rows.append(
                (space.replace("_", " "), bins and round(bins.rank_correlation, 3), bins and bins.ence, *inside)
            )
        columns = ("deviation of", "rank correlation with the error", "ENCE")
        return Table((*columns, *(f"inside {100 * level:.0f} %" for level in shown)), rows)

    def figures(self) -> dict[str, Figure]:
        """Error against deviation, and coverage."""
        from lapae.tasks.figures import coverage_curves, error_against_deviation

        titles = {
            "output": "output, by element",
            "output_total": "output with noise, by element",
            "latent_deviation": "latent, by datum",
            "output_deviation": "output, by datum",
        }
        panels = {titles[k]: (b.deviation, b.error, k in ("output", "output_total")) for k, b in self.bins.items()}
        return {
            "calibration_bins": error_against_deviation(panels),
            "calibration_coverage": coverage_curves(self.levels, self.coverage),
        }


def equal_count_bins(deviation: np.ndarray, error: np.ndarray, n_bins: int = 10, *, same_scale: bool = True) -> Bins:
    """Sort values (n,) by deviation, cut them into bins of equal count (to within one), and take the means of squares.

    Equal deviations are spread over bins as they come.
    """
    if deviation.shape != error.shape or deviation.ndim != 1:
        raise ValueError(f"expected deviations and errors of one shape (n,), got {deviation.shape} and {error.shape}")
    if not 1 <= n_bins <= len(deviation):
        raise ValueError(f"expected from 1 to {len(deviation)} bins (the number of values), got {n_bins}")
    order = np.argsort(deviation, kind="stable")
    parts = np.array_split(order, n_bins)
    predicted = np.array([np.sqrt(np.mean(np.square(deviation[part], dtype=np.float64))) for part in parts])
    found = np.array([np.sqrt(np.mean(np.square(error[part], dtype=np.float64))) for part in parts])
    ence = float(np.mean(np.abs(found - predicted) / predicted)) if same_scale and predicted.min() > 0 else None
    return Bins(predicted, found, _rank_correlation(deviation, np.abs(error)), ence)


def coverage(error: np.ndarray, deviation: np.ndarray, levels: Sequence[float] = LEVELS) -> list[float]:
    """Share of values within the central Gaussian interval of each level: |error| <= q deviation."""
    if any(not 0 < level < 1 for level in levels):
        raise ValueError(f"expected levels between 0 and 1, got {list(levels)}")
    quantiles = [NormalDist().inv_cdf(0.5 + level / 2) for level in levels]
    return [float(np.mean(np.abs(error) <= q * deviation)) for q in quantiles]


def run(
    method: Method,
    x: Tensor,
    *,
    n_samples: int = 100,
    seed: int = 0,
    n_bins: int = 10,
    levels: Sequence[float] = LEVELS,
    max_values: int = 1_000_000,
    progress: Progress | None = None,
) -> CalibrationResult:
    """Calibration of deviations and intervals.

    Args:
        method: the trained method.
        x: data (N, *shape) in the model's space.
        n_samples: networks drawn.
        seed: of the networks, and of the values that are looked at.
        n_bins: bins of the predicted deviation, with equally many values in each.
        levels: of the intervals.
        max_values: at most so many elements of the output, at random.
        progress: called with the number of (network, datum) pairs done.
    """
    found = predict(method, x, n_samples=n_samples, seed=seed, want=("codes", "outputs"), progress=progress)
    assert found.x_mean is not None
    assert found.x_var is not None
    assert found.x_noise is not None
    assert found.z_var is not None
    error = (x.cpu().to(found.x_mean.dtype) - found.x_mean).flatten(1)
    deviation, total = found.x_var.sqrt().flatten(1), (found.x_var + found.x_noise).sqrt().flatten(1)
    some = np.random.default_rng(seed).permutation(error.numel())[:max_values]
    e, d, t = (values.reshape(-1)[some].numpy() for values in (error, deviation, total))
    whole = error.square().mean(1).sqrt().numpy()
    by_datum = min(n_bins, len(x))
    bins = {
        "output": equal_count_bins(d, e, min(n_bins, len(d))),
        "output_total": equal_count_bins(t, e, min(n_bins, len(t))),
        "latent_deviation": equal_count_bins(found.z_var.sqrt().sum(1).numpy(), whole, by_datum, same_scale=False),
        "output_deviation": equal_count_bins(deviation.sum(1).numpy(), whole, by_datum, same_scale=False),
    }
    covered = {"output": coverage(e, d, levels), "output_total": coverage(e, t, levels)}
    if method.distinct_draws is None and n_distinct(method, n_samples) >= 4:
        covered["latent"] = _latent_coverage(method, x, n_samples, seed, levels)
    return CalibrationResult(bins, tuple(levels), covered)


def _latent_coverage(method: Method, x: Tensor, n_samples: int, seed: int, levels: Sequence[float]) -> list[float]:
    codes = torch.as_tensor(embed(method, x[:1000], n_embeddings=n_samples, seed=seed))
    first, second = codes[:, ::2], codes[:, 1::2]
    error = second - first.mean(1, keepdim=True)
    return coverage(error.numpy(), first.std(1, keepdim=True).expand_as(error).numpy(), levels)


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    from scipy.stats import rankdata

    ranks = [rankdata(values) for values in (a, b)]
    if any(r[0] == r.min() == r.max() for r in ranks):
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


@dataclass(frozen=True)
class CalibrationOptions:
    """Calibration of the uncertainty itself."""

    n_samples: int = 100
    """Networks to draw."""
    bins: int = 10
    """Equal-count bins of the predicted deviation."""
    limit: int | None = 5000
    """At most so many test data."""
    seed: int = 0
    """Seed of draws and subset."""


def evaluate(model: Model, data: Data, options: CalibrationOptions) -> CalibrationResult:
    x = tensor(model, data.held_out, subset(data.held_out, options.limit, options.seed))
    with progress_bar("calibration", len(x) * n_distinct(model.method, options.n_samples)) as advance:
        return run(
            model.method,
            x,
            n_samples=options.n_samples,
            seed=options.seed,
            n_bins=options.bins,
            progress=advance,
        )
