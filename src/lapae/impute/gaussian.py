"""A Gaussian of D columns, fitted to rows with missing values by expectation maximisation.

It gives the expectation of the missing values of a row, given the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

ROUNDS, ANEW = 30, 8
"""Maximum number of rounds of expectation maximisation, from scratch and from the Gaussian for other row weights."""
SETTLED = 2e-3
"""Change of the covariance in a round below which the fit has converged."""
SHRINK, ENOUGH = 0.02, 20
"""Share of its variance that is added to each column, as few rows say little about many correlations. If there are more
than `ENOUGH` rows per column, the share falls in proportion."""
WORK = 4e8
"""Approximate number of multiply-adds of a round: in wide tables only some of the rows are used."""
CHUNK = 256


@dataclass(frozen=True)
class Hidden:
    """Missing values of B rows of D columns, given the others; k is the maximum number that a row lacks.

    Attributes:
        missing: which columns a row lacks, (B, D).
        index: these columns, in order, padded with other columns, (B, k).
        there: whether a row lacks them, (B, k).
        root: Cholesky factors of the precision of the missing values, (B, k, k).
        precision: that of all columns, (D, D).
    """

    missing: Tensor
    index: Tensor
    there: Tensor
    root: Tensor
    precision: Tensor

    @cached_property
    def gain(self) -> Tensor:
        """Missing values are expected at the centre plus gain @ gap, with gaps of 0 where missing, (B, k, D)."""
        onto = self.precision[self.index] * (self.there[:, :, None] & ~self.missing[:, None])
        return -torch.cholesky_solve(onto, self.root)

    def gain_of(self, rows: Tensor, j: int) -> Tensor:
        """Return `gain` of column j for some rows (q,) that lack it, (q, D), without those of the other columns."""
        index = self.index[rows]
        unit = (index == j).to(self.root.dtype)
        apart = torch.cholesky_solve(unit[..., None], self.root[rows])[..., 0]
        placed = torch.zeros_like(self.missing[rows], dtype=apart.dtype).scatter_(1, index, apart)
        return (placed @ -self.precision).masked_fill_(self.missing[rows], 0.0)

    @property
    def both(self) -> Tensor:
        """Whether a row lacks both of two columns, (B, k, k)."""
        return self.there[:, :, None] & self.there[:, None]

    def variance_of(self, j: Tensor) -> Tensor:
        """Return the variance of one of the columns that each row lacks, j (B,), given the others that it has, (B, 1);
        0 if the row does not lack it."""
        unit = (self.there & (self.index == j[:, None])).to(self.root.dtype)
        return (unit * torch.cholesky_solve(unit[..., None], self.root)[..., 0]).sum(1, keepdim=True)

    def expected(self, gap: Tensor) -> Tensor:
        """Return the expected differences of missing values from the centre (B, k), from the gaps (B, D) of others (0
        where missing)."""
        told = (gap @ -self.precision).gather(1, self.index) * self.there
        return torch.cholesky_solve(told[..., None], self.root)[..., 0]

    def left(self) -> Tensor:
        """Return the covariance of missing values given the others, (B, k, k)."""
        return torch.cholesky_inverse(self.root)

    def roots(self) -> tuple[Tensor, Tensor]:
        """Return Cholesky factors (B, k, k) of the correlations of missing values, given the others of a row, and the
        factors that turn their covariances into correlations (B, k)."""
        left = self.left()
        scale = left.diagonal(dim1=1, dim2=2).clamp_min(1e-9).rsqrt()
        eye = torch.eye(left.shape[1], dtype=left.dtype)
        return torch.linalg.cholesky(scale[:, :, None] * left * scale[:, None] + 1e-6 * eye), scale

    def put(self, values: Tensor, like: Tensor) -> Tensor:
        """Return values (B, k) at their columns, (B, D) as `like`; the other columns are undefined."""
        return torch.zeros_like(like).scatter(1, self.index, values)

    def place(self, rows: Tensor, j: int) -> Tensor:
        """Return the position of column j in `index` for some rows (q,) that lack it: (q,)."""
        return (self.index[rows] == j).to(torch.uint8).argmax(1)


@dataclass(frozen=True)
class Gaussian:
    """Means and covariances of D columns.

    Attributes:
        center: mean, (D,).
        covariance: covariance, (D, D).
        n_rows: number of rows that they were fitted to.
    """

    center: Tensor
    covariance: Tensor
    n_rows: int

    @classmethod
    def of(cls, z: Tensor, **more: Any) -> Self:
        """Fit to rows z (n, D), NaN where missing; `more` are fields of a subclass."""
        most = max(200, int(WORK / z.shape[1] ** 3))
        z = z[torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[:most]]
        known = ~z.isnan()
        seen = z.nan_to_num()
        center = seen.sum(0) / known.sum(0).clamp_min(1)
        variance = (torch.where(known, z - center, 0.0).square().sum(0) / known.sum(0).clamp_min(1)).clamp_min(1e-3)
        found = cls(center, torch.diag(variance), len(z), **more)
        for _ in range(ROUNDS if not known.all() else 1):
            found = found._round(z)
        return found

    def redrawn(self, z: Tensor, weight: Tensor) -> Self:
        """Return the Gaussian fitted to rows z (n, D) with these weights (n,), starting from this one."""
        found = self
        for _ in range(ANEW if z.isnan().any() else 1):
            before, found = found, found._round(z, weight)
            if (found.covariance - before.covariance).abs().max() < SETTLED:
                break
        return found

    def _round(self, z: Tensor, weight: Tensor | None = None) -> Self:
        """Run one round of expectation maximisation on rows (n, D) with weights (n,), default 1."""
        weight = torch.ones_like(z[:, 0]) if weight is None else weight * (len(z) / weight.sum())
        filled, extra = z.clone(), torch.zeros_like(self.covariance)
        for part, hidden in self._parts(z) if z.isnan().any() else ():
            filled[part] = self._expected(z[part], hidden)
            left = weight[part, None, None] * torch.where(hidden.both, hidden.left(), 0.0)
            place = hidden.index[:, :, None] * z.shape[1] + hidden.index[:, None]
            extra.view(-1).index_add_(0, place.flatten(), left.flatten())
        center = (weight[:, None] * filled).mean(0)
        gap = filled - center
        covariance = ((weight[:, None] * gap).T @ gap + extra) / len(z)
        share = SHRINK * min(1.0, ENOUGH * z.shape[1] / len(z))
        covariance = covariance + torch.diag(share * covariance.diagonal() + 1e-3)
        return replace(self, center=center, covariance=covariance, n_rows=len(z))

    @cached_property
    def precision(self) -> Tensor:
        """Inverse of the covariance, (D, D)."""
        return torch.linalg.inv(self.covariance.double()).to(self.covariance.dtype)

    def hidden(self, z: Tensor) -> Hidden:
        """Return the distributions of the missing values (NaN) of rows z (B, D), given their other values."""
        missing = z.isnan()
        count = missing.sum(1)
        index = missing.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : max(1, int(count.max()))]
        there = torch.arange(index.shape[1]) < count[:, None]
        both = there[:, :, None] & there[:, None]
        eye = torch.eye(index.shape[1], dtype=z.dtype)
        root = torch.linalg.cholesky(torch.where(both, self.precision[index[:, :, None], index[:, None]], eye))
        return Hidden(missing, index, there, root, self.precision)

    def _parts(self, z: Tensor) -> Iterator[tuple[slice, Hidden]]:
        for start in range(0, len(z), CHUNK):
            part = slice(start, start + CHUNK)
            yield part, self.hidden(z[part])

    def _expected(self, z: Tensor, hidden: Hidden) -> Tensor:
        """Return rows (B, D) of a part with expected values in place of missing ones."""
        missing = z.isnan()
        gap = torch.where(missing, 0.0, z - self.center)
        return torch.where(missing, hidden.put(self.center[hidden.index] + hidden.expected(gap), z), z)

    def fill(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """Return rows (n, D) with draws in place of missing ones, given the others of their rows."""
        out = z.clone()
        lacking = z.isnan().any(1).nonzero()[:, 0]
        some = z[lacking]
        for part, hidden in self._parts(some):
            root, scale = hidden.roots()
            normal = torch.randn(*some[part].shape, generator=generator, dtype=z.dtype).gather(1, hidden.index)
            noise = hidden.put((root @ normal[..., None])[..., 0] / scale, some[part])
            out[lacking[part]] = self._expected(some[part], hidden) + torch.where(some[part].isnan(), noise, 0.0)
        return out

    def noise(self, z: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """Draw n standard normal numbers (n, N, D) for each value of z (N, D). Those of a row are correlated like its
        missing values, given the others."""
        out = z.new_empty(n, *z.shape)
        for part, hidden in self._parts(z):
            normal = torch.randn(*z[part].shape, n, generator=generator, dtype=z.dtype)
            index = hidden.index[:, :, None].expand(-1, -1, n)
            out[:, part] = normal.scatter(1, index, hidden.roots()[0] @ normal.gather(1, index)).permute(2, 0, 1)
        return out
