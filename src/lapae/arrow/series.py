"""Series in record batches: results of a model of windows for every step, one whole series at a time.

A step is judged by the windows that contain it, and its adaptive p-value depends on all steps before it. So the rows of
a series must be together and in order; the order of different series does not matter.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingImports]
import pyarrow.compute as pc  # pyright: ignore[reportMissingImports]

from lapae.arrow.blocks import Arrays
from lapae.arrow.verbs import Embed, Impute, Reconstruct, Score, Verb, numbers, quiet, value_columns
from lapae.calibrate.steps import StepScores
from lapae.errors import DataError
from lapae.model import Model
from lapae.space.series import Fold

AT_ONCE = 2**20
"""Number of values of windows that are processed at a time."""


@dataclass(frozen=True)
class Series:
    """Which rows are steps of one series, and their order.

    Attributes:
        keys: columns whose values name a series; none if all rows are steps of the same series.
        time: column by which the steps are sorted; default: the order in which they arrive.
    """

    keys: tuple[str, ...]
    time: str | None = None

    def split(self, batches: Iterator[Any]) -> Iterator[tuple[str, Any]]:
        """Yield the name of each series and its rows, a table, in order of time.

        Args:
            batches: record batches with the rows of a series one after another.
        """
        held: list[Any] = []
        last: tuple[Any, ...] | None = None
        done: set[tuple[Any, ...]] = set()
        for batch in batches:
            if not batch.num_rows:
                continue
            ids = self._ids(batch)
            bounds = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
            for start, end in pairwise(bounds):
                key = tuple(self._column(batch, name)[start].as_py() for name in self.keys)
                if key != last and last is not None:
                    yield self._told(last), self._in_time(last, held)
                    done.add(last)
                    held = []
                if key in done:
                    raise DataError(
                        f"X: the rows of series {self._told(key)} are not together, others are between them: sort by "
                        f"{', '.join(map(repr, self.keys))} first, or give all rows at once to Mapper.table"
                    )
                last = key
                held.append(batch.slice(start, end - start))
        if last is not None:
            yield self._told(last), self._in_time(last, held)

    def together(self, table: Any) -> Any:
        """Return a table with the rows of each series one after another, in the order in which series begin."""
        if not self.keys or not table.num_rows:
            return table
        ids = self._ids(table)
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        return table.take(np.argsort(first[which], kind="stable"))

    def _ids(self, rows: Any) -> np.ndarray:
        """Return a number for each row, the same for rows of one series."""
        ids = np.zeros(rows.num_rows, np.int64)
        for name in self.keys:
            column = self._column(rows, name)
            column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            codes = pc.call_function("dictionary_encode", [column], pc.DictionaryEncodeOptions("encode"))
            ids = np.unique(np.stack([ids, np.asarray(codes.indices)], 1), axis=0, return_inverse=True)[1].reshape(-1)
        return ids

    def _in_time(self, key: tuple[Any, ...], parts: list[Any]) -> Any:
        rows = pa.Table.from_batches(parts)
        if self.time is None:
            return rows
        order = pc.call_function("array_sort_indices", [self._column(rows, self.time).combine_chunks()])
        rows = rows.take(order)
        times = self._column(rows, self.time)
        if times.null_count:
            raise DataError(f"X: series {self._told(key)} has steps without a {self.time!r}")
        equal = np.asarray(pc.call_function("equal", [times.slice(1), times.slice(0, max(len(times) - 1, 0))]))
        if equal.any():
            raise DataError(
                f"X: series {self._told(key)} has two steps at {self.time!r} = {times[int(equal.argmax())].as_py()}: "
                "their order is not known"
            )
        return rows

    def _column(self, rows: Any, name: str) -> Any:
        place = rows.schema.get_field_index(name)
        if place < 0:
            raise DataError(f"X: no column {name!r}; it has {', '.join(rows.schema.names[:20])}")
        return rows.column(place)

    def _told(self, key: tuple[Any, ...]) -> str:
        return ", ".join(f"{name} = {value!r}" for name, value in zip(self.keys, key, strict=True)) or "of these rows"


def step_fields(verb: Verb, model: Model) -> list[Any]:
    """Return the fields of the output for a model of series."""
    if not isinstance(verb, Score):
        start = [pa.field("start", pa.int64())] if isinstance(verb, Embed) else []
        return [*start, *verb.fields(model)]
    found = [pa.field(name, pa.float64()) for name in ("anomaly_score", "p_value", "p_adaptive")]
    found.append(pa.field("drift", pa.bool_()))
    found += [pa.field(f"unusual_{column.name}", pa.float64()) for column in model.space.numbered]
    if verb.explain:
        found += [pa.field("channel", pa.string()), pa.field("share", pa.float64())]
    return [*found, pa.field("outlier", pa.bool_())]


def of_steps(verb: Verb, model: Model, x: np.ndarray, features: list[Any], name: str) -> tuple[np.ndarray, list[Any]]:
    """Return the results of a verb for a series.

    Args:
        verb: the verb.
        model: the trained model of windows.
        x: the steps (T, C); NaN is missing.
        features: the channels in their original form, Arrow arrays (T).
        name: name of the series, for messages.

    Returns:
        The steps to which the rows of the output belong, (n,), and Arrow arrays (n) as described by `step_fields`. A
        series that is shorter than a window has no results: the arrays are null, or unchanged.
    """
    window, n = model.space.shape[0], len(x)
    if n < window:
        warnings.warn(f"series {name} has {n} steps, fewer than a window of {window}: it has no results", stacklevel=4)
    windows, first = model.space.windows(x) if n >= window else (np.empty((0, *model.space.shape)), np.empty(0, int))
    size = max(1, AT_ONCE // int(np.prod(model.space.shape)))
    blocks = [slice(start, start + size) for start in range(0, len(first), size)]
    if isinstance(verb, Embed):
        found = [model.encode(windows[part]) for part in blocks]
        k = len(verb.fields(model)) // 2
        both = [np.concatenate([np.empty((0, k)), *(f[i].reshape(len(f[i]), -1) for f in found)]) for i in (0, 1)]
        return first, [pa.array(first), *(numbers(column) for part in both for column in part.T)]
    every = np.arange(n)
    if isinstance(verb, Score):
        return every, _scores(verb, model, n, [(first[part], windows[part]) for part in blocks])
    missing = np.isnan(x)
    make, ours = _maker(verb, model, missing)
    folded = [Fold(n) for _ in range(3)]
    for part in blocks:
        for fold, values in zip(folded, make(windows[part]), strict=False):
            fold.add(first[part], values)
    made, *ends = (x if fold.total is None else np.where(ours, fold.mean(), x) for fold in folded)
    ends = ends if getattr(verb, "level", None) is not None else []
    if isinstance(verb, Impute):
        return every, value_columns(model, verb.filled(model, x, features, made), ends)
    assert isinstance(verb, Reconstruct)
    if n < window:
        made, *ends = (np.full(x.shape, np.nan) for _ in range(3))
    return every, value_columns(model, verb.expected(model, made), ends)


def _scores(verb: Score, model: Model, n: int, blocks: list[tuple[np.ndarray, np.ndarray]]) -> list[Any]:
    rule = model.step_rule(verb.false_alarm_rate)

    def judged() -> Iterator[Arrays]:
        for first, windows in blocks:
            found = quiet(model.judge, windows, reasons=True)
            yield first, found.anomaly_score, found.contribution

    threshold = model.threshold(rule, overlap=model.space.shape[0])
    steps = StepScores.of(n, judged(), rule, threshold)  # type: ignore[arg-type]
    if steps is None:
        unknown = np.full(n, np.nan)
        steps = StepScores(unknown, unknown, unknown, np.zeros(n, bool), np.full((n, model.space.shape[1]), np.nan))
    nothing = np.isnan(steps.p_value)
    out = [numbers(values) for values in (steps.anomaly_score, steps.p_value, steps.p_adaptive)]
    out += [pa.array(steps.drift, mask=nothing), *(numbers(values) for values in steps.unusual.T)]
    if verb.explain:
        channel, share = steps.leading()
        names = [model.space.numbered[i].name if i >= 0 else None for i in channel.tolist()]
        out += [pa.array(names, pa.string()), pa.array(share, mask=channel < 0)]
    return [*out, pa.array(steps.p_value <= rule.rate, mask=nothing)]


def _maker(verb: Verb, model: Model, missing: np.ndarray) -> tuple[Callable[[np.ndarray], Arrays], np.ndarray]:
    """Return a function that computes values of windows, with ends of intervals, and which of the series' values these
    are."""
    if isinstance(verb, Reconstruct):
        return lambda windows: model.expected(windows, verb.level), np.ones(missing.shape, bool)
    assert isinstance(verb, Impute)

    def fill(windows: np.ndarray) -> Arrays:
        made = tuple(windows.copy() for _ in range(1 if verb.level is None else 3))
        lacking = np.isnan(windows).any((1, 2))
        if lacking.any():
            made[0][lacking] = model.impute(windows[lacking], guess=verb.guess)
            if verb.level is not None:
                made[1][lacking], made[2][lacking] = model.impute_interval(windows[lacking], verb.level)
        return made

    return fill, missing
