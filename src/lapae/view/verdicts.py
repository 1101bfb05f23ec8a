"""What a model says of data: how unusual each is, what it expected instead, and which values speak against it.

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
from lapae.errors import RunError
from lapae.model import Model
from lapae.predict.prediction import numpy
from lapae.runs.numbers import number

LEVEL = 0.9
"""Of the intervals that are shown."""
MOST_ASKED = 128
"""Values of a row that are hidden one by one, to know what was expected of each."""


def batch_size(values: int) -> int:
    """How many data, or codes, of so many values go through a network at once: feature maps of images are large."""
    return max(8, min(512, 2**17 // max(values, 1)))


VERDICTS = ((0.2, "very unusual"), (1.0, "unusual"), (4.0, "a little unusual"), (np.inf, "ordinary"))
"""Up to which multiple of the false alarm rate a p-value is called what."""


def in_words(p: float, surprise: float, n: int, rate: float = 0.05) -> dict[str, Any]:
    """A p-value and what it means, for the explorer's page; it was found by comparison with n data."""
    if np.isnan(p):
        return {"p": None, "verdict": "", "rare": False, "words": "Nothing observed.", "score": None}
    verdict = next(word for times, word in VERDICTS if p <= times * rate)
    if p <= 1 / n:
        words = f"More unusual than all of {n:,} normal data that training has not seen."
    else:
        words = f"Of {n:,} normal data that training has not seen, {number(100 * p, 2)} % are at least as unusual."
    told = {"p": number(float(p), 2), "verdict": verdict, "rare": bool(p <= rate), "words": words}
    return told | {"score": number(float(surprise), 3)}


@dataclass(frozen=True)
class Judged:
    """What was expected of n data (`Model.counterfactual`), and what speaks against them."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """Ends of the interval that holds a normal value with probability LEVEL."""
    contribution: np.ndarray
    """How much each value adds to how unusual its datum is, at least 0."""


class Judge:
    """A calibrated model, asked for a few data at a time."""

    def __init__(self, model: Model) -> None:
        if model.calibration is None:
            raise RunError("this model has no calibration: it was saved before its training was finished")
        self.model, self.calibration = model, model.calibration
        self.n_references = len(self.calibration.reference.scores)
        """Data that p-values compare with."""
        self.rate = model.rule().rate
        """Data are flagged if and only if their p-value is at most this."""
        self.threshold = model.rule().threshold
        self.size = batch_size(int(np.prod(model.shape)))

    def scores(self, x: np.ndarray, *, itself: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Surprise (n,), large is unusual, and p-value (n,), small is unusual, of data (n, *shape).

        Args:
            x: the data.
            itself: whether they are among those that are compared with: then each is compared with the others.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of data without any value: the pages say so themselves
            found = [self.model.anomaly_score(some) for some in self._batches(x)]
        surprise, p = (np.concatenate(v) for v in zip(*found, strict=True))
        n = self.n_references
        return surprise, (p * (n + 1) - 1).clip(1) / n if itself else p

    def __call__(self, x: np.ndarray) -> Judged:
        """What was expected of data (n, *shape), and what speaks against them.

        Of a wide table those values are hidden that add most to how unusual a row is; of the others it is the
        reconstruction.
        """
        parts = []
        for some in self._batches(x):
            contribution = self.model.explain(some)
            wide = self.model.from_others and some.shape[1] > MOST_ASKED
            top = MOST_ASKED if wide else None
            expected = self.model.counterfactual(some, top, LEVEL, contribution=contribution)
            if wide:
                pairs = zip(expected, self.reconstruction(some), strict=True)
                expected = tuple(np.where(np.isnan(a), b, a) for a, b in pairs)
            parts.append((*expected, contribution))
        return Judged(*(np.concatenate(v) for v in zip(*parts, strict=True)))

    def reconstruction(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the model makes of data (n, *shape), and the ends of its interval."""
        return self.model.reconstruct(x)[0], *self.model.interval(x, LEVEL)

    def errors(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """In the model's space (n, *model_shape): what the model leaves of x, and the deviation it expects of that."""
        found = []
        for some in self._batches(x):
            z = self.model.tensor(some)
            prediction = self.model.predict(z)
            deviation = self.calibration.deviation(prediction, z)
            found.append((numpy(z) - numpy(prediction.x_mean), deviation.numpy()))
        left, deviation = (np.concatenate(v) for v in zip(*found, strict=True))
        return left, deviation

    def some(self, split: Split, seed: int, most: int, values: int) -> np.ndarray:
        """Numbers of at most `most` data of a split, of about so many values in all."""
        return split.some(max(100, min(most, values // max(1, math.prod(self.model.shape)))), seed)

    def _batches(self, x: np.ndarray) -> Iterator[np.ndarray]:
        return (x[start : start + self.size] for start in range(0, len(x), self.size))
