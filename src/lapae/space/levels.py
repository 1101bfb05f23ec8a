"""Categories with many levels, and columns that others determine.

With one feature per level, a category with hundreds of levels would have more features than all other columns together,
most of them with too few rows to learn from. Therefore:

- a category with more than `MOST_LEVELS` levels becomes one number: levels are ordered by the first principal component
  of the means of the other columns in the rows of each level, and get the normal scores of their ranks, so that levels
  that are similar in other columns have similar numbers. If a table still has more than `BUDGET` features, its widest
  categories become numbers too;
- a category with more than `MANY` levels and fewer than `ROWS_EACH` rows per level is carried: the network does not see
  it, and the model is that of the other columns. A missing level is replaced by the usual one, given the column that
  predicts it best.

Column A determines column B if rows with the same value of A have the same value of B, except for up to 1 % of them. A
missing value of B is then looked up by the value of A, whether the network sees A or not. A number or date that is a
line of another one in all rows (`lapae.space.lines`) is computed from it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from lapae.space.columns import DAY, WITH_INTERVALS, Column, Spans
from lapae.space.lines import Line, lines

NORMAL = NormalDist()

MOST_LEVELS = 24
"""Maximum number of levels of a category with one feature each."""
BUDGET = 128
"""Maximum number of features of a table, if possible: those of which missing values are filled in from similar rows."""
MANY, ROWS_EACH = 50, 50
"""More than `MANY` levels are learned if there are `ROWS_EACH` training rows for each on average."""
PRIOR = 5.0
"""Number of rows with which the means of a level are shrunk towards those of all rows."""
FARTHEST = 3.0
"""Numbers are clipped to this many standard deviations from their mean in the means of a level."""
SURE = 0.99
"""Minimum share of rows with the usual value given the level that determines it."""
GAIN = 0.25
"""Maximum number of errors as a share of those made by always guessing the most frequent value."""
EVIDENCE = 10
"""Minimum number of rows without the most frequent value: nothing determines a column that is almost constant."""
ROWS_COMPARED = 100_000
"""Maximum number of rows used to decide whether a column determines another."""
PAIRS, ALIKE = 200, 0.9
"""Pairs of rows with one value of a column that say which others are worth a look: those that agree as often."""
MOST_COLUMNS = 200
"""Maximum number of columns of a table in which columns that determine others are searched for."""
MOST_NUMBERS = 1000
"""Maximum number of columns of a table in which columns that are lines of others are searched for."""


def with_levels(columns: Sequence[Column], x: np.ndarray) -> tuple[Column, ...]:
    """Return the columns of a table with what training rows x (n, F) say about their levels.

    Args:
        columns: columns, without `values` and `implied`.
        x: codes (n, F) of the training rows; NaN is missing.
    """
    x = x[np.linspace(0, len(x) - 1, min(len(x), ROWS_COMPARED)).astype(int)] if len(x) else x
    found, n = list(columns), len(x)
    numbers = as_numbers(columns)
    rare = [i for i in numbers if len(columns[i].categories) > max(MANY, n / ROWS_EACH)]
    if len(rare) == len(columns):
        rare = []  # nothing would be left to learn
    if numbers:
        others = _profiles(columns, x, numbers)
        for i in numbers:
            if i not in rare:
                values = embed(x[:, i], len(columns[i].categories), others)
                found[i] = replace(found[i], values=tuple(values.tolist()))
    for b, (a, line) in copies(columns, x).items():
        found[b] = replace(found[b], given_by=columns[a].name, line=line)
    implied = determined(columns, x)
    for b in {b for _, b in implied if found[b].line is None}:
        a = min((a for a, other in implied if other == b), key=lambda a: len(implied[a, b]))
        found[b] = _told_by(found[b], columns[a], implied[a, b])
    for i in rare:
        values, count = np.unique(x[~np.isnan(x[:, i]), i], return_counts=True)
        usual = int(values[count.argmax()]) if len(values) else 0
        found[i] = replace(found[i], carried=usual)
        if not found[i].given_by:
            narrow = [
                a for a, column in enumerate(columns) if column.kind in ("category", "boolean") and a not in numbers
            ]
            tables = [(a, *_lookup(x[:, a], x[:, i])) for a in narrow]
            if tables:
                a, mapping, _ = max(tables, key=lambda table: table[2])
                found[i] = _told_by(found[i], columns[a], mapping)
    return tuple(found)


def _told_by(column: Column, source: Column, mapping: dict[float, float]) -> Column:
    """Return a column whose missing values are looked up by those of another."""
    return replace(column, given_by=source.name, implied=tuple(sorted(mapping.items())))


def as_numbers(columns: Sequence[Column]) -> list[int]:
    """Return the positions of categories that become one number: wide ones, and as many as the budget requires."""
    widths = np.array([len(column.categories) if column.kind == "category" else 1 for column in columns])
    chosen: list[int] = []
    most = BUDGET if len(columns) <= BUDGET else np.inf  # else it cannot be had
    for i in np.argsort(-widths, kind="stable").tolist():
        if widths[i] <= MOST_LEVELS and (widths.sum() <= most or widths[i] == 1):
            break
        widths[i] = 1
        chosen.append(i)
    return sorted(chosen)


def embed(codes: np.ndarray, n_levels: int, others: np.ndarray) -> np.ndarray:
    """Return a different number for each level of a category, (levels,), with mean 0 and variance about 1 over rows.

    Args:
        codes: levels (n,) of the training rows; NaN is missing.
        n_levels: number of levels.
        others: features (n, D) of the other columns, standardised.
    """
    known = ~np.isnan(codes)
    level = codes[known].astype(int)
    count = np.bincount(level, minlength=n_levels)
    means = np.zeros((n_levels, others.shape[1]))
    np.add.at(means, level, others[known])
    means /= count[:, None] + PRIOR
    score = np.zeros(n_levels)
    if others.shape[1]:
        direction = np.linalg.eigh((means * count[:, None]).T @ means)[1][:, -1]
        score = means @ (direction * np.sign(direction[np.abs(direction).argmax()]))
    order = np.lexsort((-count, score))
    order = order[count[order] > 0]
    place = (np.cumsum(count[order]) - count[order] / 2) / max(count.sum(), 1)
    values = np.zeros(n_levels)
    values[order] = [NORMAL.inv_cdf(share) for share in place.tolist()]
    # levels that training rows do not have are ordinary; the next number to theirs is one of a level that they have
    middle = float(np.median(values[order])) if len(order) else 0.0
    unseen = np.flatnonzero(count == 0)
    values[unseen] = middle + 1e-4 * (1 + np.arange(len(unseen))) / max(len(unseen), 1)
    return values


def _profiles(columns: Sequence[Column], x: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
    """Return the features (n, D) of all columns but `numbers`, standardised, 0 for what is missing."""
    rest = [i for i in range(len(columns)) if i not in numbers]
    wide = Spans(tuple(columns[i] for i in rest)).expand(x[:, rest])
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns without a value
        mean, deviation = np.nanmean(wide, 0), np.nanstd(wide, 0)
    scaled = (wide - mean) / np.where(deviation > 0, deviation, 1.0)
    return np.nan_to_num(scaled).clip(-FARTHEST, FARTHEST)


def copies(columns: Sequence[Column], x: np.ndarray) -> dict[int, tuple[int, Line]]:
    """Return the columns of rows x (n, F) that are lines of others, as `lines` does."""
    if len(columns) > MOST_NUMBERS:
        return {}
    chosen = [i for i, column in enumerate(columns) if column.kind in WITH_INTERVALS]
    dates = [i for i in chosen if columns[i].kind == "date"]
    return lines(x, chosen, [i for i in dates if columns[i].format == DAY], dates)


def confirmed(columns: Sequence[Column], x: np.ndarray) -> tuple[Column, ...]:
    """Return columns without the lines on which more than 1 % of held-out rows x (n, F) are not."""
    found = list(columns)
    for i, source in Spans(tuple(columns)).sources.items():
        line = columns[i].line
        if line is None:
            continue
        known = ~(np.isnan(x[:, i]) | np.isnan(x[:, source]))
        low, high = line.interval(x[known, source])
        if ((x[known, i] < low) | (x[known, i] > high)).sum() > (1 - SURE) * known.sum():
            found[i] = replace(columns[i], given_by="", line=None)
    return tuple(found)


def determined(columns: Sequence[Column], x: np.ndarray) -> dict[tuple[int, int], dict[float, float]]:
    """Find columns that others determine.

    Args:
        columns: columns; those that determine are categories and counts, those that are determined of any kind.
        x: codes (n, F); NaN is missing.

    Returns:
        By the places (a, b) of two columns: the value of b for each value of a.
    """
    found: dict[tuple[int, int], dict[float, float]] = {}
    if len(columns) > MOST_COLUMNS:
        return found
    for a, column in enumerate(columns):
        if column.kind not in ("category", "count"):
            continue
        known = np.flatnonzero(~np.isnan(x[:, a]))
        rows = known[np.argsort(x[known, a], kind="stable")]
        value = x[rows, a]
        same = value[1:] == value[:-1]
        if 2 * same.sum() < len(rows) or len(rows) < 2:
            continue
        for b in _alike(x, rows, np.flatnonzero(same)):
            if a == b or len(columns[b].categories) > max(2, len(np.unique(value))):
                continue
            pair = x[rows, b]
            both = same & ~np.isnan(pair[1:]) & ~np.isnan(pair[:-1])
            agree = both & (pair[1:] == pair[:-1])
            if agree.sum() < (2 * SURE - 1) * both.sum() or 2 * both.sum() < len(rows):
                continue
            others = 1 - _most_frequent(pair[1:][both])
            if others * both.sum() < EVIDENCE:
                continue
            mapping, right = _lookup(value, pair)
            if right >= SURE and 1 - right <= GAIN * others:
                found[a, b] = mapping
    return found


def _alike(x: np.ndarray, rows: np.ndarray, same: np.ndarray) -> list[int]:
    """Return the columns of x (n, F) that are mostly equal in pairs of rows: `rows` at some of the places `same`, and
    the next of them."""
    some = same[np.linspace(0, len(same) - 1, min(len(same), PAIRS)).astype(int)]
    one, other = x[rows[some]], x[rows[some + 1]]
    known = ~(np.isnan(one) | np.isnan(other))
    return np.flatnonzero((known & (one == other)).sum(0) >= ALIKE * known.sum(0)).tolist()


def _most_frequent(values: np.ndarray) -> float:
    """Return the share of the most frequent of values (n,), NaN left out."""
    count = np.unique(values[~np.isnan(values)], return_counts=True)[1]
    return count.max(initial=0) / max(count.sum(), 1)


def _lookup(a: np.ndarray, b: np.ndarray) -> tuple[dict[float, float], float]:
    """Return the usual value of b for each value of a, (n,) both, and the share of rows that have it: of those whose
    value of a occurs in other rows."""
    known = ~(np.isnan(a) | np.isnan(b))
    pairs, count = np.unique(np.stack([a[known], b[known]]), axis=1, return_counts=True)
    order = np.lexsort((count, pairs[0]))
    last = np.append(pairs[0][order][1:] != pairs[0][order][:-1], True) if len(order) else np.empty(0, bool)
    best = order[last]
    total = np.bincount(np.unique(pairs[0], return_inverse=True)[1].reshape(-1), weights=count)
    several = total > 1
    right = count[best][several].sum() / max(total[several].sum(), 1)
    return dict(zip(pairs[0][best].tolist(), pairs[1][best].tolist(), strict=True)), float(right)
