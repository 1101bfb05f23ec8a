"""Distances to training rows on several scales: to the nearest of all rows, and to the nearest of small groups.

A group of a few rows covers the whole distribution coarsely, so that a row is far from most groups only if it is far
from where most rows are, even if the training data contain many outliers of the same kind. The nearest of all rows show
on which surface rows lie. Both are needed, as the training data may or may not contain outliers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lapae.networks.threads import one_thread
from lapae.score.nearest import FEWEST, Search

BANK = 4000
"""Maximum number of training rows to measure distances to."""
NEAREST = 5
GROUP = 8
GROUPED = 1024
"""Maximum number of rows in groups: the result is a mean over 128 groups."""
TOGETHER = 8
"""Number of distances that are multiplied before the logarithm is taken: each is between 1e-8 and 1e34."""
GRAIN = 0.3
"""Resolution of distances, in units of the mean distance of rows to their neighbours: rounded values and copies are at
distance 0 from each other, which should mean no more than a small distance."""
CHUNK = 2048
GROUPS_AT_ONCE = 256
"""Rows whose distances to groups are computed at a time."""
PLAIN = 512
"""Rows whose distances to all rows of a bank are in memory at a time."""
FEW_VALUES = 2**19
"""Size of a bank up to which one thread is used: several would gain a third, but lose tenfold on a busy machine."""
TINY = 1e-8
SAME = 1e-4
"""Difference of values up to which two rows are the same: predictions of a row in 32 and 64 bits differ by less."""
MANY_GROUPS = 128
"""Number of groups from which on the nearest are searched in groups of groups."""


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
    """Training rows among which neighbours are searched.

    Attributes:
        rows: (R, D).
        own: `Near.near` of each of them among the others, (R,).
        grouped: number of rows, from the first one, that are in groups; default: all.
    """

    rows: Tensor
    own: Tensor
    grouped: int | None = None

    @classmethod
    def fit(cls, rows: Tensor) -> NearestRows:
        """Keep rows (n, D), at most `BANK` of them."""
        rows = rows[drawn(len(rows))]
        empty = cls(rows, torch.zeros(len(rows), dtype=rows.dtype))
        return cls(rows, empty.measure(rows, groups=False, gaps=False).near, min(GROUPED, len(rows)))

    def measure(self, x: Tensor, own: Tensor | None = None, *, groups: bool = True, gaps: bool = True) -> Near:
        """Measure rows x (B, D). One row of the bank that equals x is left out: no row is compared to itself.

        Args:
            x: the rows.
            own: (B,) index of the row of the bank that was made from each of x, below 0 for none. It is left out as
                well, so that held-out rows are measured in the same way as new ones.
            groups: whether to measure the distances to groups.
            gaps: whether to measure the differences feature by feature.
        """
        if torch.compiler.is_exporting():  # a graph takes any number of rows at once
            return self._measure(x, None, groups, gaps)
        owners = [None] * -(-len(x) // CHUNK) if own is None else own.split(CHUNK)
        with one_thread(when=self.rows.numel() <= FEW_VALUES):
            batches = zip(x.split(CHUNK), owners, strict=True)
            return _joined([self._block(part, at, groups, gaps) for part, at in batches])

    def _factors(self) -> Tensor:
        """Return the bank as a factor of distances, (R, D + 2)."""
        rows = self.rows
        return torch.cat([rows, torch.ones_like(rows[:, :1]), rows.square().sum(1, keepdim=True)], 1)

    @cached_property
    def _kept_factors(self) -> Tensor:
        return self._factors()

    def _squares(self, x: Tensor, own: Tensor | None, n: int) -> Tensor:
        """Return |x|² + |r|² - 2 x·r to the first n rows, (n, B). They are rounded before they are compared, so that
        ties between neighbours are resolved in the same way in every batch."""
        # tensors made while a graph is traced belong to the graph, and are not kept
        right = self._factors() if torch.compiler.is_exporting() else self._kept_factors
        left = torch.cat([-2 * x, x.square().sum(1, keepdim=True), torch.ones_like(x[:, :1])], 1)
        square = right[:n] @ left.T
        if own is not None:
            within = (own >= 0) & (own < n)
            square[own[within], within.nonzero()[:, 0]] = torch.inf
        return square

    def _own_distances(self) -> tuple[Tensor, Tensor]:
        """Return the logs of the distances of the rows to their neighbours, (R,), and the resolution of distances,
        which is added to them."""
        own = self.own.exp()
        grain = GRAIN * own.mean()
        return (own + grain).log(), grain

    @cached_property
    def _kept_distances(self) -> tuple[Tensor, Tensor]:
        return self._own_distances()

    @cached_property
    def _search(self) -> Search | None:
        if len(self.rows) < FEWEST or self.rows.dtype != torch.float64:
            return None
        return Search.of(self.rows, TINY)

    def _block(self, x: Tensor, own: Tensor | None, groups: bool, gaps: bool) -> Near:
        """Measure one batch by a search, and rows that it leaves undecided in the plain way."""
        if own is not None or self._search is None or x.dtype != torch.float64:
            owners = [None] * -(-len(x) // PLAIN) if own is None else own.split(PLAIN)
            plain = [self._measure(part, at, groups, gaps) for part, at in zip(x.split(PLAIN), owners, strict=True)]
            return _joined(plain)
        found = self._search(x, NEAREST + 1)
        square, index = found.square[:, :-1], found.index[:, :-1]
        close = _may_be_same(found.square[:, 0], x, found.length)
        if close.any():
            same = torch.zeros(len(x), 1, dtype=torch.bool)
            same[close] = self._is_same(x[close], found.index[close])
            square = torch.where(same, found.square[:, 1:], square)
            index = torch.where(same, found.index[:, 1:], index)
        again = (~found.decided).nonzero()[:, 0]
        for some in again.split(PLAIN) if len(again) else ():
            square[some], index[some] = self._nearest(x[some], self._squares(x[some], None, len(self.rows)))
        bulk = None
        if groups:
            parts = x.split(GROUPS_AT_ONCE)
            bulk = torch.cat([self._bulk(part, self._squares(part, None, self._n_grouped)) for part in parts])
        return self._near(x, square, index, bulk, gaps)

    def _is_same(self, x: Tensor, index: Tensor) -> Tensor:
        """Return whether rows x (B, D) are the rows of the bank that are nearest, (B, 1)."""
        return (x - self.rows[index[:, 0]]).abs().amax(1, keepdim=True) <= SAME

    def _near(self, x: Tensor, square: Tensor, index: Tensor, bulk: Tensor | None, gaps: bool) -> Near:
        theirs, grain = self._own_distances() if torch.compiler.is_exporting() else self._kept_distances
        away = square.to(x).sqrt().mean(1)
        gap = (x[:, None] - self.rows[index]).square().mean(1) if gaps else None
        return Near(away.log(), bulk, (away + grain).log() - theirs[index].mean(1), gap)

    def _measure(self, x: Tensor, own: Tensor | None, groups: bool, gaps: bool) -> Near:
        """Measure one batch in the plain way, as a graph does."""
        every = self._squares(x, own, len(self.rows))
        square, index = self._nearest(x, every)
        return self._near(x, square, index, self._bulk(x, every[: self._n_grouped]) if groups else None, gaps)

    @property
    def _n_grouped(self) -> int:
        return len(self.rows) if self.grouped is None else self.grouped

    def _nearest(self, x: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
        """Return the squared distances to the nearest rows (B, k) and their indices, from those to all rows, (R, B).
        They are in the groups with the smallest distances, so few have to be sorted."""
        n = len(self.rows)
        n_groups = max(1, n // GROUP)
        size = -(-n // n_groups)
        square = _in_groups(square.float().clamp_min_(TINY), n_groups)
        least = square.amin(0).T
        k = min(NEAREST + 1, n)
        chosen = smallest(least.contiguous(), min(k, n_groups))
        some = square.permute(2, 0, 1).gather(2, chosen[:, None].expand(-1, size, -1))
        nearest, place = least_of(some.flatten(1), k)
        index = place // some.shape[2] * n_groups + chosen.gather(1, place % some.shape[2])
        if k > 1:  # a row that is x itself is left out
            same = self._is_same(x, index)
            nearest = torch.where(same, nearest[:, 1:], nearest[:, :-1])
            index = torch.where(same, index[:, 1:], index[:, :-1])
        return nearest, index

    def _bulk(self, x: Tensor, square: Tensor) -> Tensor:
        """Return the mean log distance to the nearest row of each group, (B,), from the squared distances to the rows
        of the groups, (n, B); a row that is x itself is left out."""
        n = len(square)
        n_groups = max(1, n // GROUP)
        square = _in_groups(square, n_groups)
        least = square.amin(0).float().clamp_min_(TINY)  # (G, B)
        if n > 1 and (torch.compiler.is_exporting() or bool(_may_be_same(least.amin(0), x, x.square().sum(1)).any())):
            nearest, group = least.min(0)
            its = square.gather(1, group.expand(len(square), 1, -1))[:, 0].float().clamp_min_(TINY)  # (size, B)
            member = its.argmin(0)
            same = self._is_same(x, (member * n_groups + group)[:, None])[:, 0]
            others = its.masked_fill(torch.arange(len(its), device=x.device)[:, None] == member, torch.inf).amin(0)
            least = least.scatter(0, group[None], torch.where(same, others, nearest)[None])
        if n <= 2:  # the row itself and the one it was made from are left out: none may be left
            least = torch.where(least.isinf(), TINY, least)
        return 0.5 * _mean_log(least.to(x))


def _may_be_same(square: Tensor, x: Tensor, length: Tensor) -> Tensor:
    """Return whether rows at squared distances (B,) from x (B, D), of squared lengths (B,), may be the same as x: such
    a distance has an error of a few roundings of the squares that it is computed from."""
    return square <= 2 * SAME**2 * x.shape[1] + 2.0**-48 * length


def _in_groups(square: Tensor, n_groups: int) -> Tensor:
    """Return squared distances to n rows, (n, B), in groups: (size, G, B), infinite if a group lacks a row. Row i is in
    group i modulo the number of groups."""
    if lacking := -len(square) % n_groups:
        square = torch.nn.functional.pad(square, (0, 0, 0, lacking), value=torch.inf)
    return square.unflatten(0, (-1, n_groups))


def _mean_log(values: Tensor) -> Tensor:
    """Return the mean (B,) of the logs of values (G, B), from logs of products of a few, in a fraction of the time."""
    n = len(values)
    if lacking := -n % TOGETHER:
        values = torch.nn.functional.pad(values, (0, 0, 0, lacking), value=1.0)
    return values.unflatten(0, (-1, TOGETHER)).prod(1).log().sum(0) / n


def _joined(parts: list[Near]) -> Near:
    if len(parts) == 1:
        return parts[0]
    every = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Near)}
    joined: dict[str, Any] = {n: None if v[0] is None else torch.cat(v) for n, v in every.items()}
    return Near(**joined)


def least_of(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k smallest of each row of values (B, G) in increasing order, and where they are: (B, k) each.

    Of equal values the first comes first, as in an exported graph; `topk` has them in any order.
    """
    n = values.shape[1]
    found = values.topk(min(k + 1, n), largest=False)
    if not torch.compiler.is_exporting():
        tied = ~(found.values[:, 1:] > found.values[:, :-1]).all(1)
        if tied.any():
            found.indices[tied] = values[tied].sort(dim=1, stable=True).indices[:, : found.indices.shape[1]]
    return found.values[:, :k], found.indices[:, :k]


def smallest(values: Tensor, k: int) -> Tensor:
    """Return the indices of the k smallest of each row of values (B, G), in order, (B, k): those of `least_of`.

    Only the groups with the smallest minimum are searched, which takes a third of the time.
    """
    n = values.shape[1]
    if n < MANY_GROUPS or torch.compiler.is_exporting():
        return least_of(values, k)[1]
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
        index[tied] = least_of(values[tied], k)[1]
    return index


def drawn(n: int) -> Tensor:
    """Return the indices of those of n rows that are in a bank, in its order."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:BANK]


def places(n: int) -> Tensor:
    """Return the index of each of n rows in their bank: (n,), -1 for those that are not in it."""
    found = torch.full((n,), -1)
    chosen = drawn(n)
    found[chosen] = torch.arange(len(chosen))
    return found
