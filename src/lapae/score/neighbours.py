"""Distances to training rows on several scales: to the nearest of all, and to the nearest of small groups.

A group of a few rows spans the whole distribution coarsely, so that a row is far from most groups only if it is far
from where most rows are, however many outliers of its own kind there are in the training data; the nearest of all
tell on what surface rows lie. Both are needed: outliers may be in the training data, or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lapae.networks.threads import one_thread
from lapae.score.nearest import FEWEST_GROUPS, Search

BANK = 4000
"""Maximum number of training rows to measure distances to."""
NEAREST = 5
GROUP = 8
GRAIN = 0.3
"""Distances that are told apart, in units of the mean distance of rows to their neighbours: rounded values and copies
lie at 0 from each other, which is no less ordinary than a little."""
CHUNK = 512
FEW_VALUES = 2**19
"""Size of a bank up to which one thread measures: several would gain a third, and lose tenfold on a busy machine."""
TINY = 1e-8
SAME = 1e-4
"""Difference of values up to which two rows are one: predictions of one row in 32 and 64 bits differ by less."""
MANY_GROUPS = 128
"""Groups from which on the nearest are looked for in groups of groups."""


@dataclass(frozen=True)
class Near:
    """Distances of B rows to training rows."""

    near: Tensor
    """(B,): log of the mean distance to the nearest."""
    groups: Tensor | None
    """(B,): mean log distance to the nearest of each group; None if it was not asked for."""
    ratio: Tensor
    """(B,): log of the local outlier factor: distance to the nearest rows relative to their own nearest distances."""
    gap: Tensor | None
    """(B, D): mean squared difference to the nearest, feature by feature; None if it was not asked for."""


@dataclass(frozen=True)
class NearestRows:
    """Training rows to find neighbours in.

    Attributes:
        rows: (R, D).
        own: `Near.near` of each of them among the others, (R,).
    """

    rows: Tensor
    own: Tensor

    @classmethod
    def fit(cls, rows: Tensor) -> NearestRows:
        """Take rows (n, D), at most `BANK` of them."""
        rows = rows[drawn(len(rows))]
        empty = cls(rows, torch.zeros(len(rows), dtype=rows.dtype))
        return cls(rows, empty.measure(rows).near)

    def measure(self, x: Tensor, own: Tensor | None = None, *, groups: bool = True, gaps: bool = True) -> Near:
        """Measure rows x (B, D). A row of the bank that equals x is left out once: it is compared with others.

        Args:
            x: the rows.
            own: (B,) which row of the bank was made from each of x, below 0 for none: it is left out as well, so that
                held-out rows are measured as new ones are.
            groups: whether to measure the distances to groups.
            gaps: whether to measure the differences feature by feature.
        """
        if torch.compiler.is_exporting():  # a graph takes any number of rows at once
            return self._measure(x, None, groups, gaps)
        owners = [None] * -(-len(x) // CHUNK) if own is None else own.split(CHUNK)
        with one_thread(when=self.rows.numel() <= FEW_VALUES):
            parts = [self._block(part, at, groups, gaps) for part, at in zip(x.split(CHUNK), owners, strict=True)]
        every = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Near)}
        joined: dict[str, Any] = {n: None if v[0] is None else torch.cat(v) for n, v in every.items()}
        return Near(**joined)

    def _factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the bank as a factor of distances (D + 2, R), distances of its rows to their neighbours (R,), and the
        distance that is told apart."""
        rows, own = self.rows, self.own.exp()
        right = torch.cat([rows, torch.ones_like(rows[:, :1]), rows.square().sum(1, keepdim=True)], 1)
        return right.T, own, GRAIN * own.mean()

    @cached_property
    def _kept_factors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._factors()

    @cached_property
    def _search(self) -> Search | None:
        n_groups = len(self.rows) // GROUP
        if n_groups < FEWEST_GROUPS or self.rows.dtype != torch.float64:
            return None
        return Search.of(self.rows, n_groups, TINY)

    def _block(self, x: Tensor, own: Tensor | None, groups: bool, gaps: bool) -> Near:
        """Measure one batch by a search, and in the plain way where this does not decide."""
        if own is not None or self._search is None or x.dtype != torch.float64:
            return self._measure(x, own, groups, gaps)
        found = self._search(x, NEAREST + 1, groups=groups)
        square, index, same = found.square[:, :-1], found.index[:, :-1], torch.zeros(len(x), 1, dtype=torch.bool)
        # a squared distance is off by a few roundings of the squares that it is made of
        close = found.square[:, 0] <= 2 * SAME**2 * x.shape[1] + 2.0**-48 * x.square().sum(1)
        if close.any():
            same[close] = self._is_same(x[close], found.index[close])
            square = torch.where(same, found.square[:, 1:], square)
            index = torch.where(same, found.index[:, 1:], index)
        bulk = None if found.groups is None else 0.5 * found.groups
        _, theirs, grain = self._kept_factors
        near = self._near(x, square, index, bulk, theirs, grain, gaps)
        # the group that a row of the bank itself is in has another nearest row
        again = ~found.decided if bulk is None else ~found.decided | same[:, 0]
        if again.any():
            plain = self._measure(x[again], None, groups, gaps)
            for field in fields(Near):
                values = getattr(near, field.name)
                if values is not None:
                    values[again] = getattr(plain, field.name)
        return near

    def _is_same(self, x: Tensor, index: Tensor) -> Tensor:
        """Return whether rows x (B, D) are the rows of the bank that are nearest, (B, 1)."""
        return (x - self.rows[index[:, 0]]).abs().amax(1, keepdim=True) <= SAME

    def _near(
        self, x: Tensor, square: Tensor, index: Tensor, bulk: Tensor | None, theirs: Tensor, grain: Tensor, gaps: bool
    ) -> Near:
        away = square.to(x).sqrt().mean(1)
        gap = (x[:, None] - self.rows[index]).square().mean(1) if gaps else None
        return Near(away.log(), bulk, (away + grain).log() - (theirs[index] + grain).log().mean(1), gap)

    def _measure(self, x: Tensor, own: Tensor | None, groups: bool, gaps: bool) -> Near:
        """Measure one batch in the plain way, as a graph does. The nearest rows are in the groups with the least
        distances: few have to be sorted."""
        n = len(self.rows)
        # what is made while a graph is traced belongs to the graph, and is not kept
        right, theirs, grain = self._factors() if torch.compiler.is_exporting() else self._kept_factors
        n_groups = max(1, n // GROUP)
        size = -(-n // n_groups)
        # |x|² + |r|² - 2 x·r, rounded, so that neighbours at one distance are told apart in the same way in every batch
        left = torch.cat([-2 * x, x.square().sum(1, keepdim=True), torch.ones_like(x[:, :1])], 1)
        square = (left @ right).float().clamp_min_(TINY)
        if own is not None:
            within = own >= 0
            square[within, own[within]] = torch.inf
        if n < n_groups * size:
            square = torch.nn.functional.pad(square, (0, n_groups * size - n), value=torch.inf)
        square = square.unflatten(1, (size, n_groups))  # row i is in group i modulo their number
        least = square.amin(1)
        k = min(NEAREST + 1, n)
        chosen = smallest(least, min(k, n_groups))
        some = square.gather(2, chosen[:, None].expand(-1, size, -1))
        nearest, place = some.flatten(1).topk(k, largest=False)
        member = place // some.shape[2]
        index = member * n_groups + chosen.gather(1, place % some.shape[2])
        # a row that is x itself is left out
        first, group = index[:, :1], index[:, :1] % n_groups
        same = self._is_same(x, first) & (n > 1)
        if k > 1:
            nearest = torch.where(same, nearest[:, 1:], nearest[:, :-1])
            index = torch.where(same, index[:, 1:], index[:, :-1])
        bulk = None
        if groups:
            others = square.gather(2, group[:, None].expand(-1, size, -1))[:, :, 0]
            others = others.masked_fill(torch.arange(size, device=x.device) == member[:, :1], torch.inf)
            least = torch.where(same, least.scatter(1, group, others.amin(1, keepdim=True)), least)
            bulk = 0.5 * torch.where(least.isinf(), TINY, least.to(x)).log().mean(1)
        return self._near(x, nearest, index, bulk, theirs, grain, gaps)


def smallest(values: Tensor, k: int) -> Tensor:
    """Return where the k smallest of each row of values (B, G) are, in order: (B, k), as `topk` has them.

    The smallest are in the groups whose least value is least, which takes a third of the time. Rows with values that
    are equal are left to `topk`, so that these are chosen as they were when a model was calibrated.
    """
    n = values.shape[1]
    if n < MANY_GROUPS or torch.compiler.is_exporting():
        return values.topk(k, largest=False).indices
    n_groups = math.isqrt((k + 1) * n)
    size = -(-n // n_groups)
    padded = torch.nn.functional.pad(values, (0, n_groups * size - n), value=torch.inf)
    padded = padded.unflatten(1, (size, n_groups))
    groups = padded.amin(1).topk(k + 1, largest=False).indices
    some = padded.gather(2, groups[:, None].expand(-1, size, -1))
    found, place = some.flatten(1).topk(k + 1, largest=False)
    index = (place // (k + 1) * n_groups + groups.gather(1, place % (k + 1)))[:, :k]
    tied = ~(found[:, 1:] > found[:, :-1]).all(1)
    if tied.any():
        index[tied] = values[tied].topk(k, largest=False).indices
    return index


def drawn(n: int) -> Tensor:
    """Return which of n rows are in a bank, in its order."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:BANK]


def places(n: int) -> Tensor:
    """Return where each of n rows is in a bank of them: (n,), -1 for those that are not in it."""
    found = torch.full((n,), -1)
    chosen = drawn(n)
    found[chosen] = torch.arange(len(chosen))
    return found
