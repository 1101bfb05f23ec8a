"""Verdicts of a model on samples: how unusual each is, what was expected instead, and which values make it unusual.

Arrays are (n, *shape), in the units and the layout of the data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lapae.data import Split
from lapae.errors import UNFINISHED, RunError
from lapae.model import Model
from lapae.predict.prediction import numpy
from lapae.runs.numbers import number

LEVEL = 0.9
"""Level of the prediction intervals that are shown."""
MOST_HIDDEN = 128
"""Maximum number of values of a row that are hidden one by one, to find what was expected of each."""


def batch_size(values: int) -> int:
    """Number of samples, or codes, with this many values per batch: feature maps of images are large."""
    return max(8, min(512, 2**17 // max(values, 1)))


VERDICTS = ((0.2, "very unusual"), (1.0, "unusual"), (4.0, "a little unusual"), (np.inf, "ordinary"))
"""Words for p-values up to a multiple of the false alarm rate."""


def in_words(p: float, anomaly_score: float, n: int, rate: float = 0.05) -> dict[str, Any]:
    """Explain a p-value, which is a comparison with n samples, on the explorer's page."""
    if np.isnan(p):
        return {"p": None, "verdict": "", "rare": False, "words": "Nothing observed.", "score": None}
    verdict = next(word for times, word in VERDICTS if p <= times * rate)
    if p <= 1 / n:
        words = f"More unusual than all of {n:,} normal samples that training has not seen."
    else:
        words = f"Of {n:,} normal samples that training has not seen, {number(100 * p, 2)} % are at least as unusual."
    told = {"p": number(float(p), 2), "verdict": verdict, "rare": bool(p <= rate), "words": words}
    return told | {"score": number(float(anomaly_score), 3)}


@dataclass(frozen=True)
class Verdict:
    """How unusual n samples are, what was expected of them (`Model.counterfactual`), and which values are to blame."""

    anomaly_score: np.ndarray
    p: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """Upper ends of the prediction intervals of level LEVEL; `low` has the lower ones."""
    contribution: np.ndarray
    """What each value adds to the anomaly score of its sample, at least 0."""


class Verdicts:
    """A calibrated model that assesses a batch of samples at a time."""

    def __init__(self, model: Model) -> None:
        if model.calibration is None:
            raise RunError(UNFINISHED)
        self.model, self.calibration = model, model.calibration
        self.n_references = len(self.calibration.reference.scores)
        """Number of held-out samples that p-values compare with."""
        self.rate = model.rule().rate
        """False alarm rate: samples are flagged if and only if their p-value is at most this."""
        self.threshold = model.rule().threshold
        self.size = batch_size(int(np.prod(model.shape)))

    def scores(self, x: np.ndarray, *, itself: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return anomaly scores (n,), large is unusual, and p-values (n,), small is unusual, of samples (n, *shape).

        With `itself` they are the calibration samples themselves: then each is compared with the others.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # samples without any value: the pages say so themselves
            found = [self.model.anomaly_score(some) for some in self._batches(x)]
        anomaly_score, p = (np.concatenate(v) for v in zip(*found, strict=True))
        return anomaly_score, self._among_others(p) if itself else p

    def _among_others(self, p: np.ndarray) -> np.ndarray:
        """Return p-values (n,) of calibration samples as each is compared with the others alone."""
        n = self.n_references
        return (p * (n + 1) - 1).clip(1) / n

    def __call__(self, x: np.ndarray, *, itself: bool = False) -> Verdict:
        """Return how unusual samples (n, *shape) are, what was expected of them, and which values are to blame.

        In a wide table only the values that add most to the anomaly score are hidden; the others are expected to equal
        their reconstruction. `itself` is as in `scores`.
        """
        parts = []
        for some in self._batches(x):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # as above
                judged = self.model.judge(some, reasons=True)
            wide = self.model.from_others and some.shape[1] > MOST_HIDDEN
            top = MOST_HIDDEN if wide else None
            expected = self.model.counterfactual(some, top, LEVEL, contribution=judged.contribution)
            if wide:
                pairs = zip(expected, self.reconstruction(some), strict=True)
                expected = tuple(np.where(np.isnan(a), b, a) for a, b in pairs)
            p = self._among_others(judged.p_value) if itself else judged.p_value
            parts.append((judged.anomaly_score, p, *expected, judged.contribution))
        return Verdict(*(np.concatenate(v) for v in zip(*parts, strict=True)))

    def reconstruction(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the reconstruction of samples (n, *shape) and the ends of its prediction intervals."""
        return self.model.expected(x, LEVEL)

    def errors(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return residuals of x and their expected standard deviations, (n, *model_shape) in the model's space."""
        found = []
        for some in self._batches(x):
            z = self.model.tensor(some)
            prediction = self.model.predict(z)
            deviation = self.calibration.deviation(prediction, z)
            found.append((numpy(z) - numpy(prediction.x_mean), deviation.numpy()))
        left, deviation = (np.concatenate(v) for v in zip(*found, strict=True))
        return left, deviation

    def some(self, split: Split, seed: int, most: int = 1000, values: int = 2**22) -> np.ndarray:
        """Return indices of at most `most` samples of a split, with about `values` values in all."""
        return split.some(max(100, min(most, values // max(1, math.prod(self.model.shape)))), seed)

    def _batches(self, x: np.ndarray) -> Iterator[np.ndarray]:
        return (x[start : start + self.size] for start in range(0, len(x), self.size))
