"""Subsets of rows: evenly spaced, repeated, with values hidden, or grouped by what is missing.

Shapes: n rows of some features; NaN is missing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

HIDE = (0.1, 0.6)
"""Range of the share of values hidden in a row, to learn how far imputed values are off."""


def evenly(rows: Tensor, most: int) -> Tensor:
    """Return at most `most` of rows (n, …), evenly spaced."""
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), most)).long()]


def copies(m: int, n: int) -> Tensor:
    """Return n of m indices, evenly spaced; if m < n, each about n / m times."""
    return torch.linspace(0, m - 1, n).long() if m >= n else torch.arange(n) % m


def several(rows: Tensor, n: int) -> Tensor:
    """Return n of `rows` (m, *features), evenly spaced; if there are fewer, each about n / m times."""
    return rows[copies(len(rows), n)]


def hide(rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hide values of rows (n, *features) at random.

    Returns:
        The rows as the network sees them, and the hidden values, with NaN instead of the others.
    """
    low, high = HIDE
    share = low + (high - low) * torch.rand(len(rows), generator=generator)
    gone = torch.rand(rows.shape, generator=generator) < share.reshape(-1, *(1 for _ in rows.shape[1:]))
    return torch.where(gone, torch.nan, rows), torch.where(gone, rows, torch.nan)


def hidden_too(rows: Tensor, mask: Tensor) -> Tensor:
    """Return `rows` (n, *features) without the values in `mask` (F,) or (n, F)."""
    return rows.flatten(1).masked_fill(mask, torch.nan).reshape(rows.shape)


def distinct(missing: Tensor) -> list[tuple[np.ndarray, Tensor]]:
    """Return the patterns of `missing` (B, F): the rows (b,) that have each, and the pattern (F,)."""
    if not missing.any():
        return [(np.arange(len(missing)), missing[0])] if len(missing) else []
    packed = np.packbits(missing.numpy(), axis=1)  # one value per row, however many features there are
    rows = packed.view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    members = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which.reshape(-1)))[:-1])
    return list(zip(members, missing[first], strict=True))
