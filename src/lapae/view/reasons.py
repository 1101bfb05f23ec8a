"""The one value that makes a row of a table unusual: which it is, what was expected there, and whether it is new.

The value that contributes most to an anomaly score need not be unusual itself: a payment in cash may contribute because
similar rows are unusual for other reasons. A reason is a value that differs from what the other values of the row
imply: the first such value among those that contribute most. If there is none, it is the first number among them that
is not exactly as expected; what is as expected is never a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lapae.model import Model
from lapae.score.unseen import differ
from lapae.space import Column
from lapae.space.columns import UNSEEN
from lapae.space.frames import cells

TRIED = 3
"""Maximum number of values of a row that are examined."""
LEAST = 0.05
"""Minimum share of the anomaly score of a value, other than the first, that is examined."""
SHOWN = 5
"""Maximum number of known levels named next to one that was never seen."""
REASONS = ("value", "feature", "share", "expected", "low", "high")
Expected = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, ...]]
"""Rows (r,), and a column of each (r,) -> expected value there and the ends of its interval, (r,) each."""


@dataclass(frozen=True)
class Reasons:
    """The value that makes each of n rows unusual.

    Attributes:
        feature: its column, (n,), -1 if no single value is unusual.
        share: its share of the anomaly score, (n,).
        value: its code, (n,).
        expected: expected code, (n,), NaN if there is none; `low` and `high` are the ends of its interval.
    """

    feature: np.ndarray
    share: np.ndarray
    value: np.ndarray
    expected: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def texts(self, columns: Sequence[Column], unseen: Mapping[tuple[int, int], str]) -> dict[str, list[str]]:
        """Return `REASONS` except the share, as the columns are written; empty if there is no reason.

        `unseen` are the levels that were never seen, by row and column.
        """
        found = {name: [""] * len(self.feature) for name in REASONS if name != "share"}
        for i, column in enumerate(columns):
            rows = np.flatnonzero(self.feature == i)
            end = replace(column, kind="number") if column.kind == "count" else column
            between = {"low": end, "high": end} if column.likelihood == "gaussian" and column.kind != "category" else {}
            # a height of 1.82 in a column of whole centimetres is shown as it is
            for name, as_in in ({"value": end, "expected": column} | between).items():
                for row, text in zip(rows, cells(getattr(self, name)[rows], as_in), strict=True):
                    found[name][row] = "" if text == "nan" else text
            for row in rows.tolist():
                found["feature"][row] = column.name
                found["value"][row] = unseen.get((row, i), found["value"][row])
        return found


def choose_reasons(columns: Sequence[Column], coded: np.ndarray, part: np.ndarray, expected_of: Expected) -> Reasons:
    """Choose the value that makes each row unusual.

    Args:
        columns: columns of the table, (F,).
        coded: rows as codes (n, F).
        part: contribution of each value to the anomaly score of its row, (n, F), at least 0.
        expected_of: returns what was expected.
    """
    n, f = part.shape
    part = np.nan_to_num(part)
    total = part.sum(1)
    order = np.argsort(-part, axis=1, kind="stable")
    words = np.array([column.kind in ("category", "boolean") for column in columns])
    feature, ends = np.full(n, -1), np.full((3, n), np.nan)
    rows = np.flatnonzero(total > 0)
    for k in range(min(TRIED, f)):
        rows = rows[part[rows, order[rows, k]] > (LEAST * total[rows] if k else 0)]
        j = order[rows, k]
        if not len(rows):
            break
        found = np.stack(expected_of(rows, j))
        value = coded[rows, j]
        odd = np.where(words[j], value != found[0], ~((found[1] <= value) & (value <= found[2])))
        taken = odd | (~words[j] & (value != found[0]) & (feature[rows] < 0))
        feature[rows[taken]], ends[:, rows[taken]] = j[taken], found[:, taken]
        rows = rows[~odd]
    at = np.arange(n), feature.clip(0)
    told = feature >= 0
    share = np.where(told, part[at] / total.clip(1e-12), 0.0)
    return Reasons(feature, share, np.where(told, coded[at], np.nan), *ends)


def find_reasons(model: Model, coded: np.ndarray, contribution: np.ndarray | None = None) -> Reasons:
    """Find the value that makes each row of a table unusual, for rows as codes (n, F).

    `contribution` is the result of `Model.explain` for them, if already known.
    """
    part = model.explain(coded) if contribution is None else contribution

    def expected_of(rows: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        asked = np.zeros((len(rows), part.shape[1]), bool)
        asked[np.arange(len(rows)), j] = True
        found = model.counterfactual(coded[rows], asked=asked, contribution=part[rows])
        expected, low, high = (end[np.arange(len(rows)), j] for end in found)
        return expected, low, high

    columns, marked = model.space.numbered, model.marked(coded)
    return _of_two(model, coded, choose_reasons(columns, marked, part, expected_of), marked)


def _of_two(model: Model, coded: np.ndarray, found: Reasons, marked: np.ndarray) -> Reasons:
    """Choose between two values that contradict each other, of which one determines the other: the reason is the value
    whose replacement by the expected one makes the row less unusual."""
    columns = model.space.numbered
    places = {column.name: i for i, column in enumerate(columns)}
    implied = model.space.implied(model.space.known(coded))
    made = {name: getattr(found, name).copy() for name in ("feature", "value", "expected", "low", "high")}
    for own, source in ((i, places[c.given_by]) for i, c in enumerate(columns) if c.given_by in places):
        line = columns[own].line
        reach = 0.0 if line is None else line.reach + line.unit / 2  # what is implied is rounded
        wrong = (
            differ(coded[:, own], implied[:, own], reach) & (marked[:, own] != UNSEEN) & (marked[:, source] != UNSEEN)
        )
        rows = np.flatnonzero(wrong & np.isin(found.feature, (own, source)))
        if not len(rows):
            continue
        repaired, ends = [], []
        for j in (own, source):
            lacking = model.space.known(coded[rows])
            lacking[:, j] = np.nan
            best, (low, high) = model.impute(lacking), model.impute_interval(lacking)
            repaired.append(best)
            ends.append(np.stack([best[:, j], low[:, j], high[:, j]]))
        scores = [model.judge(np.where(np.isnan(coded[rows]), np.nan, x)).anomaly_score for x in repaired]
        other = scores[1] < scores[0]
        chosen = np.where(other, source, own)
        made["feature"][rows], made["value"][rows] = chosen, coded[rows, chosen]
        for k, name in enumerate(("expected", "low", "high")):
            made[name][rows] = np.where(other, ends[1][k], ends[0][k])
    return replace(found, **made)


def never_seen(model: Model, coded: np.ndarray, words: Mapping[tuple[int, int], str]) -> list[str]:
    """Return a sentence for each row, as codes (n, F), about levels that no training row has; empty if there are none.

    `words` are the levels that have no code, by row and column.
    """
    told: list[list[str]] = [[] for _ in coded]
    marked = model.marked(coded)
    for i, column in enumerate(model.space.numbered):
        if column.kind not in ("category", "boolean"):
            continue
        for row in np.flatnonzero(marked[:, i] == UNSEEN).tolist():
            word = words.get((row, i)) or word_of(column, coded[row, i])
            told[row].append(f"{column.name}: {word} was never seen; seen: {seen(column)}")
    return [". ".join(one) for one in told]


def word_of(column: Column, code: float) -> str:
    """Return the level of a category or boolean with a code."""
    return "a level" if code < 0 else cells(np.array([code]), column)[0]


def seen(column: Column) -> str:
    """Return some levels of a category or boolean, for a message."""
    levels = column.categories or (("true", "false") if column.dtype.startswith("bool") else ("1", "0"))
    more = len(levels) - SHOWN
    return ", ".join(levels[:SHOWN]) + (f" and {more} more" if more > 0 else "")
