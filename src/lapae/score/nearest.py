"""Search for the nearest rows of a bank: found in single precision, decided in double.

One matrix product gives all distances |x|² + |r|² - 2 x·r, in float32 if only the nearest are wanted, which takes half
the time. Rows of the bank are in small groups, and only the groups with the least distances are looked into; a
distance and the place that it belongs to share 32 bits, so that one partial sort finds both. A few more candidates
than wanted are measured again in float64. The error of the product has a bound: where what was left out could be nearer
than what was found, or distances are equal, the row counts as undecided and is measured by the plain way
(`NearestRows.measure`), so that both ways give the same neighbours.

Shapes: B rows x (B, D), a bank of R rows, G groups; k neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

IN_CACHE = 128
"""Rows whose distances are computed at a time: to some thousand rows of a bank they fit into the cache of a core."""
FEWEST_GROUPS = 32
"""Groups below which the plain way is as fast."""
TOGETHER = 8
"""Distances that are multiplied before the logarithm is taken: each is between 1e-8 and 1e34."""


@dataclass(frozen=True)
class Found:
    """The nearest rows to B rows x.

    Attributes:
        square: squared distances, increasing, (B, k), float32.
        index: where they are in the bank, (B, k).
        groups: mean log of the squared distance to the nearest row of each group, (B,); None if it was not asked for.
        decided: (B,) bool: False where the others are not to be relied on.
    """

    square: Tensor
    index: Tensor
    groups: Tensor | None
    decided: Tensor


@dataclass(frozen=True)
class Search:
    """A bank made ready to be searched.

    Attributes:
        rows: the bank, (R, D).
        n_groups: row i of the bank is in group i modulo this number.
        right: factor of squared distances, (n_groups * size, D + 2), infinite where the last groups lack a row.
        longest: length of the longest row.
        least: smallest squared distance; smaller ones count as this.
    """

    rows: np.ndarray
    n_groups: int
    right: dict[torch.dtype, Tensor]
    longest: float
    least: float

    @classmethod
    def of(cls, rows: Tensor, n_groups: int, least: float) -> Search:
        """Prepare a bank (R, D), float64, in groups; see the attributes."""
        square = rows.square().sum(1, keepdim=True)
        right = torch.cat([rows, torch.ones_like(square), square], 1)
        padding = right.new_zeros(-len(rows) % n_groups, right.shape[1])
        padding[:, -1] = torch.inf
        right = torch.cat([right, padding])
        factors = {torch.float64: right, torch.float32: right.float()}
        return cls(rows.numpy(), n_groups, factors, float(square.max().sqrt()), least)

    def __call__(self, x: Tensor, k: int, *, groups: bool) -> Found:
        """Find the k nearest rows of the bank to rows x (B, D), float64.

        Args:
            x: the rows.
            k: how many to find.
            groups: whether to measure the distance to the nearest of each group, which takes float64.
        """
        dtype = torch.float64 if groups else torch.float32
        most, values, n = k + 2, x.numpy(), len(x)
        length = np.einsum("bd,bd->b", values, values)
        left = torch.ones(n, x.shape[1] + 2, dtype=dtype)
        left[:, :-2], left[:, -2] = -2 * x, torch.from_numpy(length)
        size = len(self.right[dtype]) // self.n_groups
        near, members = np.empty((n, most), np.int64), np.empty((n, most * size), np.float32)
        beyond, bulk = np.empty(n, np.float32), torch.empty(n if groups else 0, dtype=torch.float64)
        for start in range(0, n, IN_CACHE):
            part = slice(start, start + IN_CACHE)
            square = (self.right[dtype] @ left[part].T).unflatten(0, (size, self.n_groups))
            of_groups = square.amin(0).float().clamp_min_(self.least)  # (G, b)
            if groups:
                bulk[part] = _mean_log(of_groups)
            near[part], beyond[part] = _smallest(of_groups.numpy().T, most)
            rows = np.arange(len(near[part]))[:, None]
            members[part] = square.numpy()[:, near[part], rows].transpose(1, 2, 0).reshape(len(rows), -1)
        np.maximum(members, np.float32(self.least), out=members)
        place, within = _smallest(members, most)
        at = np.arange(n)[:, None]
        index = place % size * self.n_groups + near[at, place // size]
        error = np.zeros(n)
        if groups:
            exact = members[at, place]
        else:
            gap = self.rows[index]
            gap -= values[:, None]
            exact = np.maximum(np.einsum("bkd,bkd->bk", gap, gap).astype(np.float32), np.float32(self.least))
            # (D + 2) products, each rounded, of factors that were rounded: by Cauchy and Schwarz
            error = (left.shape[1] + 4) * 2.0**-24 * (np.sqrt(length) + self.longest) ** 2
        ordered = np.sort((exact.view(np.int32).astype(np.int64) << 32) | index, axis=1)
        exact = (ordered >> 32).astype(np.int32).view(np.float32)
        apart = (exact[:, 1 : k + 1] > exact[:, :k]).all(1)
        decided = apart & (exact[:, k] < np.minimum(beyond, within) - error)
        index = torch.from_numpy(ordered[:, :k] & 0xFFFFFFFF)
        return Found(torch.from_numpy(exact[:, :k].copy()), index, bulk if groups else None, torch.from_numpy(decided))


def _smallest(values: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the n smallest of each row of values (B, m), positive float32, in no order.

    The bits of a positive number are ordered as the numbers are. The last ones give way to the place of the number.

    Returns:
        Where they are, (B, n), and a number (B,) that all others are not below.
    """
    m = values.shape[1]
    last = np.int32((1 << (m - 1).bit_length()) - 1)
    packed = np.bitwise_and(values.view(np.int32), ~last, order="C")
    packed |= np.arange(m, dtype=np.int32)
    packed.partition(n, axis=1)
    return (packed[:, :n] & last).astype(np.int64), (packed[:, n] & ~last).view(np.float32)


def _mean_log(values: Tensor) -> Tensor:
    """Return the mean (B,) of the logs of values (G, B): logs of products of a few take a fraction of the time."""
    n = len(values)
    padded = torch.nn.functional.pad(values, (0, 0, 0, -n % TOGETHER), value=1.0).double()
    return padded.unflatten(0, (-1, TOGETHER)).prod(1).log().sum(0) / n
