"""Rows of a table that occur several times, which must be in the same split, or they would be tested on themselves."""

from __future__ import annotations

import numpy as np

from lapae.space import chunks

BY_CHANCE = 0.2
"""If columns were independent and more than this many equal rows are expected by chance (dice), they are not copies."""
MOSTLY = 0.6
"""Minimum share of repeated rows among the other rows for a table to contain copies. Columns are not independent, so
some of these rows are equal by chance, too."""
SURE = 2
"""Minimum number of columns with a value that no other row has for equal rows to be copies in any table."""
MOST_COPIES = 10
"""Maximum number of copies of a row: more mean a distribution of few values, such as the products of a shop."""
SAMPLE = 200_000
"""Maximum number of rows used to count the frequencies of values."""


def copied(x: np.ndarray) -> np.ndarray | None:
    """Find rows of a table x (n, D) that are copies of others, not just equal by chance.

    Returns:
        (n,) the number of each row's group, in the order of their first rows; None if no row is a copy.
    """
    n = len(x)
    keys = np.concatenate([hashed(np.asarray(part)) for _, part in chunks(x)])
    _, first, group, count = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    several = (count > 1) & (count <= MOST_COPIES)
    if not several.any():
        return None
    expected, own = _by_chance(x, first, count)
    rare = expected < BY_CHANCE
    mostly = count[rare & (count > 1)].sum() >= MOSTLY * count[rare].sum()
    several &= (own >= SURE) | (rare & mostly)
    if not several.any():
        return None
    group = group.reshape(-1)
    leader = np.where(several[group], first[group], np.arange(n))
    return np.unique(leader, return_inverse=True)[1].reshape(-1)


def _by_chance(x: np.ndarray, first: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how rare the values of some rows are.

    Args:
        x: (n, D) all rows.
        first: (g,) the rows in question.
        count: (g,) how often each occurs.

    Returns:
        The number of such rows (g,) that one expects if columns were independent, and the number of columns (g,) whose
        value occurs in these rows alone.
    """
    n = len(x)
    sample = np.asarray(x[np.linspace(0, n - 1, min(n, SAMPLE)).astype(int)])
    rows = np.asarray(x[first])
    expected, own = np.full(len(rows), float(n)), np.zeros(len(rows), int)
    for values, seen in zip(rows.T, sample.T, strict=True):
        known, times = np.unique(seen, return_counts=True)  # NaN are one value
        share = times[np.searchsorted(known, values).clip(0, len(known) - 1)] / len(seen)
        expected *= share
        own += share * n <= count + 0.5
    return expected, own


def hashed(rows: np.ndarray) -> np.ndarray:
    """Return a number (n,) for each of rows (n, D), equal for equal rows and almost never for others."""
    bits = (rows.astype(np.float64) + 0.0).view(np.uint64)
    out = np.zeros(len(rows), np.uint64)
    for column in bits.T:
        out = (out ^ column) * np.uint64(0x9E3779B97F4A7C15)
        out ^= out >> np.uint64(29)
    return out
