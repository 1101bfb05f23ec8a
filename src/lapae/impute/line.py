"""Missing values of rows that lie beyond the data, where no similar rows exist: linear extrapolation of the table.

A Gaussian fitted to the rows expects the missing values m of a row with observed values o at

    line = mean_m + C_mo C_oo⁻¹ (o - mean_o),    standard deviation² = diag(C_mm - C_mo C_oo⁻¹ C_om).

Similar rows are more informative if there are any. How far a row is from them is measured by its squared Mahalanobis
distance d = (o - mean_o)ᵀ C_oo⁻¹ (o - mean_o) and the number k of its observed values, as r = (a + d) / (a + k): with
few of them, r is near 1. The standard deviation of the line does not count up to the median of r over held-out
rows, and counts `MOST_TIMES` times beyond nine in ten, wherever that is in a table with long tails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lapae.impute.gaussian import Gaussian
from lapae.impute.spread import SCORES
from lapae.predict.deviation import TINY

BEYOND = 0.5
"""How far the line continues beyond the values of a column, in units of their range: one value that is a hundred
standard deviations off says nothing about the others."""
FROM, FULLY = 0.5, 0.9
"""Quantiles of the distance of held-out rows from which on the standard deviation of the line counts, and counts
fully."""
MOST_TIMES = 1.5
"""Maximum number of times that it counts."""
AS_OTHERS = 2.0
"""The number a above."""


@dataclass(frozen=True)
class Line:
    """Straight line through a table of D features.

    Attributes:
        gaussian: means and covariances of the rows.
        low: lower ends of the line, (D,).
        high: upper ends, (D,).
        usual: the distance of held-out rows at the quantiles `FROM` and `FULLY`, (2,).
    """

    gaussian: Gaussian
    low: Tensor
    high: Tensor
    usual: Tensor

    @classmethod
    def fit(cls, rows: Tensor, held_out: Tensor) -> Line:
        """Fit the line to rows (n, D), and the usual distance to held-out ones (m, D) that lack as much as new rows."""
        rows = rows.double()
        low, high = (torch.where(rows.isnan(), end, rows) for end in (torch.inf, -torch.inf))
        low, high = low.min(0).values, high.max(0).values
        more = BEYOND * (high - low)
        line = cls(Gaussian.of(rows), low - more, high + more, rows.new_zeros(2))
        return replace(line, usual=torch.quantile(line(held_out)[2], rows.new_tensor([FROM, FULLY])))

    def __call__(self, x: Tensor, at: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the values of the line for missing values of rows x (n, D), its standard deviation as far as it counts
        (n, D), and the distance r (n,). The first two are 0 for observed values; with `at` (n,), they are those of one
        feature of each row, (n, 1)."""
        x, missing = x.double(), x.isnan()
        hidden = self.gaussian.hidden(x)
        gap = torch.where(missing, 0.0, torch.clamp(x, self.low, self.high) - self.gaussian.center)
        expected, precision = hidden.expected(gap), self.gaussian.precision
        told = (hidden.root.mT @ expected[..., None]).square().sum((1, 2))
        square = ((gap @ precision) * gap).sum(1) - told
        distance = (AS_OTHERS + square.clamp_min(0)) / (AS_OTHERS + (~missing).sum(1))
        low, high = self.usual
        times = MOST_TIMES * ((distance - low) / (high - low).clamp_min(TINY)).clamp(0, 1)[:, None]
        middle = torch.clamp(
            self.gaussian.center[hidden.index] + expected, self.low[hidden.index], self.high[hidden.index]
        )
        if at is not None:
            wanted = hidden.there & (hidden.index == at[:, None])
            return (wanted * middle).sum(1, keepdim=True), hidden.variance_of(at).sqrt() * times, distance
        deviation = hidden.left().diagonal(dim1=1, dim2=2).sqrt() * times
        made, wide = (hidden.put(torch.where(hidden.there, part, 0.0), x) for part in (middle, deviation))
        return made, wide, distance


def joined(points: Tensor, middle: Tensor, deviation: Tensor) -> Tensor:
    """Return quantiles (m, Q), at `SCORES`, at least as far out as both those of `points` (m, Q) and those of normal
    distributions around `middle` (m,) with `deviation` (m,). The median is that of `points`."""
    other = middle[:, None] + deviation[:, None] * SCORES.to(points)
    median = len(SCORES) // 2
    below, above = points[:, :median], points[:, median + 1 :]
    below = torch.minimum(below, other[:, :median])
    return torch.cat([below, points[:, median, None], torch.maximum(above, other[:, median + 1 :])], 1)
