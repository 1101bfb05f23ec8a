"""How well an anomaly score tells two sets of samples apart: AUROC, AUPRC and FPR, with bootstrap intervals.

Scores are higher for what is more unusual; the positive class is "out of distribution". Thresholds are the different
values of the scores, from high to low. Everything is computed from how many of each set share a threshold, so that a
bootstrap resample is a reweighting of those counts and needs no sorting.

Shapes: T thresholds, R resamples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

RECALL = 0.95
HEADS = ("AUROC (95 % interval)", "AUPRC", "FPR at 95 % TPR")


@dataclass(frozen=True)
class Estimate:
    """A number with a bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Detection:
    """How well a score detects one out-of-distribution set."""

    auroc: Estimate
    auprc: Estimate
    fpr95: Estimate
    """Share of in-distribution samples flagged at the threshold that catches 95 % of the others."""
    roc: tuple[np.ndarray, np.ndarray]
    """False and true positive rate at every threshold, (T + 1,) each, from (0, 0) to (1, 1)."""

    def cells(self) -> tuple[str, float, float]:
        """Return what tables show under `HEADS`."""
        auroc = f"{self.auroc.value:.3f} ({self.auroc.low:.3f} to {self.auroc.high:.3f})"
        return auroc, round(self.auprc.value, 3), round(self.fpr95.value, 3)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return the numbers, without the curve."""
        return {"auroc": asdict(self.auroc), "auprc": asdict(self.auprc), "fpr95": asdict(self.fpr95)}


def detection(inside: np.ndarray, outside: np.ndarray, *, n_bootstrap: int = 500, seed: int = 0) -> Detection:
    """Measure how well scores tell samples apart.

    Args:
        inside: scores (n,) of in-distribution samples.
        outside: scores (m,) of out-of-distribution samples.
        n_bootstrap: resamples for the 95 % intervals of bootstrap percentiles; 0 for none.
        seed: seed of the resamples.
    """
    inside, outside = _checked(inside, "in-distribution"), _checked(outside, "out-of-distribution")
    thresholds, place = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    place = len(thresholds) - 1 - place  # from high to low
    place_in, place_out = place[: len(inside)], place[len(inside) :]
    counts = partial(np.bincount, minlength=len(thresholds))
    n_in, n_out = counts(place_in), counts(place_out)
    whole = _metrics(n_in, n_out)
    rng = np.random.default_rng(seed)

    def resample(place: np.ndarray) -> np.ndarray:
        return counts(place[rng.integers(len(place), size=len(place))])

    resampled = [_metrics(resample(place_in), resample(place_out)) for _ in range(n_bootstrap)]
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0) if n_bootstrap else (whole, whole)
    estimates = [Estimate(float(v), float(a), float(b)) for v, a, b in zip(whole, low, high, strict=True)]
    false, true = (np.concatenate([[0.0], np.cumsum(n) / n.sum()]) for n in (n_in, n_out))
    return Detection(*estimates, roc=(false, true))


def _metrics(n_in: np.ndarray, n_out: np.ndarray) -> tuple[float, float, float]:
    """Return AUROC (trapezoids), AUPRC (average precision) and FPR at 95 % TPR from the counts (T,) of a threshold."""
    false, true = np.cumsum(n_in), np.cumsum(n_out)
    # every pair (in, out) with the out score higher counts one, ties a half
    auroc = ((true - 0.5 * n_out) * n_in).sum() / (true[-1] * false[-1])
    auprc = (n_out * true / np.maximum(true + false, 1)).sum() / true[-1]
    first = np.searchsorted(true, RECALL * true[-1] - 1e-9)
    return float(auroc), float(auprc), float(false[first] / false[-1])


def _checked(scores: np.ndarray, which: str) -> np.ndarray:
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1 or not len(scores):
        raise ValueError(f"expected {which} scores of shape (n,) with n > 0, got {scores.shape}")
    if np.isnan(scores).any():
        raise ValueError(f"{int(np.isnan(scores).sum())} of {len(scores)} {which} scores are NaN")
    return scores
