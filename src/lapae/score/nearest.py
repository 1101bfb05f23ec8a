"""Search for the nearest rows of a bank: candidates are found in single precision and decided in double precision.

One matrix product in float32 gives all distances |x|² + |r|² - 2 x·r. The rows of the bank are in small groups, and
only the groups with the smallest distances are searched; a distance and its index share 32 bits, so that one partial
sort finds both. A few more candidates than requested are measured again in float64. The error of the product is
bounded: if a row that was left out could be nearer than one that was found, or if distances are equal, the result is
undecided and the row is measured in the plain way (`NearestRows.measure`), so that both ways give the same neighbours.

Shapes: B rows x (B, D), a bank of R rows, G groups; k neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lapae.predict.dense import product

AT_ONCE = 256
"""Rows whose distances are computed at a time: to a bank of 2,800 rows these take 3 MB."""
SIZE = 16
"""Number of rows in a group."""
FEWEST = 256
"""Number of rows of a bank below which the plain way is as fast."""


@dataclass(frozen=True)
class Found:
    """The rows that are nearest to B rows x.

    Attributes:
        square: squared distances, increasing, (B, k), float32.
        index: indices of these rows in the bank, (B, k).
        length: squared lengths of x, (B,).
        decided: (B,) bool: False for rows whose results are not reliable.
    """

    square: Tensor
    index: Tensor
    length: Tensor
    decided: Tensor


@dataclass(frozen=True)
class Search:
    """A bank prepared for searching.

    Attributes:
        rows: the bank, (R, D).
        n_groups: row i of the bank is in group i modulo this number.
        right: factor of squared distances, (n_groups * size, D + 2), infinite if the last groups lack a row.
        longest: length of the longest row.
        least: smallest squared distance; smaller ones are raised to it.
    """

    rows: np.ndarray
    n_groups: int
    right: Tensor
    longest: float
    least: float

    @classmethod
    def of(cls, rows: Tensor, least: float) -> Search:
        """Prepare a bank (R, D), float64; see the attributes."""
        n_groups = -(-len(rows) // SIZE)
        square = rows.square().sum(1, keepdim=True)
        right = torch.cat([rows, torch.ones_like(square), square], 1)
        padding = right.new_zeros(-len(rows) % n_groups, right.shape[1])
        padding[:, -1] = torch.inf
        right = torch.cat([right, padding]).float()
        return cls(rows.numpy(), n_groups, right, float(square.max().sqrt()), least)

    def __call__(self, x: Tensor, k: int) -> Found:
        """Find the k nearest rows of the bank to rows x (B, D), float64."""
        most, values, n = k + 2, x.numpy(), len(x)
        length = np.einsum("bd,bd->b", values, values)
        left = np.ones((n, x.shape[1] + 2), np.float32)
        np.multiply(values, -2, out=left[:, :-2], casting="same_kind")
        left[:, -2] = length
        factors = torch.from_numpy(left)
        size = len(self.right) // self.n_groups
        index, exact = np.empty((n, most), np.int64), np.empty((n, most), np.float32)
        beyond = np.empty(n, np.float32)
        for start in range(0, n, AT_ONCE):
            part = slice(start, start + AT_ONCE)
            b = min(AT_ONCE, n - start)
            members = product(self.right, factors[part]).numpy().reshape(size, self.n_groups * b)
            near, further = _smallest(members.reshape(size, self.n_groups, b).min(0), most)
            at = np.arange(b)
            chosen = near.T * b + at  # (most, b)
            place, within = _smallest(members.take(chosen, axis=1, mode="clip").reshape(-1, b), most)
            # candidate i is member i // most of the group near[:, i % most]
            member = place // most
            index[part] = member * self.n_groups + near.take(place + (at[:, None] - member) * most)
            np.minimum(further, within, out=beyond[part])
            gap = self.rows.take(index[part], axis=0, mode="clip")
            gap -= values[part, None]
            exact[part] = np.einsum("bkd,bkd->bk", gap, gap)
        np.maximum(exact, np.float32(self.least), out=exact)
        # (D + 2) products, each rounded, of factors that were rounded: by Cauchy and Schwarz
        error = (left.shape[1] + 4) * 2.0**-24 * (np.sqrt(length) + self.longest) ** 2
        index |= exact.view(np.int32).astype(np.int64) << 32
        index.sort(axis=1)
        exact = (index >> 32).astype(np.int32).view(np.float32)
        apart = (exact[:, 1 : k + 1] > exact[:, :k]).all(1)
        decided = apart & (exact[:, k] < beyond - error)
        index = torch.from_numpy(index[:, :k] & 0xFFFFFFFF)
        return Found(torch.from_numpy(exact[:, :k]), index, torch.from_numpy(length), torch.from_numpy(decided))


def _smallest(values: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the n smallest of each column of values (m, B), float32, in no order; the values are overwritten.

    The bit patterns of positive numbers are in the same order as the numbers, and those of negative numbers are below
    them. The lowest bits are replaced by the index of the number.

    Returns:
        The indices, (B, n), and a lower bound (B,) of all other values, if it is positive.
    """
    m = len(values)
    last = np.int32((1 << (m - 1).bit_length()) - 1)
    packed = values.view(np.int32)
    packed &= ~last
    packed |= np.arange(m, dtype=np.int32)[:, None]
    rows = torch.from_numpy(packed).T.contiguous().numpy()  # torch does this in half of numpy's time
    rows.partition(n, axis=1)
    return (rows[:, :n] & last).astype(np.int64), (rows[:, n] & ~last).view(np.float32)
