"""Tables in Parquet files that are larger than memory, read in stripes: once to split them, and then in every pass.

The columns, their scale, and everything that is compared with rows in memory come from a random sample of rows. A hash
of its values decides in which split a row is, so that copies of a row are in one split, and a resumed run sees the same
split without a list of rows. Rows whose values many others share (dice, products) are also split by their position, or
all rows with the same values would be in one split.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.copies import MOST_COPIES, hashed
from lapae.data.data import Data
from lapae.data.extremes import FAR, fences
from lapae.data.frame import table_records
from lapae.data.parquet_file import ParquetFile, check_same_columns, sound
from lapae.data.progress import progress
from lapae.data.source import Records, Split, Streamed, even
from lapae.data.splits import count_of, held_out_sizes
from lapae.errors import DataError
from lapae.runs.files import stamp
from lapae.space import Column, Space
from lapae.space.frames import Frame, warn_unknown

LARGE = 2**25
"""Number of cells from which on a table is streamed: 1.7 million rows of 20 columns."""
IN_MEMORY = {"label_column", "group_column", "window", "stride"}
"""Options for which a table is read into memory."""
STRIPE = 2**13
"""Number of rows that are read at a time."""
SAMPLE_ROWS, SAMPLE_VALUES = 2**17, 2**22
"""Maximum number of rows and values in a sample, and in each held-out split, which are all held in memory."""
LOOKED_AT = 2**24
"""Number of rows from which the sample that determines the columns is drawn, unless a row group has more."""
POOL_VALUES = 2**22
"""Number of values that are shuffled together."""
LANES, LANE_COLUMNS = 8, 80
"""Maximum number of row groups that are read at the same time, and of their columns: a page of each is in memory."""
BUFFER = 2**16
SURELY = 3
"""Minimum number of times that a row must be in the sample to be frequent: two of ten copies may be in it by chance."""
_TEST, _VALID, _CALIB, _TRAIN, _NONE = range(5)


@dataclass(frozen=True)
class Group:
    """A row group.

    Attributes:
        path: its file.
        index: its number in the file.
        first: number of rows of the table before it.
        n: number of its rows.
    """

    path: Path
    index: int
    first: int
    n: int


@dataclass(frozen=True)
class Rule:
    """Decides in which split a row is, and which of its values are absurd.

    Attributes:
        bounds: (3,) ends of the shares of test, validation and calibration rows in [0, 1); the others are for training.
        seed: of the split.
        frequent: sorted hashes of rows that are split by their position.
        fences: bounds of each column beyond which values are absurd, (2, F).
    """

    bounds: np.ndarray
    seed: int
    frequent: np.ndarray
    fences: np.ndarray

    def __call__(self, x: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Split rows.

        Args:
            x: codes (n, F) of consecutive rows.
            first: number of rows of the table before them.

        Returns:
            Codes without absurd values (n, F), the split of each row (n,), and a key (n,) that copies have in common.
        """
        with np.errstate(invalid="ignore"):
            far = (x < self.fences[0]) | (x > self.fences[1])
        x = np.where(far, np.nan, x) if far.any() else x
        key = hashed(x)
        if len(self.frequent):
            at = np.searchsorted(self.frequent, key).clip(max=len(self.frequent) - 1)
            place = _mixed(np.arange(first, first + len(x), dtype=np.uint64) + np.uint64(1))
            key = np.where(self.frequent[at] == key, key ^ place, key)
        key = _mixed(key + np.uint64(self.seed))
        part = np.searchsorted(self.bounds, key / 2.0**64, side="right")
        part[np.isnan(x).all(1)] = _NONE
        return x, part, key


