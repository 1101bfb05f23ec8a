"""Gaussian copula of a table with missing values: how columns depend on each other, whatever their scales and tails.

Each value is replaced by the normal score of its rank in its column, and a Gaussian is fitted to the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lapae.impute.gaussian import Gaussian
from lapae.score.marginals import Marginals

WIDEST, GRID = 4.0, 4000
"""Largest score, up or down, and number of intervals of the grid on which values are looked up."""


@dataclass(frozen=True)
class Copula(Gaussian):
    """Dependence of D features: the Gaussian of their normal scores.

    Attributes:
        marginals: distribution of each feature.
    """

    marginals: Marginals

    @classmethod
    def fit(cls, rows: Tensor) -> Copula:
        """Fit to a table (n, D); NaN is missing."""
        marginals = Marginals.fit(rows)
        return cls.of(marginals.normal(rows), marginals=marginals)

    def values(self, j: int, scores: Tensor) -> Tensor:
        """Return the values of feature j with these scores, within the range of the table."""
        place = ((scores + WIDEST) * (GRID / (2 * WIDEST))).clamp(0, GRID - 1)
        low = place.long()
        start, step = (torch.as_tensor(part[j].take(low.numpy())) for part in self._grid)  # faster than torch's
        return (place - low).mul_(step).add_(start)

    @cached_property
    def _grid(self) -> tuple[np.ndarray, np.ndarray]:
        """Values at scores from -`WIDEST` to `WIDEST`, and the differences between them: (D, `GRID`) each."""
        ranks = self.marginals.ranks
        scores, wanted = self.marginals.normal(ranks.T).T.numpy(), np.linspace(-WIDEST, WIDEST, GRID + 1)
        rows = [np.interp(wanted, *_means(theirs, x)) for theirs, x in zip(scores, ranks.numpy(), strict=True)]
        grid = np.stack(rows).astype(ranks.numpy().dtype)
        return grid[:, :-1], np.diff(grid)


def _means(scores: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct scores (k,), increasing, and the values (k,) that have them."""
    known = ~np.isnan(values)
    if not known.any():
        return np.zeros(1), np.zeros(1)
    return np.unique(scores[known]), np.unique(values[known])
