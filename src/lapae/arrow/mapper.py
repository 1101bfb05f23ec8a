"""`lapae.mapper`: a trained run as a function from Arrow record batches to Arrow record batches.

The function is pickled as the path of its run and its options. Each process loads the run once. The output of a row
does not depend on the rows beside it, to the last bit, so that it does not matter how an engine divides the rows. One
thread is used: how an operation is divided between threads may change its last bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lapae.arrow.blocks import RowModel
from lapae.errors import ConfigError, DataError, RunError, did_you_mean
from lapae.networks.threads import one_thread
from lapae.space.frames import find_columns, warn_unknown
from lapae.storage import load_for_new_data

try:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
except ImportError:
    raise ImportError("lapae.mapper needs pyarrow: pip install 'lapae[parquet]'") from None

from lapae.arrow.series import Series, of_steps, step_fields
from lapae.arrow.verbs import VERBS, Embed, Verb
from lapae.data.arrow_codes import codes_of
from lapae.space.columns import unique_names

CHUNK = 8192
"""Minimum number of rows that are processed at a time: smaller batches are combined."""
VALUES = 2**19
"""Number of values that verbs that fill in missing values process at a time, if this means more rows: rows that lack
the same values are grouped."""
WHOLE_CALL = {
    "discoveries": "which rows are discoveries depends on all p-values together: map the verb 'score', collect the "
    "column p_value and apply Benjamini-Hochberg to it (scipy.stats.false_discovery_control)",
    "sample": "samples are generated, not mapped from rows: call LaplacianAutoencoder.load(run).sample(n)",
}
PREDICTING = ("predictive", "n_samples", "seed")
_models: dict[tuple[Any, ...], RowModel] = {}
"""Models that this process has loaded."""


def mapper(
    run: str | Path,
    verb: str = "score",
    *,
    keep: Any = None,
    series: str | Sequence[str] | None = None,
    time: str | None = None,
    **options: Any,
) -> Mapper:
    """Make a function that maps Arrow record batches of rows to what a trained run says of them.

    Args:
        run: folder of a run that was trained on a table or a series.
        verb: "score" (anomaly_score, p_value, outlier), "impute", "embed" or "reconstruct".
        keep: columns of the input to copy to the front of the output: a pyarrow schema, or a mapping from names to
            pyarrow types. Default: none.
        series: for a run that was trained on a series, the columns that say to which series a row belongs; () if all
            rows are steps of the same series.
        time: column by which the steps of a series are sorted; default: the order in which they arrive.
        options: options of the verb: `false_alarm_rate` and `explain` of "score", `level` of "impute" and
            "reconstruct"; and `predictive`, `n_samples` and `seed`, by default as the run was trained.

    Returns:
        A `Mapper`: call it with an iterable of record batches; `schema` is that of its output.
    """
    if verb in WHOLE_CALL:
        raise ConfigError(f"{verb}: {WHOLE_CALL[verb]}")
    if verb not in VERBS:
        raise ConfigError(f"verb = {verb!r}: expected one of {', '.join(VERBS)}{did_you_mean(verb, VERBS)}")
    known = [each.name for each in fields(VERBS[verb])]
    for name in options:
        if name not in (*known, *PREDICTING):
            expected = ", ".join([*known, "keep", *PREDICTING])
            raise ConfigError(f"{verb} has no option {name!r}: expected {expected}{did_you_mean(name, known)}")
    predicting = {name: options.pop(name) for name in PREDICTING if options.get(name) is not None}
    options = {name: value for name, value in options.items() if name in known}
    steps = None if series is None else Series((series,) if isinstance(series, str) else tuple(series), time)
    if time is not None and steps is None:
        raise ConfigError("time is the order of the steps of a series: say which rows belong together with series=")
    return Mapper.of(Path(run).expanduser().absolute(), VERBS[verb](**options), _kept(keep), predicting, steps)


@dataclass(frozen=True)
class Mapper:
    """From record batches to record batches; made by `lapae.mapper`.

    Attributes:
        run: folder of the run.
        verb: the verb with its options.
        keep: columns of the input that are copied into the output.
        predicting: how the model predicts, if not as in the run.
        digest: digest of the model's file, so that every process uses the same model.
        series: which rows are steps of one series; None for a table.
        schema: the columns of the output (pyarrow).
    """

    run: Path
    verb: Verb
    keep: Any
    predicting: Mapping[str, Any]
    digest: str
    series: Series | None = None
    schema: Any = field(default=None, compare=False)

    @classmethod
    def of(
        cls, run: Path, verb: Verb, keep: Any, predicting: Mapping[str, Any], series: Series | None = None
    ) -> Mapper:
        """Inspect the run: fit its imputer if the verb needs one, and determine the schema of the output."""
        start = cls(run, verb, keep, dict(predicting), _digest(run), series)
        model = start.loaded.model
        kind = model.space.kind
        if kind not in ("table", "series"):
            raise ConfigError(
                f"{run} was trained on {model.space.describe()}: a mapper takes rows of a table or steps of a series; "
                "use the command lapae score, which takes a file of that kind at a time"
            )
        if kind == "series" and series is None:
            raise ConfigError(
                f"{run} was trained on {model.space.describe()}: a series is judged as a whole, so name the columns "
                "that say which series a row belongs to (series='machine'; () if all rows are steps of one), and the "
                "column of the time (time='when') unless rows are in order. Divide the input by series, never by rows"
            )
        if kind == "table" and series is not None:
            raise ConfigError(
                f"series: {run} was trained on {model.space.describe()}, whose rows are judged one by one"
            )
        if verb.imputes() and model.likelihood.missing:
            with one_thread():
                model.with_imputer()  # kept in the run folder, for all processes
        schema = pa.schema([*keep, *(verb.fields(model) if series is None else step_fields(verb, model))])
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise ConfigError(f"keep: the output has columns {', '.join(map(repr, twice))} of its own: rename yours")
        return cls(run, verb, keep, dict(predicting), start.digest, series, schema)

    @property
    def loaded(self) -> RowModel:
        """The model, loaded once per process."""
        key = self.run, self.digest, tuple(self.predicting.items())
        if key not in _models:
            if (found := _digest(self.run)) != self.digest:
                raise RunError(
                    f"{self.run} is not the run that the mapper was made from ({found[:12]}, expected "
                    f"{self.digest[:12]}): it was trained again, or another folder is there on this machine"
                )
            with one_thread():
                _models[key] = RowModel(load_for_new_data(self.run).predicting(**self.predicting))
        return _models[key]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Map record batches.

        Args:
            batches: pyarrow record batches of one schema and any size; all rows of a series one after another.

        Yields:
            Record batches of `schema`, with the rows in order.
        """
        unknown: dict[str, set[str]] = {}
        if self.series is not None:
            for name, rows in self.series.split(iter(batches)):
                yield self._map_series(name, rows, unknown)
        else:
            for chunk in _chunks(batches, VALUES if self.verb.imputes() else 0):
                yield self._map(chunk, unknown)
        warn_unknown(unknown, "X")

    def table(self, table: Any) -> Any:
        """Map a pyarrow table, as passed by Ray's `map_batches` and Spark's `applyInArrow`. It has all rows of each
        series, in any order."""
        table = table if self.series is None else self.series.together(table)
        return pa.Table.from_batches(self(table.to_batches()), self.schema)

    def frame(self, frame: Any) -> Any:
        """Map a pandas frame, as passed by Dask's `map_partitions`; the index is kept, except for series."""
        found = self.table(pa.Table.from_pandas(frame, preserve_index=False)).to_pandas(types_mapper=self._types().get)
        return found.set_axis(frame.index) if self.series is None else found

    @property
    def empty_frame(self) -> Any:
        """Return a pandas frame without rows, with the columns and types of `frame`: what Dask calls `meta`."""
        return self.schema.empty_table().to_pandas(types_mapper=self._types().get)

    @staticmethod
    def _types() -> dict[Any, Any]:
        """Types that pandas would choose depending on missing values, so that the choice would vary by partition."""
        import pandas as pd

        return {pa.bool_(): pd.BooleanDtype(), pa.int64(): pd.Int64Dtype()}

    def _map(self, batch: Any, unknown: dict[str, set[str]]) -> Any:
        kept = [_column(batch, each) for each in self.keep]
        if not batch.num_rows:
            return pa.RecordBatch.from_pylist([], self.schema)
        with one_thread():
            words: dict[tuple[int, int], str] = {}
            x, features = self._codes(batch, unknown, words)
            found = self.verb(self.loaded, x, features, words)
        return pa.RecordBatch.from_arrays([*kept, *found], schema=self.schema)

    def _map_series(self, name: str, rows: Any, unknown: dict[str, set[str]]) -> Any:
        batch = rows.combine_chunks().to_batches()[0]
        kept = [_column(batch, each) for each in self.keep]
        with one_thread():
            x, features = self._codes(batch, unknown, {})
            at, found = of_steps(self.verb, self.loaded.model, x, features, name)
        return pa.RecordBatch.from_arrays([*(each.take(pa.array(at)) for each in kept), *found], schema=self.schema)

    def _codes(
        self, batch: Any, unknown: dict[str, set[str]], words: dict[tuple[int, int], str]
    ) -> tuple[Any, list[Any]]:
        """Return the features of a batch as codes (n, F), and in their original form."""
        model = self.loaded.model
        columns = model.space.numbered
        x = codes_of(batch, columns, "X", unknown, words)
        if not model.likelihood.missing and (x != x).any():
            row, column = next(zip(*(x != x).nonzero(), strict=True))
            raise DataError(
                f"X: a value of column {columns[column].name!r} is missing (row {row} of the batch, from 0), which "
                f"the {model.config.model.likelihood} likelihood cannot take"
            )
        places = find_columns(unique_names(batch.schema.names), columns, "X")
        return x, [batch.column(place) for place in places]


