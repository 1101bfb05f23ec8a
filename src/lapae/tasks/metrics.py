"""How well scores tell two sets apart, with bootstrap intervals.

Scores are higher for what is more anomalous; the positive class is "out of distribution". Thresholds are the different
values of the scores, from high to low. Everything is computed from how many of each set share a threshold, so that a
bootstrap resample is a reweighting of those counts and needs no sorting.

Shapes: T thresholds, R resamples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

RECALL = 0.95


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
    """Share of in-distribution data flagged at the threshold that catches 95 % of the others."""
    roc: tuple[np.ndarray, np.ndarray]
    """False and true positive rate at every threshold, (T + 1,) each, from (0, 0) to (1, 1)."""

    def to_dict(self) -> dict[str, dict[str, float]]:
        """The numbers, without the curve."""
        return {"auroc": asdict(self.auroc), "auprc": asdict(self.auprc), "fpr95": asdict(self.fpr95)}


def detection(inside: np.ndarray, outside: np.ndarray, *, n_bootstrap: int = 500, seed: int = 0) -> Detection:
    """Metrics of scores inside (n,) and outside (m,) of the distribution; 95 % intervals of bootstrap percentiles."""
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
    """AUROC (trapezoids), AUPRC (average precision) and FPR at 95 % TPR from the counts (T,) of a threshold."""
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


def classification(probs: np.ndarray, y: np.ndarray, *, n_bins: int = 15) -> dict[str, float]:
    """Accuracy and calibration errors of class probabilities (N, C) against y (N,).

    With g_k = |accuracy - confidence| in bin k of `reliability` and s_k its share of the data: ECE = Σ s_k g_k,
    MCE = max g_k, RMSCE = √(Σ s_k g_k²) (Guo et al. 2017). torchmetrics, which the authors used, differs at the edges
    of the bins alone: there they hold their left edge, and confidences of 1 have a bin of their own.
    """
    probs = np.asarray(probs, dtype=np.float64)
    bins = reliability(probs, y, n_bins=n_bins)
    share, gap = bins["share"], np.nan_to_num(np.abs(bins["accuracy"] - bins["confidence"]))
    return {
        "accuracy": float((probs.argmax(1) == y).mean()),
        "ece": float((share * gap).sum()),
        "mce": float(gap.max()),
        "rmsce": float(np.sqrt((share * gap**2).sum())),
    }


def reliability(probs: np.ndarray, y: np.ndarray, *, n_bins: int = 15) -> dict[str, np.ndarray]:
    """Mean confidence, accuracy and share of the data in equal-width bins of the confidence: (n_bins,) each.

    Empty bins have NaN for confidence and accuracy. Bins hold their right edge.
    """
    confidence, correct = probs.max(1), probs.argmax(1) == y
    edges = np.linspace(0, 1, n_bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, n_bins - 1)
    size = np.bincount(place, minlength=n_bins)
    with np.errstate(invalid="ignore"):
        return {
            "confidence": np.bincount(place, confidence, n_bins) / size,
            "accuracy": np.bincount(place, correct, n_bins) / size,
            "share": size / len(y),
        }
