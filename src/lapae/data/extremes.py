"""Absurd values, which break any scaling: one 1e30 would make all other values of its column look alike."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from lapae.data.source import Records, even

SAMPLE = 10_000
TAIL = 0.05
FAR = 1e4
"""A value is absurd if it lies this many times the range of the middle 90 % outside that range."""
MOST_BYTES = 2**31
"""Larger tables on disk are used as they are."""
SHOWN = 5


def without_absurd(records: Records) -> Records:
    """Return a table with absurd values marked as missing, with a warning that names their columns."""
    x = records.x
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.dtype.kind != "f" or x.nbytes > MOST_BYTES or not len(x):
        return records
    low, high = fences(np.asarray(x[even(len(x), SAMPLE)], np.float64))
    with np.errstate(invalid="ignore"):
        far = (x < low) | (x > high)
    if not far.any():
        return records
    columns = np.flatnonzero(far.any(0))
    names = [column.name for column in records.columns] if records.columns else [str(i) for i in range(x.shape[1])]
    told = ", ".join(f"{names[i]!r} ({x[:, i][far[:, i]][0]:g})" for i in columns[:SHOWN])
    more = " …" if len(columns) > SHOWN else ""
    warnings.warn(
        f"{records.name}: {int(far.sum())} values are more than {FAR:,.0f} times as far away as the others, and count "
        f"as missing, in column {told}{more}",
        stacklevel=4,
    )
    return replace(records, x=np.where(far, np.nan, x), missing=True)


def fences(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds of each column of x (n, F); infinite if its middle 90 % are a single value."""
    ordered = np.sort(x, axis=0)  # NaN at the end
    last = np.maximum((~np.isnan(x)).sum(0) - 1, 0)
    # at least one value at each end is left out, however few there are
    inner, outer = np.ceil(TAIL * last).astype(int), np.floor((1 - TAIL) * last).astype(int)
    columns = np.arange(x.shape[1])
    low, high = ordered[np.minimum(inner, last), columns], ordered[np.maximum(outer, 0), columns]
    with np.errstate(invalid="ignore", over="ignore"):
        reach = np.where(high > low, FAR * (high - low), np.inf)
        return low - reach, high + reach