def is_of_series(run: Path) -> bool:
    """Return whether a run was trained on a series."""
    run = run.expanduser().absolute()
    return Mapper(run, Embed(), pa.schema([]), {}, _digest(run)).loaded.model.space.kind == "series"


def _kept(keep: Any) -> Any:
    """Return the columns to keep as a schema."""
    if keep is None or isinstance(keep, pa.Schema):
        return pa.schema([] if keep is None else keep)
    try:
        return pa.schema(list(dict(keep).items()))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"keep = {keep!r}: expected a pyarrow schema, or names with pyarrow types") from error


def _column(batch: Any, wanted: Any) -> Any:
    place = batch.schema.get_field_index(wanted.name)
    if place < 0:
        raise DataError(f"X: has no column {wanted.name!r} to keep; it has {', '.join(batch.schema.names[:20])}")
    array = batch.column(place)
    try:
        return array if array.type == wanted.type else array.cast(wanted.type)
    except pa.ArrowException as error:
        raise DataError(f"X: column {wanted.name!r} of type {array.type} is not {wanted.type} ({error})") from None


def _chunks(batches: Iterable[Any], values: int = 0) -> Iterator[Any]:
    """Yield record batches of at most `CHUNK` rows, or as many as have `values` values; small ones are combined."""
    held: list[Any] = []
    n = 0
    for batch in batches:
        size = max(CHUNK, values // max(1, batch.num_columns))
        for start in range(0, max(batch.num_rows, 1), size):
            part = batch.slice(start, size)
            if held and n + part.num_rows > size:
                yield _joined(held)
                held, n = [], 0
            held.append(part)
            n += part.num_rows
    if held:
        yield _joined(held)


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _digest(run: Path) -> str:
    """Return the digest of the file of a run's model."""
    from lapae.runs import MODEL, Run

    path = Run.open(run) / MODEL
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"{run} has no model yet: train it with lapae train --resume {run} ({error.strerror})") from None
