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
        right: factor of squared distances, (D + 2, n_groups * size), infinite where the last groups lack a row.
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
        missing = -len(rows) % n_groups
        padding = torch.zeros(missing, right.shape[1], dtype=rows.dtype)
        padding[:, -1] = torch.inf
        right = torch.cat([right, padding]).T.contiguous()
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
        most, values, least = k + 2, x.numpy(), np.float32(self.least)
        length = np.einsum("bd,bd->b", values, values)
        left = torch.cat([-2 * x, torch.from_numpy(length)[:, None], torch.ones_like(x[:, :1])], 1)
        square = (left.to(dtype) @ self.right[dtype]).unflatten(1, (-1, self.n_groups))
        of_groups = square.amin(1).float().clamp_min_(self.least)
        near, beyond = _smallest(of_groups.numpy(), most)
        members = square.numpy()[np.arange(len(values))[:, None], :, near]  # (B, most, size)
        size = members.shape[2]
        members = np.maximum(members.reshape(len(values), -1).astype(np.float32), least)
        place, within = _smallest(members, most)
        index = place % size * self.n_groups + np.take_along_axis(near, place // size, 1)
        error = np.zeros(len(values))
        if groups:
            exact = np.take_along_axis(members, place, 1)
        else:
            gap = self.rows[index] - values[:, None]
            exact = np.maximum(np.einsum("bkd,bkd->bk", gap, gap).astype(np.float32), least)
            # (D + 2) products, each rounded, of factors that were rounded: by Cauchy and Schwarz
            error = (len(self.right[dtype]) + 4) * 2.0**-24 * (np.sqrt(length) + self.longest) ** 2
        ordered = np.sort((exact.view(np.int32).astype(np.int64) << 32) | index, axis=1)
        exact = (ordered >> 32).astype(np.int32).view(np.float32)
        apart = (exact[:, 1 : k + 1] > exact[:, :k]).all(1)
        decided = apart & (exact[:, k] < np.minimum(beyond, within) - error)
        index = torch.from_numpy(ordered[:, :k] & 0xFFFFFFFF)
        bulk = _mean_log(of_groups) if groups else None
        return Found(torch.from_numpy(exact[:, :k].copy()), index, bulk, torch.from_numpy(decided))


def _smallest(values: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the n smallest of each row of values (B, m), positive float32, in no order.

    The bits of a positive number are ordered as the numbers are. The last ones give way to the place of the number.

    Returns:
        Where they are, (B, n), and a number (B,) that all others are not below.
    """
    last = np.int32((1 << (values.shape[1] - 1).bit_length()) - 1)
    packed = (values.view(np.int32) & ~last) | np.arange(values.shape[1], dtype=np.int32)
    packed = np.partition(packed, n, axis=1)
    return packed[:, :n] & last, (packed[:, n] & ~last).view(np.float32)


def _mean_log(values: Tensor) -> Tensor:
    """Return the mean (B,) of the logs of values (B, G): logs of products of a few take a fraction of the time."""
    n = values.shape[1]
    padded = torch.nn.functional.pad(values, (0, -n % TOGETHER), value=1.0).double()
    return padded.unflatten(1, (-1, TOGETHER)).prod(2).log().sum(1) / n
