"""Distances to some of the training data, in several scales: to the nearest of all, and to the nearest of small groups.

A group of a few data spans the whole distribution coarsely, so that a datum is far from most groups only if it is far
from where most data are, however many outliers of its own kind there are among the training data; the nearest of all
tell on what surface data lie. Both are needed: outliers may be in the training data, or not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

BANK = 4000
"""Training data to measure distances to, at most."""
NEAREST = 5
GROUP = 8
CHUNK = 512
TINY = 1e-8


@dataclass(frozen=True)
class Near:
    """What was found for B data."""

    near: Tensor
    """(B,): log of the mean distance to the nearest."""
    groups: Tensor
    """(B,): mean log distance to the nearest of each group."""
    ratio: Tensor
    """(B,): `near` less that of the nearest themselves: the local outlier factor."""
    gap: Tensor
    """(B, D): mean squared difference to the nearest, feature by feature."""


@dataclass(frozen=True)
class Bank:
    """Training data (R, D) to look for neighbours in."""

    rows: Tensor
    own: Tensor
    """(R,): `near` of each of them among the others."""

    @classmethod
    def of(cls, rows: Tensor) -> Bank:
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:BANK]]
        empty = cls(rows, torch.zeros(len(rows), dtype=rows.dtype))
        return cls(rows, empty.measure(rows).near)

    def measure(self, x: Tensor) -> Near:
        """Of x (B, D). A row of the bank that is x itself is left out once: training data are compared with others."""
        if torch.compiler.is_exporting():  # a graph takes any number of data at once
            return self._measure(x)
        parts = [self._measure(part) for part in x.split(CHUNK)]
        return Near(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Near)))

    def _measure(self, x: Tensor) -> Near:
        rows = self.rows
        square = torch.addmm(rows.square().sum(1), x, rows.T, alpha=-2).add_(x.square().sum(1, keepdim=True))
        first = square.argmin(1)
        same = (x - rows[first]).abs().amax(1) <= 1e-6
        own = torch.where(same, torch.inf, square.gather(1, first[:, None])[:, 0])
        square = square.scatter_(1, first[:, None], own[:, None]).clamp_min_(TINY)
        k = min(NEAREST, max(1, len(rows) - 1))
        nearest, index = square.topk(k, largest=False)
        nearest = torch.where(nearest.isinf(), TINY, nearest)
        near = nearest.sqrt().mean(1).log()
        n_groups = max(1, len(rows) // GROUP)
        size = min(GROUP, len(rows))
        grouped = square[:, : n_groups * size].unflatten(1, (n_groups, size)).amin(2)
        groups = 0.5 * torch.where(grouped.isinf(), TINY, grouped).log().mean(1)
        gap = (x[:, None] - rows[index]).square().mean(1)
        return Near(near, groups, near - self.own[index].mean(1), gap)

    def tensors(self) -> dict[str, Tensor]:
        return {"rows": self.rows, "own": self.own}
