"""Data with holes: which of their patterns are compared together, and holes that are made to learn from.

Shapes: n data of some features; NaN is missing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

HIDE = (0.1, 0.6)
"""Shares of values hidden from the network to learn how far imputed values are off: each datum has one of its own."""
MOST_PATTERNS = 32
"""Patterns of missing values in a call that are each compared on their own; more are grouped by how much is missing."""
GROUPS = 8


def hide(rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows (n, *features) as the network sees them, and what it does not see: NaN in place of the others."""
    low, high = HIDE
    share = low + (high - low) * torch.rand(len(rows), generator=generator)
    gone = torch.rand(rows.shape, generator=generator) < share.reshape(-1, *(1 for _ in rows.shape[1:]))
    return torch.where(gone, torch.nan, rows), torch.where(gone, rows, torch.nan)


def several(rows: Tensor, n: int) -> Tensor:
    """n of `rows` (m, *features), evenly from all; where they are fewer, each about n / m times."""
    return evenly(rows, n) if len(rows) >= n else rows[torch.arange(n) % len(rows)]


def evenly(rows: Tensor, most: int) -> Tensor:
    """At most so many of rows (n, …), from all over."""
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), most)).long()]


def patterns(missing: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of `missing` (B, F) that are compared together, and the masks (P, F) that held-out data are given for them.

    Each pattern on its own where there are few; else groups of rows that lack about as much, with their masks by turns.
    """
    packed = np.packbits(missing, axis=1)  # one value per row, however many features there are
    rows = packed.view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    masks, which = missing[first], which.reshape(-1)
    if len(masks) <= MOST_PATTERNS:
        return [(np.flatnonzero(which == i), masks[i : i + 1]) for i in range(len(masks))]
    share = missing.mean(1)
    some = np.flatnonzero(share > 0)
    order = some[np.argsort(share[some], kind="stable")]
    groups = [(np.flatnonzero(share == 0), masks[:0])] if (share == 0).any() else []
    return groups + [(part, missing[part]) for part in np.array_split(order, GROUPS) if len(part)]
