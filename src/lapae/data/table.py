"""Tables in .csv and .parquet files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.bounds import check_memory
from lapae.data.csv_file import CsvFile
from lapae.data.frame import table_records
from lapae.data.parquet_file import ParquetFile
from lapae.data.reader import Block, Progress, Reader, suffix_of
from lapae.data.source import Records
from lapae.errors import DataError
from lapae.space import Column, Space
from lapae.space.checks import check_units
from lapae.space.column_kinds import is_index, place_of
from lapae.space.columns import unique_names
from lapae.space.constants import Constants
from lapae.space.frames import MISSING, Frame, Series, code_frame, find_columns, unnamed, warn_unknown

CSV, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
CHUNK_CELLS = 2**22


class TableReader(Reader):
    """A .csv or .parquet file.

    Columns are found by name if the model knows their names; those that it does not know are copied.

    Args:
        path: the file.
        space: space of the model for which the rows are read; None to train on them, with the options of
            `lapae.data.load`.
        any_range: the values may be far from those of the training data.
        written: keep the rows as they are written, in `Block.written`.
    """

    def __init__(
        self,
        path: Path,
        space: Space | None = None,
        *,
        label_column: str | int | None = None,
        group_column: str | int | None = None,
        columns: Sequence[str | int] | None = None,
        drop: Sequence[str | int] | None = None,
        window: int | None = None,
        stride: int | None = None,
        allow_nan: bool = True,
        any_range: bool = False,
        written: bool = False,
    ) -> None:
        super().__init__(path, space)
        self.options = {"columns": columns, "drop": drop, "allow_nan": allow_nan, "window": window, "stride": stride}
        self.label_column, self.group_column = label_column, group_column
        self.any_range, self.written = any_range, written
        parquet = suffix_of(path, (*CSV, *PARQUET)) in PARQUET
        self.file = ParquetFile(path) if parquet else CsvFile(path)
        self.size = self.file.size
        if space is not None:
            self.is_series = space.kind == "series"
            if space.kind != "table" and not self.is_series:
                raise DataError(f"{path}: a table of rows, the model takes data of shape {space.shape}")
            known = space.columns is not None and {c.name for c in space.columns} <= set(unique_names(self.file.first))
            has_header = known or self.is_header(self.file.first[is_index(self.file.first[0]) :])
        else:
            given = {label_column, group_column} & {*self.file.first}
            has_header = bool(given) or self.is_header(self.file.first, self._label_place())
        self.header = unique_names(self.file.first) if parquet or has_header else None
        self.file.has_header = self.header is not None
        self.known_as = self.names
        self.features = [] if space is None else self._features()

    def is_header(self, cells: list[str], label: int | None = None) -> bool:
        """Return whether the first row contains names: none of its cells, except that of the label, is a number."""
        features = [cell for i, cell in enumerate(cells) if i != label and cell.lower() not in MISSING]
        numbers = [self._number(cell) for cell in features]
        return None in numbers and not any(number is not None and math.isfinite(number) for number in numbers)

    def _number(self, cell: str) -> float | None:
        try:
            return None if "_" in cell else float(cell.replace(self.file.decimal, "."))
        except ValueError:
            return None

    def _label_place(self) -> int | None:
        """The position of the label among the columns, if it is given as a number."""
        if not re.fullmatch(r"[+-]?\d+", str(self.label_column)):
            return None
        return place_of([str(i) for i in range(self.file.width)], int(str(self.label_column)), str(self.path))

    @property
    def names(self) -> list[str]:
        """Names of the columns; their numbers if there is no header."""
        return self.header or [str(i) for i in range(self.file.width)]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the model for which the rows are read."""
        return self.space.numbered

    @property
    def carried(self) -> list[str]:
        return [self.names[i] for i in self._others] if self.header else []

    @property
    def _others(self) -> list[int]:
        """Positions of the columns that are not features."""
        return [i for i in range(self.file.width) if i not in set(self.features)]

    def row_name(self, row: int) -> str:
        """Return how messages refer to data row `row` (from 0): its line in the file."""
        return f"row {self.row_number(row)}"

    def row_number(self, row: int) -> str:
        return str(self.file.line_of(row))

    def _row_of_block(self, index: int, row: int) -> str:
        return self.row_name(index * self.block_size + row)

    def frame(self, progress: Progress = lambda n: None) -> Frame:
        """Return all rows under the names of the columns; for a .csv with the types of its cells."""
        import pandas as pd

        texts: dict[int, str] = {} if isinstance(self.file, ParquetFile) else dict.fromkeys(self.file.padded, "str")
        for which in (self.label_column, self.group_column):
            if which is not None and not isinstance(self.file, ParquetFile):
                texts[place_of(self.names, which, str(self.path))] = "str"
        parts = self._parts(texts, progress)
        # cells that read as numbers in one part, and not in another, are text in all of them
        while len(parts) > 1 and (
            mixed := [i for i in parts[0] if i not in texts and _is_mixed([p[i] for p in parts])]
        ):
            texts |= dict.fromkeys(mixed, "str")
            parts = self._parts(texts, progress)
        self.check_unchanged()
        if not parts:
            raise DataError(f"{self.path}: holds no rows")
        frame = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        frame.columns = self.names
        return frame

    def _parts(self, texts: dict[int, str], progress: Progress) -> list[Frame]:
        """Yield all rows in frames, with the columns `texts` as text; raise DataError if they do not fit into
        memory."""
        parts, read = [], 0

        def count(n: int) -> None:
            nonlocal read
            read += n
            progress(n)

        for part in self.file.frames(max(1, CHUNK_CELLS // max(1, self.file.width)), count, texts or None):
            if not parts:
                held = int(part.memory_usage(deep=True).sum()) * self.size / max(read, 1)
                check_memory(self.path, int(2 * held), "store its numbers as .npy, which is mapped and not loaded")
            parts.append(part)
        return parts

    def records(self) -> Records:
        """Return all rows as numbers, with the columns that can be learned."""
        from lapae.data.progress import progress

        with progress(f"reading {self.path.name}", self.size) as advance:
            frame = self.frame(advance)
        chosen = {"label": self.label_column, "group": self.group_column}
        for what, which in chosen.items():
            if which in frame.columns and self.header is not None and which in frame[which].values:
                # a class was given, and a row of data was taken for the header
                raise DataError(
                    f"{self.path}: {which!r} is a {what} and no column; {what}_column must be a name or a number"
                )
        options = {**self.options, **{f"{what}_column": which for what, which in chosen.items()}, "rows": self.row_name}
        return table_records(frame, self.path.stem, str(self.path), **options)

    def _features(self) -> list[int]:
        """Return the places of the features of a model."""
        names = [column.name for column in self.columns]
        every = {*names, *self.space.left_out}
        numbered = every == {str(i) for i in range(len(every))}
        if self.header is not None and (set(names) <= set(self.header) or not (numbered or unnamed(names))):
            return find_columns(self.header, self.columns, str(self.path))
        n, width = len(names), self.file.width
        indexed = self.header is not None and width in (n + 1, len(every) + 1) and is_index(self.header[0])
        if width == n + indexed:
            return list(range(indexed, width))
        if numbered and width == len(every) + indexed:  # with the columns that are not learned, where they were
            self.known_as = [str(i - indexed) for i in range(width)]
            return [indexed + int(name) for name in names]
        raise DataError(f"{self.path}: {width} columns, the model takes {n} features")

    def _read(self, progress: Progress) -> Iterator[Block]:
        """Rows as codes, with the cells that are no features; of a series its windows."""
        if not self.is_series:
            yield from self._rows(progress)
            return
        import pandas as pd

        rows = list(self._rows(progress))
        if not rows:
            return
        x, cells = np.concatenate([block.x for block in rows]), [cell for block in rows for cell in block.cells]
        written = pd.concat([block.written for block in rows], ignore_index=True) if self.written else None
        yield from self._windows(Block(x, rows[0].names, cells, written=written), lambda n: None)

    def _rows(self, progress: Progress) -> Iterator[Block]:
        """Yield blocks of rows; for a series, of its steps."""
        columns, where = self.columns, str(self.path)
        others, names = self._others, self.carried
        carried = others[: len(names)]
        unknown: dict[str, set[str]] = {}
        constants = Constants(self.space.left_out, where)
        plain = {i for i, column in zip(self.features, columns, strict=True) if is_plain(column)}
        types: Any = {i: "float64" if i in plain else "written" for i in range(self.file.width)}
        for index, frame in enumerate(self._frames("str" if self.written else types, progress)):
            part = frame[self.features]
            part.columns = [column.name for column in columns]
            row_name, words = partial(self._row_of_block, index), {}
            x = code_frame(
                _with_points(part, columns) if self.file.decimal == "," else part,
                columns,
                where,
                unknown=unknown,
                words=words,
                rows=row_name,
            )
            if index == 0 and not self.any_range and not self.is_series:  # the first block tells
                check_units(self.space, x, where)
            constants.look(
                frame[others].set_axis([self.known_as[i] for i in others], axis=1), row_name, self.file.decimal
            )
            cells = frame[carried].astype(object).where(frame[carried].notna(), "").astype(str).to_numpy().tolist()
            yield Block(x, names, cells, index, frame if self.written else None, words)
        warn_unknown(unknown, where, columns)
        constants.warn()

    def _frames(self, types: Any, progress: Progress) -> Iterator[Frame]:
        """Blocks of rows; a cell of a number that is none is an error that names it."""
        try:
            yield from self.file.frames(self.block_size, progress, types)
        except ValueError as error:
            if isinstance(error, DataError) or self.written:
                raise
            self.written = True  # slower, but it says where
            for _ in self._rows(lambda n: None):
                pass
            raise DataError(f"{self.path}: cannot be read ({error})") from error


def is_plain(column: Column) -> bool:
    """Whether all cells of a column are numbers as they stand."""
    return column.kind in ("number", "count") and not column.format and not column.lenient


def _with_points(frame: Frame, columns: Sequence[Column]) -> Frame:
    """Return a frame whose numbers in text have decimal points in place of decimal commas."""
    frame = frame.copy()
    for column in columns:
        series = frame[column.name]
        if column.kind in ("number", "count") and not column.format and series.dtype.kind not in "biuf":
            frame[column.name] = series.astype(object).str.replace(",", ".", regex=False)
    return frame


def _is_mixed(parts: list[Series]) -> bool:
    """Whether cells of a column were read as more than one of numbers, booleans and text."""
    sorts = {"b": "boolean", "i": "number", "u": "number", "f": "number"}
    return len({sorts.get(part.dtype.kind, "text") for part in parts if not part.isna().all()}) > 1
