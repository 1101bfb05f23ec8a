"""Missing values of rows that lie beyond the data, where no similar rows exist: linear extrapolation of the table.

A Gaussian fitted to the rows expects the missing values m of a row with observed values o at

    line = mean_m + C_mo C_oo⁻¹ (o - mean_o),    standard deviation² = diag(C_mm - C_mo C_oo⁻¹ C_om).

Similar rows are more informative if there are any. How far a row is from them is measured by its squared Mahalanobis
distance r = (o - mean_o)ᵀ C_oo⁻¹ (o - mean_o) / |o|, in units of its mean over held-out rows: the standard deviation of
the line counts not at all up to r = 1, once at r = 2, and twice from r = 3 on.
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
MOST_TIMES = 2.0
"""Maximum number of times that its standard deviation counts."""


@dataclass(frozen=True)
class Line:
    """Straight line through a table of D features.

    Attributes:
        gaussian: means and covariances of the rows.
        low: lower ends of the line, (D,).
        high: upper ends, (D,).
        usual: mean squared distance of held-out rows, ().
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
        line = cls(Gaussian.of(rows), low - more, high + more, rows.new_ones(()))
        return replace(line, usual=line(held_out)[2].mean().clamp_min(TINY))

    def __call__(self, x: Tensor, at: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the values of the line for missing values of rows x (n, D), its standard deviation as far as it counts
        (n, D), and the squared distance (n,). The first two are 0 for observed values; with `at` (n,), they are those
        of one feature of each row, (n, 1)."""
        x, missing = x.double(), x.isnan()
        hidden = self.gaussian.hidden(x)
        gap = torch.where(missing, 0.0, torch.clamp(x, self.low, self.high) - self.gaussian.center)
        expected, precision = hidden.expected(gap), self.gaussian.precision
        told = (hidden.root.mT @ expected[..., None]).square().sum((1, 2))
        square = ((gap @ precision) * gap).sum(1) - told
        distance = (square / (~missing).sum(1).clamp_min(1)).clamp_min(0) / self.usual
        far = (distance - 1).clamp(0, MOST_TIMES)[:, None]
        middle = torch.clamp(
            self.gaussian.center[hidden.index] + expected, self.low[hidden.index], self.high[hidden.index]
        )
        if at is not None:
            wanted = hidden.there & (hidden.index == at[:, None])
            return (wanted * middle).sum(1, keepdim=True), hidden.variance_of(at).sqrt() * far, distance
        deviation = hidden.left().diagonal(dim1=1, dim2=2).sqrt() * far
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
