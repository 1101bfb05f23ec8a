"""Gaussian copula of a table with missing values: how columns depend on each other, whatever their scales and tails.

Each value is replaced by the normal score of its rank in its column. A Gaussian is fitted to the scores by expectation
maximisation, which takes missing values as they are; it says what is expected of a missing score, given its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lapae.score.marginals import Marginals

ROUNDS, ANEW = 30, 8
"""Rounds of expectation maximisation from nothing, and from the copula of the same rows with other weights, at most."""
SETTLED = 2e-3
"""Change of the covariance in a round below which there is no further one."""
SHRINK, ENOUGH = 0.02, 20
"""Share of its variance that is added to each score, as few rows say little about many correlations; with more rows per
feature than `ENOUGH` the share falls in proportion."""
WORK = 4e8
"""Multiply-adds of a round, about: in wide tables some rows serve for all."""
CHUNK = 256
WIDEST, GRID = 4.0, 4000
"""Scores beyond which there are no values, and places between at which values are looked up."""


@dataclass(frozen=True)
class Copula:
    """Dependence of D features.

    Attributes:
        marginals: distribution of each feature.
        center: mean of the normal scores, (D,).
        covariance: covariance of the scores, (D, D).
        n_rows: rows that they were fitted to.
    """

    marginals: Marginals
    center: Tensor
    covariance: Tensor
    n_rows: int

    @classmethod
    def fit(cls, rows: Tensor) -> Copula:
        """Fit to a table (n, D); NaN is missing."""
        marginals = Marginals.fit(rows)
        z = marginals.normal(rows)
        most = max(200, int(WORK / z.shape[1] ** 3))
        z = z[torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[:most]]
        known = ~z.isnan()
        seen = z.nan_to_num()
        center = seen.sum(0) / known.sum(0).clamp_min(1)
        variance = (torch.where(known, z - center, 0.0).square().sum(0) / known.sum(0).clamp_min(1)).clamp_min(1e-3)
        found = cls(marginals, center, torch.diag(variance), len(z))
        for _ in range(ROUNDS if not known.all() else 1):
            found = found._round(z)
        return found

    def redrawn(self, z: Tensor, weight: Tensor) -> Copula:
        """Return the copula fitted to scores z (n, D) of rows with these weights (n,), starting from this one."""
        found = self
        for _ in range(ANEW if z.isnan().any() else 1):
            before, found = found, found._round(z, weight)
            if (found.covariance - before.covariance).abs().max() < SETTLED:
                break
        return found

    def _round(self, z: Tensor, weight: Tensor | None = None) -> Copula:
        """One round of expectation maximisation on scores (n, D) of rows with weights (n,), default 1."""
        weight = torch.ones_like(z[:, 0]) if weight is None else weight * (len(z) / weight.sum())
        filled, extra = z.clone(), torch.zeros_like(self.covariance)
        for part, hidden, gain in self._gains(z) if z.isnan().any() else ():
            filled[part] = self._expected(z[part], hidden, gain)
            gone = hidden.to(z.dtype)
            extra += torch.einsum("b,bi,bij,bj->ij", weight[part], gone, self._left(hidden, gain), gone)
        center = (weight[:, None] * filled).mean(0)
        gap = filled - center
        covariance = ((weight[:, None] * gap).T @ gap + extra) / len(z)
        share = SHRINK * min(1.0, ENOUGH * z.shape[1] / len(z))
        covariance = covariance + torch.diag(share * covariance.diagonal() + 1e-3)
        return Copula(self.marginals, center, covariance, len(z))

    def _gains(self, z: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield a part of the rows, what is missing in it (B, D) and its gains (B, D, D): what is missing is expected
        at the centre plus gap @ gain, with gaps of 0 where missing."""
        eye = torch.eye(z.shape[1], dtype=z.dtype)
        for start in range(0, len(z), CHUNK):
            part = slice(start, start + CHUNK)
            hidden = z[part].isnan()
            both = hidden[:, :, None] | hidden[:, None]
            root = torch.linalg.cholesky(torch.where(both, eye, self.covariance))
            onto = torch.where(hidden[:, :, None], 0.0, self.covariance)
            yield part, hidden, torch.cholesky_solve(onto, root)

    def _expected(self, z: Tensor, hidden: Tensor, gain: Tensor) -> Tensor:
        """Return scores (B, D) of a part with what is expected in place of missing ones."""
        gap = torch.where(hidden, 0.0, z - self.center)
        return torch.where(hidden, self.center + (gap[:, None] @ gain)[:, 0], z)

    def _left(self, hidden: Tensor, gain: Tensor) -> Tensor:
        """Return the covariance (B, D, D) that is left if the others of a row are known."""
        return self.covariance - torch.where(hidden[:, None], 0.0, self.covariance) @ gain

    def fill(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """Return scores (n, D) with draws in place of missing ones, given the others of their rows."""
        out = z.clone()
        lacking = z.isnan().any(1).nonzero()[:, 0]
        some = z[lacking]
        for part, hidden, gain in self._gains(some):
            root, scale = self._roots(hidden, gain)
            normal = torch.randn(*hidden.shape, 1, generator=generator, dtype=z.dtype)
            noise = (root @ normal)[..., 0] / scale
            out[lacking[part]] = self._expected(some[part], hidden, gain) + torch.where(hidden, noise, 0.0)
        return out

    def gains(self, z: Tensor) -> Tensor:
        """Return gains (n, D, D): what is missing of the scores z (n, D) is expected at the centre plus gap @ gain."""
        return torch.cat([gain for _, _, gain in self._gains(z)])

    def values(self, j: int, scores: Tensor) -> Tensor:
        """Return values of feature j with these scores, within those of the table."""
        place = ((scores + WIDEST) * (GRID / (2 * WIDEST))).clamp(0, GRID - 1)
        low = place.long()
        at = self._grid[j]
        return at[low] + (place - low) * (at[low + 1] - at[low])

    @cached_property
    def _grid(self) -> Tensor:
        """(D, `GRID` + 1): values at scores from -`WIDEST` to `WIDEST`."""
        ranks = self.marginals.ranks
        scores, wanted = self.marginals.normal(ranks.T).T.numpy(), np.linspace(-WIDEST, WIDEST, GRID + 1)
        rows = [np.interp(wanted, *_means(theirs, x)) for theirs, x in zip(scores, ranks.numpy(), strict=True)]
        return torch.from_numpy(np.stack(rows)).to(ranks.dtype)

    def noise(self, z: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """Draw n standard normal numbers (n, N, D) for each score of z (N, D), those of a row correlated as its missing
        scores are, given the others."""
        out = z.new_empty(n, *z.shape)
        for part, hidden, gain in self._gains(z):
            normal = torch.randn(len(hidden), z.shape[1], n, generator=generator, dtype=z.dtype)
            out[:, part] = (self._roots(hidden, gain)[0] @ normal).permute(2, 0, 1)
        return out

    def _roots(self, hidden: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """Return Cholesky factors (B, D, D) of the correlations of missing scores, given the others of a row, and what
        makes correlations of their covariances (B, D); those of others are 1."""
        eye = torch.eye(hidden.shape[1], dtype=gain.dtype)
        left = torch.where(hidden[:, :, None] & hidden[:, None], self._left(hidden, gain), eye)
        scale = left.diagonal(dim1=1, dim2=2).clamp_min(1e-9).rsqrt()
        return torch.linalg.cholesky(scale[:, :, None] * left * scale[:, None] + 1e-6 * eye), scale


def _means(scores: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct scores (k,), increasing, and the values (k,) that have them."""
    known = ~np.isnan(values)
    if not known.any():
        return np.zeros(1), np.zeros(1)
    return np.unique(scores[known]), np.unique(values[known])