class RowStream(Streamed):
    """Training rows of a table that is read from its files in every pass.

    Attributes:
        groups: row groups of the table.
        columns: columns that are learned.
        counts: (G,) training rows of each row group.
        digests: (G,) a number that changes with the values of a row group.
        sample: (m, F) some training rows, evenly spaced.
        sample_rows: (m,) their positions in the table.
    """

    def __init__(self, table: ParquetTable, columns: tuple[Column, ...], rule: Rule, found: Scanned) -> None:
        self.groups, self.columns = table.groups, columns
        self.counts, self.digests = found.counts, found.digests
        self.sample, self.sample_rows = found.sample, found.sample_rows
        self.shape, self.dtype = (int(found.counts.sum()), len(columns)), np.dtype(np.float64)
        self._table, self._rule = table, rule
        self._first = np.concatenate([[0], np.cumsum(found.counts)])

    def __getitem__(self, index: Any) -> np.ndarray:
        """Read the row groups that contain the rows at an integer, a slice or an array of integers."""
        chosen = np.arange(*index.indices(len(self))) if isinstance(index, slice) else np.asarray(index)
        wanted, place = np.unique(chosen, return_inverse=True)
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < len(self):
            raise IndexError(f"rows {wanted[0]} to {wanted[-1]} of {len(self)}")
        out = np.empty((len(wanted), self.shape[1]))
        starts = np.searchsorted(wanted, self._first)
        for group, start, stop, first in zip(self.groups, starts, starts[1:], self._first, strict=False):
            if start == stop:
                continue
            for rows in self._training_rows(group):
                last = np.searchsorted(wanted, first + len(rows))
                out[start:last] = rows[wanted[start:last] - first]
                start, first = last, first + len(rows)
                if start == stop:
                    break
        return out[place.reshape(np.shape(chosen))]

    def stored(self, index: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield the digests of the row groups, which were computed when the table was split."""
        yield self.digests

    def pools(self, seed: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield all training rows once, shuffled, in pools (n, F).

        Row groups come in random order. Several are read at the same time, and a pool has rows from all of them, so
        that a batch comes from several places in the table, even if it is in the order of time.

        Args:
            seed: of the order.
        """
        rng = np.random.default_rng(list(seed))
        width = self.shape[1]
        n_lanes = max(1, min(LANES, LANE_COLUMNS // width))
        order = iter([self.groups[g] for g in rng.permutation(len(self.groups)) if self.counts[g]])
        lanes = [self._training_rows(group) for group in itertools.islice(order, n_lanes)]
        held: list[np.ndarray] = []
        n = 0
        while lanes:
            for i, lane in enumerate(lanes):
                rows = next(lane, None)
                if rows is None:
                    group = next(order, None)
                    lanes[i] = iter(()) if group is None else self._training_rows(group)
                    if group is None:
                        del lanes[i]
                        break
                    continue
                held.append(rows)
                n += len(rows)
            if held and (n * width >= POOL_VALUES or not lanes):
                yield rng.permutation(np.concatenate(held))
                held, n = [], 0

    def _training_rows(self, group: Group) -> Iterator[np.ndarray]:
        """Yield the training rows (n, F) of a row group in order."""
        for first, x in self._table.codes(group, self.columns, {}):
            x, part, _ = self._rule(x, first)
            yield x[part == _TRAIN]


class ParquetTable:
    """The row groups of Parquet files with the same columns.

    Args:
        files: the files.
        where: begins messages.
    """

    def __init__(self, files: Sequence[Path], where: str) -> None:
        self.where, self.files = where, list(files)
        self.stamps = [stamp(path) for path in files]
        self.names: list[str] = []
        self.groups: list[Group] = []
        first = 0
        for path in files:
            opened = ParquetFile(path)
            if not self.names:
                self.names = opened.first
            check_same_columns(opened.first, self.names, path, files[0])
            for i in range(opened.file.metadata.num_row_groups):
                n = opened.file.metadata.row_group(i).num_rows
                self.groups.append(Group(path, i, first, n))
                first += n
            opened.file.close()
        self.n_rows = first

    def check_unchanged(self) -> None:
        """Raise a DataError if a file is not the one that was opened."""
        for path, before in zip(self.files, self.stamps, strict=True):
            if not path.exists() or stamp(path) != before:
                raise DataError(f"{path}: has changed while it was read; give files that stay as they are")

    def batches(self, group: Group, names: Sequence[str]) -> Iterator[Any]:
        """Yield the columns `names` of a row group as record batches, a page of each in memory at a time."""
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]

        with sound(group.path), parquet.ParquetFile(group.path, pre_buffer=False, buffer_size=BUFFER) as file:
            yield from file.iter_batches(STRIPE, row_groups=[group.index], columns=list(names), use_threads=False)

    def codes(
        self, group: Group, columns: Sequence[Column], unknown: dict[str, set[str]]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the codes (n, F) of some rows of a row group, and the number of rows of the table before them."""
        from lapae.data.arrow_codes import codes_of

        first = group.first
        for batch in self.batches(group, [column.name for column in columns]):
            yield first, codes_of(batch, columns, f"{group.path}, from row {first - group.first + 1}", unknown)
            first += batch.num_rows

    def some(self, n: int, seed: int) -> tuple[Frame, float]:
        """Return about n rows, drawn at random, and their share of all rows."""
        import pyarrow as pa  # pyright: ignore[reportMissingImports]

        order = np.random.default_rng(seed).permutation(len(self.groups))
        before = np.concatenate([[0], np.cumsum([self.groups[g].n for g in order])])[:-1]
        groups = [self.groups[g] for g in np.sort(order[before < LOOKED_AT])]
        share = min(1.0, n / max(1, sum(group.n for group in groups)))
        found = []
        with progress(f"looking at {self.where}", len(groups)) as advance:
            for group in groups:
                first = group.first
                for batch in self.batches(group, self.names):
                    place = _mixed(np.arange(first, first + batch.num_rows, dtype=np.uint64) + np.uint64(seed))
                    chosen = np.flatnonzero(place / 2.0**64 < share)
                    found.append(pa.Table.from_batches([batch.take(pa.array(chosen))]).select(self.names))
                    first += batch.num_rows
                advance(1)
        if not found:
            raise DataError(f"{self.where}: holds no rows")
        try:
            frame = pa.concat_tables(found, promote_options="permissive").to_pandas()
        except pa.ArrowException as error:
            raise DataError(f"{self.where}: a column is of different types in its files ({error})") from error
        return frame, len(frame) / max(1, self.n_rows)


@dataclass(frozen=True)
class Scanned:
    """Result of one pass over a table.

    Attributes:
        counts: (G,) training rows of each row group.
        digests: (G,) a number that changes with the values of a row group.
        held: codes (n, F), places (n,) and keys (n,) of the rows of each split that is held out: test, valid, calib.
        sample: (m, F) some training rows.
        sample_rows: (m,) their positions.
        missing: whether a value is missing.
    """

    counts: np.ndarray
    digests: np.ndarray
    held: tuple[tuple[np.ndarray, ...], ...]
    sample: np.ndarray
    sample_rows: np.ndarray
    missing: bool


def is_large(files: Sequence[Path]) -> bool:
    """Return whether Parquet files are streamed."""
    return sum(file.size * file.width for file in map(ParquetFile, files)) > LARGE


def stream(
    table: ParquetTable,
    name: str,
    *,
    validation: float | int | None = None,
    calibration: float | int | None = None,
    test: float | int | None = None,
    seed: int = 0,
    **options: Any,
) -> Data:
    """Split a table that is larger than memory: training rows are streamed, the others are in memory.

    Args:
        table: its row groups.
        name: of the data set.
        validation: as of `lapae.data.load`, as are the others; counts are kept up to chance, and at most `SAMPLE_ROWS`
            rows or `SAMPLE_VALUES` values.
        calibration: see `validation`.
        test: see `validation`.
        seed: of the split.
        options: `columns`, `drop` and `allow_nan` of `lapae.data.load`.
    """
    if seed < 0:
        raise DataError(f"the seed must not be negative, got {seed}")
    frame, share = table.some(SAMPLE_ROWS, seed)
    records = table_records(frame, name, table.where, rows=lambda row: f"row {row} of a sample", **options)
    columns, n = records.columns, table.n_rows
    assert columns is not None
    assert isinstance(records.x, np.ndarray)
    most = min(SAMPLE_ROWS, SAMPLE_VALUES // len(columns))
    n_test = min(most, count_of(test or 0, n, "test"))
    n_valid, n_calib = (min(most, size) for size in held_out_sizes(n, validation, calibration, n_test))
    if not n_valid or not n_calib:
        raise DataError(f"{table.where}: {n:,} rows are streamed, which needs validation and calibration rows")
    x = records.x
    bounds = fences(x[even(len(x), most)])
    with np.errstate(invalid="ignore"):
        kept = np.where((x < bounds[0]) | (x > bounds[1]), np.nan, x)
    rule = Rule(np.cumsum([n_test, n_valid, n_calib]) / n, seed, _frequent(kept, share), np.stack(bounds))
    found = _scan(table, columns, rule, most / n, allow_nan=options.get("allow_nan", True))
    return _divided(table, records, rule, found, name)


def _divided(table: ParquetTable, records: Records, rule: Rule, found: Scanned, name: str) -> Data:
    assert records.columns is not None
    space = Space.of(found.sample, columns=records.columns, left_out=records.left_out, missing=found.missing, name=name)
    source = RowStream(table, records.columns, rule, found)
    held = [Split(x, None, rows) for x, rows, _ in found.held]
    (_, _, (x, rows, keys)) = found.held
    first = np.sort(np.unique(keys, return_index=True)[1])  # one of the copies of a row calibrates
    held[2] = Split(x[first], None, rows[first])
    return Data(replace(space, n_data=len(source)), Split(source, None), held[1], held[2], held[0])


def _frequent(x: np.ndarray, share: float) -> np.ndarray:
    """Return hashes, in order, of rows that occur more than `MOST_COPIES` times by a sample x (n, F)."""
    keys, count = np.unique(hashed(x), return_counts=True)
    several = count > MOST_COPIES if share >= 1 else (count > MOST_COPIES * share) & (count >= SURELY)
    return keys[several]


def _scan(table: ParquetTable, columns: tuple[Column, ...], rule: Rule, share: float, *, allow_nan: bool) -> Scanned:
    """Read all rows once. `share` is the share of the training rows that is kept as a sample."""
    names = [column.name for column in columns]
    counts, digests = np.zeros(len(table.groups), np.int64), np.zeros(len(table.groups), np.uint64)
    held: list[list[tuple[np.ndarray, ...]]] = [[], [], [], []]
    unknown: dict[str, set[str]] = {}
    missing, empty, far = False, 0, np.zeros(len(columns), np.int64)
    with progress(f"dividing {table.where}", len(table.groups)) as advance:
        for g, group in enumerate(table.groups):
            for first, given in table.codes(group, columns, unknown):
                x, part, key = rule(given, first)
                lacks = np.isnan(x)
                if not allow_nan and lacks.any():
                    row, column = np.argwhere(lacks)[0]
                    place = f"{group.path}, row {first - table.groups[g].first + row + 1} of row group {group.index}"
                    raise DataError(f"{place}, column {names[column]!r}: a value is missing")
                missing |= bool(lacks[part != _NONE].any())
                empty += int((part == _NONE).sum())
                far += (lacks & ~np.isnan(given)).sum(0)
                digests[g] ^= np.bitwise_xor.reduce(_mixed(key + np.arange(first, first + len(x), dtype=np.uint64)))
                counts[g] += (part == _TRAIN).sum()
                place = np.arange(first, first + len(x))
                drawn = (part == _TRAIN) & (_mixed(place.astype(np.uint64) ^ np.uint64(rule.seed)) / 2.0**64 < share)
                for rows, of in zip(held, (part == _TEST, part == _VALID, part == _CALIB, drawn), strict=True):
                    if of.any():
                        rows.append((x[of], place[of], key[of]))
            advance(1)
    table.check_unchanged()
    warn_unknown(unknown, table.where, columns)
    if empty:
        warnings.warn(
            f"{table.where}: nothing observed in {empty} of {table.n_rows} rows: they are left out", stacklevel=4
        )
    if far.any():
        told = ", ".join(f"{names[i]!r} ({far[i]})" for i in np.flatnonzero(far)[:5])
        warnings.warn(
            f"{table.where}: values that are more than {FAR:,.0f} times as far away as the others count as missing, in "
            f"column {told}",
            stacklevel=4,
        )
    nothing = np.empty((0, len(columns))), np.empty(0, np.int64), np.empty(0, np.uint64)
    joined = [tuple(map(np.concatenate, zip(*rows, strict=True))) if rows else nothing for rows in held]
    sample, sample_rows, _ = joined[3]
    return Scanned(counts, digests, (joined[0], joined[1], joined[2]), sample, sample_rows, missing)


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return numbers (n,) that look random, one for each of uint64 (n,): splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
