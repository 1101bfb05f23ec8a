"""New rows of a table: one column after the other, from rows that are alike in the columns before.

For each column a tree splits the rows of the table by the columns before it, until few are left in a leaf: these have
much the same distribution of the column. A new row gets the value of one of them, so that frequent zeros, bounds, whole
numbers and combinations of categories come as they are in the table. A continuous value also moves along the Gaussian
copula by what the tree has left of the dependence, as the score

    z_r + s (l_i - l_r),

with z the normal scores, l what a regression of scores on the columns before expects, of the new row i and of the row r
whose value is taken, and s the slope of z on l within leaves; and it lies between two values of its column. Moreover:

- A column that is near a sum or a difference of columns before it is drawn as what it differs from these by: a trip
  ends after it begins, and a total is that of its parts.
- A column that another one determines is looked up (`lapae.space.levels`).
- Columns that are given come first, so that all others depend on them; nothing is rejected. New rows then ask much the
  same of a tree, and one leaf of few rows would answer for all: each of several trees, on rows drawn anew, answers for
  a part of them.

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
"""Minimum number of rows in a leaf that says how often a value is missing: a share needs more rows than a value."""
PRIOR = 5.0
"""Rows that pull the mean of a level to that of all rows."""
GAIN = 0.3
"""Share of its mean absolute deviation that a column loses if another one is taken from it, at least."""
MOST_PARTS = 6
DISTINCT, SPIKE = 0.3, 0.05
"""Share of a column's values that differ, from which it is continuous, and that of one value above which it is not."""
RIDGE = 1e-2
TRIES = 4
"""Draws of a row that is not the one whose value was taken last, at most."""
TREES = 10
"""Trees that new rows with given values are drawn from."""
MOST_SAMPLED = 4000
"""Rows that new ones are made from, at most."""
MOST_COLUMNS = 128
"""Columns of a table that is sampled row by row, at most; wider ones are decoded from codes."""


@dataclass(frozen=True)
class RowSampler:
    """Rows of a table that new ones are made from.

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
            m: how many.
            seed: seed of the draws.
            given: values that all new rows have, by the index of their column; NaN is missing.
            missing: whether values are missing as they are in the table; else rows are complete.
        """
        for j, value in (given or {}).items():
            if told := self._unlike(columns[j], j, value):
                warnings.warn(f"given: {told}", stacklevel=4)
        return _Draw(self.rows.double().numpy(), columns, m, np.random.default_rng(seed), missing).run(given or {})

    def _unlike(self, column: Column, j: int, value: float) -> str:
        """Say that no row has a value as far out as the given one of column j, or lacks one; "" if some do."""
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
    """New rows in the making: (m, F), of which the columns `done` are drawn."""

    def __init__(
        self, rows: np.ndarray, columns: Sequence[Column], m: int, rng: np.random.Generator, missing: bool
    ) -> None:
        self.rows, self.columns, self.rng, self.missing = rows, columns, rng, missing
        self.made = np.full((m, len(columns)), np.nan)
        self.words = [column.kind in ("category", "boolean") for column in columns]
        self.last = np.full(m, -1)  # row whose value each new row got last
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
        """Draw which new rows lack a value, (m,), by those that do, `lacks` (n,)."""
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
        """Choose columns, each with its sign, that column j is near the sum of."""
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
        """Return the columns before, of the rows (n, p) and of the new rows (m, p); a level as the mean of y (n,)."""
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
        """Choose one of the `allowed` rows x (n, p), with the `target` (n, …), in the leaf of each of ours (m, p).

        Args:
            kind: class of the trees.
            x: what is known of the rows.
            ours: what is known of the new ones.
            target: what the trees tell.
            allowed: rows that are chosen from.
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
        for _ in range(TRIES):  # not the row that gave the value before: rows would be copied
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
        """Take column j from the one that determines it, if that is drawn already."""
        column = self.columns[j]
        source = next((i for i in self.done if self.columns[i].name == column.given_by), None)
        if source is None or column.carried is not None:
            return
        table = dict(column.implied)
        found = np.array([table.get(value, np.nan) for value in self.made[:, source].tolist()])
        self.made[:, j] = np.where(np.isnan(found) | np.isnan(self.made[:, j]), self.made[:, j], found)


def _filled(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), np.nanmedian(rows) if not np.isnan(rows).all() else 0.0, x)


def _spread(x: np.ndarray) -> float:
    return float(np.nanmean(np.abs(x - np.nanmedian(x))))


def _decimals(values: np.ndarray) -> int | None:
    """Return how many decimals the values of a column have; None if more than 9."""
    known = values[~np.isnan(values)]
    close = 1e-10 * np.abs(known).max(initial=0.0)
    return next((k for k in range(10) if np.allclose(np.round(known, k), known, rtol=1e-12, atol=close)), None)


def _continuous(ordered: np.ndarray) -> bool:
    count = np.unique(ordered, return_counts=True)[1]
    return len(count) > DISTINCT * len(ordered) and count.max() <= max(2, SPIKE * len(ordered))


def _ranks(marginal: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return middles of the ranks of values (n,) among ordered ones, from 0 to 1; NaN stays."""
    low, high = (np.searchsorted(marginal, values, side=side) for side in ("left", "right"))
    return np.where(np.isnan(values), np.nan, (low + np.maximum(high, low + 1)) / (2 * len(marginal)))


def _levels(rows: np.ndarray, made: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return levels as the mean of y in their rows, pulled to that of all; missing ones are a level."""
    n = int(np.nanmax(rows)) + 1 if not np.isnan(rows).all() else 0
    ours, theirs = (np.where(np.isnan(x), n, np.minimum(x, n)).astype(int) for x in (rows, made))
    mean = y.mean()
    total, count = np.bincount(ours, y - mean, n + 1), np.bincount(ours, minlength=n + 1)
    value = mean + total / (count + PRIOR) + 1e-9 * np.arange(n + 1)
    return value[ours], value[theirs]


def _component(target: np.ndarray, n: int) -> np.ndarray:
    """Return a number (n,) of the level of each row by which other columns order theirs: frequent ones lie apart."""
    order = np.argsort(-np.bincount(target, minlength=n), kind="stable")
    value = np.empty(n)
    value[order] = np.arange(n) % 2
    return value[target]


def _expected(x: np.ndarray, ours: np.ndarray, z: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what a regression of scores z (n,) on normal scores of columns expects: of x (n, p), of ours (m, p)."""
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
    """Return the slope of z on what is expected within leaves, from 0 to 1."""
    _, where = np.unique(leaves, return_inverse=True)
    count = np.bincount(where)
    apart = [v - (np.bincount(where, v) / count)[where] for v in (z, expected)]
    return float(np.clip((apart[0] * apart[1]).sum() / max((apart[1] ** 2).sum(), 1e-12), 0.0, 1.0))
