"""Distributions of missing values: how far out a value lies in its distribution, and how far out intervals end.

For most imputers this is a normal distribution with one standard deviation for each side. The distribution of a value
with donors has the shape of the donors' values: their weighted quantiles, each smoothed by a normal kernel whose width
is a share of their standard deviation. So the distribution is as skewed, bounded or bimodal as the values of similar
rows, and as wide: narrow if the observed values determine this one, wide if the best predictor is missing, too.

A value is measured by its normal score, the z with F(value) = Φ(z). Conformal radii are quantiles of the scores of
hidden values (distributional conformal prediction, Chernozhukov, Wüthrich & Zhu 2021), and intervals end where the
distribution has these scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SCORES = torch.linspace(-2.6, 2.6, 27, dtype=torch.float64)
"""Normal scores of the quantiles that describe the shape of a distribution."""
KERNEL = 0.3
"""Standard deviation of the kernels, as a share of that of the distribution."""
OUTER = 6
"""Rank from either end of the quantiles whose distance is the width of a distribution: its 90 % interval, nearly."""
EDGE = 4.0
"""Number of standard deviations of the kernel beyond the last quantile from which on scores grow linearly."""
STEPS, CLOSE = 60, 1e-11
"""Maximum number of steps in which a value is searched, and difference of its score at which it is found."""
_ENDS = (SCORES[1:] + SCORES[:-1]) / 2
_UPTO = torch.cat([torch.zeros(1), torch.special.ndtr(_ENDS), torch.ones(1)])
_MASS = _UPTO.diff()


@dataclass(frozen=True)
class Spread:
    """Distributions of values (n, *features).

    Attributes:
        down: standard deviations below the best guess, (n, *features).
        up: standard deviations above it, (n, *features).
        shaped: which of them have a shape of their own, (n, *features); None if none has.
        points: quantiles of these m distributions, minus the best guess, (m, Q).
    """

    down: Tensor
    up: Tensor
    shaped: Tensor | None = None
    points: Tensor | None = None

    def width(self) -> Tensor:
        """Return the widths of the distributions, in standard deviations if they are normal (n, *features)."""
        out = ((self.down + self.up) / 2).double()
        if self.shaped is not None and self.points is not None:
            between = (self.points[:, -OUTER] - self.points[:, OUTER - 1]) / (2 * float(SCORES[-OUTER]))
            out[self.shaped] = (between.square() + (KERNEL * self.up[self.shaped]).square()).sqrt()
        return out

    def score(self, gap: Tensor) -> Tensor:
        """Return the normal scores of values at gaps (n, *features) from their best guesses; NaN where gaps are NaN."""
        out = gap / torch.where(gap < 0, self.down, self.up)
        if self.shaped is not None and self.points is not None:
            known = self.shaped & ~gap.isnan()
            out[known] = score(gap[known], self.points[known[self.shaped]], KERNEL * self.up[known])
        return out

    def reach(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far below and above the best guesses the scores are -low and high (*features)."""
        down, up = self.down.double() * low, self.up.double() * high
        if self.shaped is not None and self.points is not None:
            width = (KERNEL * self.up[self.shaped]).repeat(2)
            wanted = torch.cat([end.expand(self.shaped.shape)[self.shaped] for end in (-low, high)])
            ends = value(wanted, self.points.repeat(2, 1), width).chunk(2)
            down[self.shaped], up[self.shaped] = -ends[0], ends[1]
        return down, up


def score(value: Tensor, points: Tensor, width: Tensor) -> Tensor:
    """Return the normal scores of values (m,) in distributions of quantiles (m, Q) and kernels of `width` (m,)."""
    low, high = points[:, 0] - EDGE * width, points[:, -1] + EDGE * width
    inside = torch.maximum(torch.minimum(value, high), low)
    return _within(inside, points, width) + (value - inside) / width


def value(score: Tensor, points: Tensor, width: Tensor) -> Tensor:
    """Return the values (m,) of normal scores (m,), see `score`.

    Scores increase almost linearly with values, so that secants find them in a few steps (the rule of Illinois).
    """
    below, above = points[:, 0] - EDGE * width, points[:, -1] + EDGE * width
    lower, upper = (_within(end, points, width) - score for end in (below, above))
    beyond = -upper.clamp_max(0) - lower.clamp_min(0)
    found, side = torch.where(upper <= 0, above, below), torch.zeros_like(score)
    active = ((lower < 0) & (upper > 0)).nonzero()[:, 0]
    for _ in range(STEPS if len(active) else 0):
        a, b, fa, fb = below[active], above[active], lower[active], upper[active]
        middle = a - fa * ((b - a) / (fb - fa))
        gap = _within(middle, points[active], width[active]) - score[active]
        found[active] = middle
        high, before = gap > 0, side[active]
        below[active], lower[active] = (
            torch.where(high, a, middle),
            torch.where(high, fa * (1 - 0.5 * (before > 0)), gap),
        )
        above[active], upper[active] = (
            torch.where(high, middle, b),
            torch.where(high, gap, fb * (1 - 0.5 * (before < 0))),
        )
        side[active] = torch.where(high, 1.0, -1.0).to(side)
        active = active[gap.abs() > CLOSE]
        if not len(active):
            break
    return found + beyond * width


def _within(value: Tensor, points: Tensor, width: Tensor) -> Tensor:
    share = torch.special.ndtr((value[:, None] - points) / width[:, None]).to(_MASS) @ _MASS
    return torch.special.ndtri(share.clamp(1e-15, 1 - 1e-15))
