"""Distributions of weighted values: their order, their quantiles, and values between.

Shapes: q distributions with weights (q, r) of r values each; values are (q, r), or (1, r) if all share them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def in_order(values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return values (q, r) or (1, r) in order, and the sums of the weights (q, r) up to each."""
    order = torch.from_numpy(_order(values.numpy()))
    return values.gather(1, order), weight.gather(1, order.expand_as(weight)).cumsum(1)


def _order(values: np.ndarray) -> np.ndarray:
    """Return the order of each row of values (q, r), up to differences of 1e-12 of themselves.

    The bit patterns of numbers are in the order of the numbers if those of negative ones are reversed. The lowest bits
    are replaced by the index of the number, so that a sort of whole numbers, which is fast, finds the order.
    """
    if values.dtype != np.float64:
        return np.argsort(values, 1)
    n = values.shape[1]
    last = np.int64((1 << (n - 1).bit_length()) - 1)
    packed = values.view(np.int64) ^ ((values.view(np.int64) >> 63) & np.int64(2**63 - 1))
    packed &= ~last
    packed |= np.arange(n)
    packed.sort(1)
    packed &= last
    return packed


def between(ordered: Tensor, total: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
    """Return the quantiles at sums of weights `wanted` (q, n), of distributions that are uniform between midpoints.

    The midpoints are those between the values `ordered` (q, r), with sums of weights `total` (q, r) up to each;
    `chosen` (q, n) is the index of the value at which `wanted` is reached.
    """
    middles = torch.cat([ordered[:, :1], (ordered[:, 1:] + ordered[:, :-1]) / 2, ordered[:, -1:]], 1)
    upto = total.gather(1, chosen)
    below = torch.where(chosen > 0, total.gather(1, (chosen - 1).clamp_min(0)), 0.0)
    share = ((wanted - below) / (upto - below).clamp_min(1e-300)).clamp(0, 1)
    low, high = middles.gather(1, chosen), middles.gather(1, chosen + 1)
    return low + share * (high - low)


def weighted_moments(values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (q,) of values (q, r) or (1, r) with weights (q, r) of sum 1."""
    if len(values) == 1:
        mean, variance = shared_moments(values.T, weight)
        return mean[:, 0], variance[:, 0]
    center = values.mean(1, keepdim=True)  # large means would cancel otherwise
    gap = values - center
    first, second = torch.linalg.vecdot(weight, gap), torch.linalg.vecdot(weight, gap.square_())
    return center[:, 0] + first, (second - first.square()).clamp_min(0.0)


def shared_moments(values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and variances (q, f) of f features of values (r, f) with weights (q, r) of sum 1."""
    center = values.mean(0)
    gap = values - center
    first, second = (weight @ torch.cat([gap, gap.square()], 1)).chunk(2, 1)
    return center + first, (second - first.square()).clamp_min(0.0)


def weighted_quantiles(values: Tensor, weight: Tensor, levels: Sequence[float], *, ordered: bool = False) -> Tensor:
    """Return quantiles (q, n) of values (q, r) or (1, r) with weights (q, r) of sum 1, at n levels; `ordered` if the
    values are in order."""
    in_turn, total = (values, weight.cumsum(1)) if ordered else in_order(values, weight)
    place = torch.searchsorted(total, torch.tensor(levels, dtype=weight.dtype).repeat(len(weight), 1))
    return in_turn.expand_as(weight).gather(1, place.clamp_max(weight.shape[1] - 1))
