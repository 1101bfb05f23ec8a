"""Columns of a table whose values, taken by themselves, are distributed otherwise than in training.

An anomaly score does not show all of them: a discount written as 0.1 instead of 10 % is near the many of 0 %. Numbers
and dates are compared by the statistic of Kolmogorov and Smirnov, shares of levels and of missing values by Fisher's
exact test. Both hold for rows that are exchangeable with those of training, whatever the distribution; with ties the
first is conservative.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lapae.space.columns import UNSEEN, Column
from lapae.space.frames import cells

MIDDLE = (0.1, 0.9)
"""Quantiles between which values are said to lie."""


def changed_columns(
    columns: Sequence[Column], rows: np.ndarray, new: np.ndarray, rate: float
) -> dict[str, tuple[float, str]]:
    """Return the columns that have changed: by name a p-value, for all columns together, and what differs.

    Args:
        columns: columns of the table, (F,).
        rows: rows of training as codes (n, F), NaN where missing.
        new: new rows as codes (m, F).
        rate: probability that any column is returned, at most, if nothing has changed.
    """
    from scipy.stats import ks_2samp  # pyright: ignore[reportMissingTypeStubs]

    found: dict[str, tuple[float, str]] = {}
    for column, left, right in zip(columns, rows.T, new.T, strict=True):
        lacks = np.isnan(left), np.isnan(right)
        shares = [(_fisher(*lacks), f"{_percent(lacks[1])} missing, {_percent(lacks[0])} in training")]
        a, b = left[~lacks[0]], right[~lacks[1]]
        if column.kind in ("category", "boolean"):
            levels = np.unique(np.concatenate([a, b]))
            tests = [(_fisher(a == level, b == level), level) for level in levels]
            if tests:
                p, level = min(tests)
                word = "unseen" if level == UNSEEN else cells(np.array([level]), column)[0]
                told = f"{word} in {_percent(b == level)}, {_percent(a == level)} in training"
                shares.append((p * len(tests), told))
        elif len(a) and len(b):
            now, then = (" to ".join(cells(np.quantile(x, MIDDLE, method="nearest"), column)) for x in (b, a))
            told = f"the middle 80 % are {now}, {then} in training"
            shares.append((float(ks_2samp(a, b).pvalue), told))  # pyright: ignore[reportAttributeAccessIssue]
        p, told = min(shares)
        p *= 2 * len(columns)
        if p <= rate:
            found[column.name] = p, told
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _fisher(a: np.ndarray, b: np.ndarray) -> float:
    """Return a p-value for truth values (n,) and (m,) that are true equally often: twice Fisher's one-sided one."""
    from scipy.stats import hypergeom  # pyright: ignore[reportMissingTypeStubs]

    if not len(a) or not len(b):
        return 1.0
    at = int(b.sum()), len(a) + len(b), int(a.sum() + b.sum()), len(b)
    return float(min(1.0, 2 * min(hypergeom.cdf(*at), hypergeom.sf(at[0] - 1, *at[1:]))))


def _percent(truths: np.ndarray) -> str:
    return f"{100 * truths.mean():.3g} %" if len(truths) else "none"
