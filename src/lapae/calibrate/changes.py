"""When new anomaly scores changed, and whether they have come back.

Scores are replaced by their ranks r among the reference scores and all new ones. If the ranks of a stretch are higher
by 2 δ than those of the reference, with mean m, and all have the variance s², the logarithm of its likelihood ratio is
the sum of 2 δ (r - m - δ) / s² over the stretch. The change is the stretch of new scores with the largest sum for any
of several δ, dated once more with the δ that its own ranks have. Stretches with normal scores between them are two
changes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SHIFTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4)
"""Values of |δ|, in numbers of scores: ranks whose mean is at the end of all others are higher by half of them."""
SURE = 3.0
"""Standard errors by which the scores after a change are closer to the reference scores, if the change is over."""


class Change(NamedTuple):
    """A stretch of new scores.

    Attributes:
        first: index of its first score.
        end: index after its last score; None if it lasts to the end.
    """

    first: int
    end: int | None


def change_of(reference: np.ndarray, scores: np.ndarray) -> Change:
    """Return where new scores (m,), m > 0, differ from the reference scores (n,); NaN do not count."""
    from scipy.stats import rankdata  # pyright: ignore[reportMissingTypeStubs]

    every = np.concatenate([reference, scores])
    known = ~np.isnan(every)
    rank = np.zeros(len(every))
    rank[known] = rankdata(every[known]) / known.sum()
    n = len(reference)
    before, known, rank = rank[:n][known[:n]], known[n:], rank[n:]
    usual = float(before.mean()) if len(before) else 0.5
    away = np.where(known, rank - usual, 0.0)

    def stretch(shift: float) -> tuple[float, int, int]:
        """Return the largest sum, and first and end of its stretch."""
        gain = np.where(known, shift * (away - shift), 0.0)
        total = np.concatenate([[0.0], np.cumsum(gain)])
        end = int(np.argmax(total[1:] - np.minimum.accumulate(total)[:-1])) + 1
        first = int(np.argmin(total[:end]))
        return float(total[end] - total[first]), first, end

    _, first, end = max(stretch(sign * shift) for shift in SHIFTS for sign in (-1, 1))
    _, first, end = stretch(away[first:end][known[first:end]].mean() / 2 if known[first:end].any() else 0.5)
    shift = away[first:end].sum() / max(int(known[first:end].sum()), 1) / 2
    rest = away[end:][known[end:]]
    error = float(away[known].std()) / max(len(rest), 1) ** 0.5
    back = len(rest) > 0 and (shift - rest.mean()) * np.sign(shift) > SURE * error
    return Change(first, end if back else None)
