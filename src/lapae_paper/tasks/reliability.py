"""Whether a classifier's confidence can be trusted: accuracy, calibration errors, and the reliability diagram."""

from __future__ import annotations

import numpy as np


def classification(probs: np.ndarray, y: np.ndarray, *, n_bins: int = 15) -> dict[str, float]:
    """Return accuracy and calibration errors of class probabilities (N, C) against y (N,).

    With g_k = |accuracy - confidence| in bin k of `reliability` and s_k its share of the samples: ECE = Σ s_k g_k,
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
    """Return mean confidence, accuracy and share of the samples in equal-width bins of the confidence: (n_bins,) each.

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
