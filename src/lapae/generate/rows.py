"""New rows of a table: drawn one column after the other, from rows that are similar in the preceding columns.

For each column a tree splits the rows of the table by the preceding columns, until few rows are left in a leaf: these
have nearly the same distribution of the column. A new row gets the value of one of them, so that frequent zeros,
bounds, whole numbers and combinations of categories occur as in the table. A continuous value is also adjusted with a
Gaussian copula for the dependence that the tree has not captured, to the score

    z_r + s (l_i - l_r),

where z are the normal scores, l is the score that a regression on the preceding columns expects, for the new row i and
for the row r whose value is taken, and s is the slope of z on l within leaves. The result lies between two values of
the column. Moreover:

- A column that is close to a sum or a difference of preceding columns is drawn as the difference from these: a trip
  ends after it begins, and a total is the sum of its parts.
- A column that another one determines is looked up (`lapae.space.levels`).
- Columns that are given come first, so that all others depend on them; nothing is rejected. New rows are then similar,
  and a single tree would draw all of them from one leaf of few rows. So there are several trees, each fitted to a new
  draw of rows, and each serves a part of the new rows.

Shapes: n rows, m new rows, F columns, as codes: numbers in the user's units, NaN where missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from lapae.space.columns import Column
from lapae.space.frames import cells

LEAF = 5
"""Minimum number of rows in a leaf."""
LEAF_LACKING = 25
"""Minimum number of rows in a leaf for the share of missing values: a share needs more rows than a value."""
PRIOR = 5.0
"""Number of rows with which the mean of a level is shrunk towards that of all rows."""
GAIN = 0.3
"""Minimum share of its mean absolute deviation that a column loses if another one is subtracted from it."""
MOST_PARTS = 6
DISTINCT, SPIKE = 0.3, 0.05
"""A column is continuous if at least this share of its values are distinct, and no value is more frequent than this."""
RIDGE = 1e-2
TRIES = 4
"""Maximum number of draws until a row is found that is not the one whose value was taken last."""
TREES = 10
"""Number of trees from which new rows with given values are drawn."""
MOST_SAMPLED = 4000
"""Maximum number of rows from which new ones are made."""
MOST_COLUMNS = 128
"""Maximum number of columns of a table that is sampled row by row; wider ones are decoded from codes."""


@dataclass(frozen=True)
class RowSampler:
    """Rows of a table from which new ones are made.

    Attributes:
        rows: codes (n, F) of the table's columns, NaN where missing.
        groups: the group of each row, from 0, such as a customer, (n,); None if there are none.
    """

    rows: Tensor
    groups: Tensor | None = None

    def __call__(
        self,
        columns: Sequence[Column],
        m: int,
        seed: int,
        given: Mapping[int, float] | None = None,
        *,
        missing: bool = False,
    ) -> np.ndarray:
        """Make new rows (m, F).

        Args:
            columns: the columns of the table.
            m: number of rows.
            seed: seed of the draws.
            given: values that all new rows have, by the index of their column; NaN is missing.
            missing: whether values are missing as in the table; otherwise rows are complete.
        """
        for j, value in (given or {}).items():
            if told := self._unlike(columns[j], j, value):
                warnings.warn(f"given: {told}", stacklevel=4)
        return _Draw(self.rows.double().numpy(), columns, m, np.random.default_rng(seed), missing).run(given or {})

    def _unlike(self, column: Column, j: int, value: float) -> str:
        """Return a message if no row has a value as far out as the given one of column j, or lacks one; else ""."""
        known = self.rows[:, j].double().numpy()
        known = known[~np.isnan(known)]
        if np.isnan(value):
            return "" if len(known) < len(self.rows) else f"{column.name} is missing, and no row of training lacks it"
        if not len(known) or column.kind in ("category", "boolean") or known.min() <= value <= known.max():
            return ""
        own, low, high = cells(np.array([value, known.min(), known.max()]), column)
        nearest = "sums and differences hold, all else is drawn as for the nearest value"
        return f"{column.name} = {own} is beyond the values of training, {low} to {high}: {nearest}"


class _Draw:
    """New rows (m, F) that are being drawn; the columns `done` are complete."""

    def __init__(
        self, rows: np.ndarray, columns: Sequence[Column], m: int, rng: np.random.Generator, missing: bool
    ) -> None:
        self.rows, self.columns, self.rng, self.missing = rows, columns, rng, missing
        self.made = np.full((m, len(columns)), np.nan)
        self.words = [column.kind in ("category", "boolean") for column in columns]
        self.last = np.full(m, -1)  # row from which each new row got its last value
        self.done: list[int] = []
        self.differences: list[tuple[np.ndarray, np.ndarray]] = []  # of the rows, and of the new ones

    def run(self, given: Mapping[int, float]) -> np.ndarray:
        self.trees = min(TREES, len(self.made)) if given else 1
        for j in [*given, *(j for j in range(len(self.columns)) if j not in given)]:
            if j in given:
                self.made[:, j] = given[j]
            else:
                self._draw(j)
            self.done.append(j)
        return self.made

    def _draw(self, j: int) -> None:
        values, made = self.rows[:, j], self.made
        if np.isnan(values).all():
            return
        lacks = self._lacking(np.isnan(values))
        parts = [] if self.words[j] else self._parts(j)
        ours, theirs = (
            sum((sign * _filled(x[:, i], self.rows[:, i]) for i, sign in parts), np.zeros(len(x)))
            for x in (self.rows, made)
        )
        target = values - ours
        found = self._words(j) if self.words[j] else self._numbers(target)
        if parts:
            self.differences.append((target, np.where(lacks, np.nan, found)))
            found = found + theirs
            found = np.maximum(found, 0.0) if np.nanmin(values) >= 0 else found
        decimals = None if self.words[j] else _decimals(values)
        made[:, j] = found if decimals is None else np.round(found, decimals)
        self._look_up(j)
        made[lacks, j] = np.nan

    def _lacking(self, lacks: np.ndarray) -> np.ndarray:
        """Draw which new rows lack a value, (m,), given which rows do, `lacks` (n,)."""
        from sklearn.tree import DecisionTreeClassifier

        if not (self.missing and lacks.any()):
            return np.zeros(len(self.made), bool)
        x, ours = self._features(lacks.astype(float))
        every = np.ones(len(lacks), bool)
        last = self.last
        donors = self._donors(DecisionTreeClassifier, x, ours, lacks, every, LEAF_LACKING)[0]
        self.last = last
        return lacks[donors]

    def _parts(self, j: int) -> list[tuple[int, int]]:
        """Choose columns, each with its sign, whose sum is close to column j."""
        left = self.rows[:, j]
        candidates = [
            i
            for i in self.done
            if self.columns[i].kind in ("number", "count", "date")
            and (self.columns[i].kind == "date") == (self.columns[j].kind == "date")
        ]
        chosen: list[tuple[int, int]] = []
        while candidates and len(chosen) < MOST_PARTS:
            before = _spread(left)
            tried = [(i, sign) for i in candidates for sign in (1, -1)]
            after = [_spread(left - sign * _filled(self.rows[:, i], self.rows[:, i])) for i, sign in tried]
            best = int(np.argmin(after))
            if not before > 0 or after[best] > (1 - GAIN) * before:
                break
            i, sign = tried[best]
            left = left - sign * _filled(self.rows[:, i], self.rows[:, i])
            chosen.append((i, sign))
            candidates.remove(i)
            if self.columns[j].kind == "date":
                break
        return chosen

    def _features(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the preceding columns of the rows (n, p) and of the new rows (m, p); a level as its mean of y (n,)."""
        pairs = [
            _levels(self.rows[:, i], self.made[:, i], y) if self.words[i] else (self.rows[:, i], self.made[:, i])
            for i in self.done
        ]
        pairs += self.differences
        if not pairs:
            return np.zeros((len(self.rows), 1)), np.zeros((len(self.made), 1))
        return np.stack([a for a, _ in pairs], 1), np.stack([b for _, b in pairs], 1)

    def _donors(
        self, kind: Any, x: np.ndarray, ours: np.ndarray, target: np.ndarray, allowed: np.ndarray, least: int = LEAF
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Choose, for each of our new rows (m, p), one of the `allowed` rows x (n, p) in the same leaf.

        Args:
            kind: class of the trees.
            x: known values of the rows.
            ours: known values of the new ones.
            target: what the trees predict, (n, …).
            allowed: rows that may be chosen.
            least: minimum number of rows in a leaf.

        Returns:
            The rows chosen, (m,), and the leaf of each row in each tree, (n,).
        """
        donors, leaves = np.full(len(ours), -1), []
        for t in range(self.trees):
            rows = np.flatnonzero(allowed)
            rows = rows if self.trees == 1 else self.rng.choice(rows, len(rows))
            tree = kind(min_samples_leaf=least, random_state=0).fit(x[rows], target[rows])
            leaves.append(tree.apply(x))
            mine = np.arange(t, len(ours), self.trees)
            donors[mine] = self._within(leaves[-1], tree.apply(ours[mine]), allowed, self.last[mine])
        self.last = donors
        return donors, leaves

    def _within(self, leaves: np.ndarray, ours: np.ndarray, allowed: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Choose one of the `allowed` rows (n,) in the leaf of each new row, not its `last` one: (m,)."""
        order = np.argsort(leaves, kind="stable")
        order = order[allowed[order]]
        start, stop = (np.searchsorted(leaves[order], ours, side=side) for side in ("left", "right"))
        empty = start == stop
        start, stop = np.where(empty, 0, start), np.where(empty, len(order), stop)
        donors = np.full(len(ours), -1)
        for _ in range(TRIES):  # not the row of the last value, or whole rows would be copied
            again = (donors < 0) | (donors == last)
            place = start + (self.rng.random(len(ours)) * (stop - start)).astype(int)
            donors = np.where(again, order[place], donors)
        return donors

    def _words(self, j: int) -> np.ndarray:
        from sklearn.tree import DecisionTreeClassifier

        values = self.rows[:, j]
        known = ~np.isnan(values)
        n_levels = int(values[known].max()) + 1
        target = np.where(known, values, n_levels).astype(int)
        x, ours = self._features(_component(target, n_levels + 1))
        donors = self._donors(DecisionTreeClassifier, x, ours, target, known)[0]
        for b in self.done:
            if self.columns[b].given_by == self.columns[j].name:
                for level in np.unique(self.made[:, b][~np.isnan(self.made[:, b])]):
                    fitting = np.flatnonzero(known & (self.rows[:, b] == level))
                    wrong = np.flatnonzero((self.made[:, b] == level) & (self.rows[donors, b] != level))
                    if len(fitting) and len(wrong):
                        donors[wrong] = self.rng.choice(fitting, len(wrong))
        return values[donors]

    def _numbers(self, values: np.ndarray) -> np.ndarray:
        from scipy.special import ndtr, ndtri
        from sklearn.tree import DecisionTreeRegressor

        known = ~np.isnan(values)
        marginal = np.sort(values[known])
        rank = _ranks(marginal, values)
        z = np.nan_to_num(ndtri(rank))
        x, ours = self._features(z)
        smooth = _continuous(marginal)
        expected, theirs = _expected(x, ours, z, known) if smooth and self.done else (None, None)
        if expected is not None and theirs is not None:
            x, ours = np.column_stack([x, expected]), np.column_stack([ours, theirs])
        donors, leaves = self._donors(DecisionTreeRegressor, x, ours, z, known)
        if not smooth:
            return values[donors]
        jitter = (self.rng.random(len(donors)) - 0.5) / len(marginal)
        score = ndtri(np.clip(rank[donors] + jitter, 1e-9, 1 - 1e-9))
        if expected is not None and theirs is not None:
            slope = np.mean([_slope(leaf[known], z[known], expected[known]) for leaf in leaves])
            score = score + slope * (theirs - expected[donors])
        place = ndtr(score) * len(marginal) - 0.5
        return np.interp(place, np.arange(len(marginal)), marginal)

    def _look_up(self, j: int) -> None:
        """Fill column j from the one that determines it, if that has been drawn already."""
        column = self.columns[j]
        source = next((i for i in self.done if self.columns[i].name == column.given_by), None)
        if source is None or column.carried is not None:
            return
        found = column.told(self.made[:, source])
        self.made[:, j] = np.where(np.isnan(found) | np.isnan(self.made[:, j]), self.made[:, j], found)


def _filled(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.nanmedian(rows) if not np.isnan(rows).all() else 0.0, x)


def _spread(x: np.ndarray) -> float:
    return float(np.nanmean(np.abs(x - np.nanmedian(x))))


def _decimals(values: np.ndarray) -> int | None:
    """Return the number of decimals of the values of a column; None if there are more than 9."""
    known = values[~np.isnan(values)]
    if not len(known):
        return 0
    close = 1e-10 * np.ptp(known) + 1e-15 * np.abs(known).max()  # of the spread: 10,000,000,000.5 is not whole
    return next((k for k in range(10) if np.allclose(np.round(known, k), known, rtol=0, atol=close)), None)


def _continuous(ordered: np.ndarray) -> bool:
    count = np.unique(ordered, return_counts=True)[1]
    return len(count) > DISTINCT * len(ordered) and count.max() <= max(2, SPIKE * len(ordered))


def _ranks(marginal: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return mid-ranks of values (n,) among ordered ones, from 0 to 1; NaN stays NaN."""
    low, high = (np.searchsorted(marginal, values, side=side) for side in ("left", "right"))
    return np.where(np.isnan(values), np.nan, (low + np.maximum(high, low + 1)) / (2 * len(marginal)))


def _levels(rows: np.ndarray, made: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return levels as the mean of y in their rows, shrunk towards the overall mean; missing values are a level."""
    n = int(np.nanmax(rows)) + 1 if not np.isnan(rows).all() else 0
    ours, theirs = (np.where(np.isnan(x), n, np.minimum(x, n)).astype(int) for x in (rows, made))
    mean = y.mean()
    total, count = np.bincount(ours, y - mean, n + 1), np.bincount(ours, minlength=n + 1)
    value = mean + total / (count + PRIOR) + 1e-9 * np.arange(n + 1)
    return value[ours], value[theirs]


def _component(target: np.ndarray, n: int) -> np.ndarray:
    """Return a number (n,) for the level of each row, for ordering levels of other columns; frequent ones lie apart."""
    order = np.argsort(-np.bincount(target, minlength=n), kind="stable")
    value = np.empty(n)
    value[order] = np.arange(n) % 2
    return value[target]


def _expected(x: np.ndarray, ours: np.ndarray, z: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a regression's predictions of scores z (n,) from normal scores of columns, for x (n, p), ours (m, p)."""
    from scipy.special import ndtri

    a, b = np.empty(x.shape), np.empty(ours.shape)
    for i in range(x.shape[1]):
        marginal = np.sort(x[:, i][~np.isnan(x[:, i])])
        if not len(marginal):
            a[:, i], b[:, i] = 0.0, 0.0
            continue
        values, first = np.unique(marginal, return_index=True)
        middle = ndtri((first + np.append(first[1:], len(marginal))) / (2 * len(marginal)))
        middle = middle - middle.mean() if len(values) < 2 else middle
        a[:, i], b[:, i] = (np.nan_to_num(np.interp(t[:, i], values, middle)) for t in (x, ours))
    mean = a[known].mean(0)
    square = (a[known] - mean).T @ (a[known] - mean)
    square += np.diag(RIDGE * square.diagonal() + 1e-6)
    slope = np.linalg.solve(square, (a[known] - mean).T @ (z[known] - z[known].mean()))
    return (a - mean) @ slope, (b - mean) @ slope


def _slope(leaves: np.ndarray, z: np.ndarray, expected: np.ndarray) -> float:
    """Return the slope of z on its expectation within leaves, from 0 to 1."""
    _, where = np.unique(leaves, return_inverse=True)
    count = np.bincount(where)
    apart = [v - (np.bincount(where, v) / count)[where] for v in (z, expected)]
    return float(np.clip((apart[0] * apart[1]).sum() / max((apart[1] ** 2).sum(), 1e-12), 0.0, 1.0))
