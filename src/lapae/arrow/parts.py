"""Tables in many files, divided into parts: each is read, mapped and written as one Parquet file, whole or not at all.

How rows are divided depends on the files alone, so that any number of processes writes the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa  # pyright: ignore[reportMissingImports]
import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]

from lapae.arrow.mapper import CHUNK, Mapper
from lapae.data.table import PARQUET, TableReader, is_plain
from lapae.errors import ConfigError, DataError
from lapae.runs.files import make_folder, whole
from lapae.space import Space

PART_ROWS = 2**20
"""Minimum number of rows in a part of a large Parquet file; a part ends with a row group."""


@dataclass(frozen=True)
class Part:
    """Some rows of a file, and where their output goes.

    Attributes:
        source: the file.
        groups: first and last row group (exclusive) of a Parquet file; None for all rows.
        target: the Parquet file to write.
    """

    source: str
    groups: tuple[int, int] | None
    target: str


@dataclass(frozen=True)
class Written:
    """What was written: the part, its rows, and how many of them were called outliers."""

    part: Part
    n: int
    outliers: int | None


def parts_of(files: Sequence[Path], out: Path, *, series: bool = False) -> list[Part]:
    """Divide files into parts; files of series are not divided."""
    root = Path(os.path.commonpath([path.absolute().parent for path in files]))
    found: list[Part] = []
    for path in files:
        name = path.absolute().relative_to(root).with_suffix("")
        spans = list(_spans(path)) if path.suffix.lower() in PARQUET and not series else [None]
        for i, span in enumerate(spans):
            number = "" if len(spans) == 1 else f"-{i + 1:05d}-of-{len(spans):05d}"
            target = out / name.with_name(f"{name.name}{number}.parquet")
            found.append(Part(str(path), span, str(target)))
    places: dict[str, str] = {}
    for part in found:
        if part.target in places:
            raise ConfigError(f"{places[part.target]} and {part.source} would both be written as {part.target}")
        places[part.target] = part.source
    return found


def _spans(path: Path) -> Iterator[tuple[int, int]]:
    """Yield first and last row group (exclusive) of the parts of a Parquet file."""
    about = _opened(path).metadata
    start = rows = 0
    for i in range(about.num_row_groups):
        rows += about.row_group(i).num_rows
        if rows >= PART_ROWS:
            yield start, i + 1
            start, rows = i + 1, 0
    if start < about.num_row_groups or not about.num_row_groups:
        yield start, about.num_row_groups


def kept_columns(path: Path, space: Space) -> Any:
    """Return the schema of the columns of a file that are not features, which are copied into the output."""
    reader = TableReader(path, space, any_range=True)
    places = [i for i in range(reader.file.width) if i not in set(reader.features)] if reader.header else []
    if path.suffix.lower() in PARQUET:
        schema = _opened(path).schema_arrow
        return pa.schema(
            [schema.field(place) for place in places if not schema.field(place).name.startswith("__index")]
        )
    return pa.schema([pa.field(reader.names[place], pa.string()) for place in places])


def check_range(path: Path, space: Space) -> None:
    """Raise DataError if the first rows of a file cannot be in the units of the training data."""
    next(iter(TableReader(path, space).blocks(lambda done: None)), None)


def read_part(part: Part, space: Space) -> Iterator[Any]:
    """Yield the rows of a part as record batches, with features under the names that the model has for them."""
    path = Path(part.source)
    if path.suffix.lower() not in PARQUET:
        yield from _csv_batches(path, space)
        return
    file = _opened(path)
    try:
        yield from file.iter_batches(CHUNK, row_groups=range(*part.groups) if part.groups else None)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a sound .parquet file ({str(error)[:200]})") from error


def _csv_batches(path: Path, space: Space) -> Iterator[Any]:
    reader = TableReader(path, space, any_range=True)
    columns = dict(zip(reader.features, reader.columns, strict=True))
    kept = [i for i in range(reader.file.width) if i not in columns] if reader.header else []
    numbers = {i for i, column in columns.items() if is_plain(column)}
    types: Any = {i: "float64" if i in numbers else "str" for i in columns} | dict.fromkeys(kept, "written")
    names = [*(reader.names[i] for i in kept), *(column.name for column in columns.values())]
    for frame in reader._frames(types, lambda done: None):
        arrays = [
            pa.array(frame[i], pa.float64() if i in numbers else pa.string(), from_pandas=True)
            for i in (*kept, *columns)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names)
    reader.check_unchanged()


def write_part(mapper: Mapper, part: Part) -> Written:
    """Map a part and write its output, whole or not at all."""
    target = Path(part.target)
    make_folder(target.parent)
    n = outliers = 0
    flagged = mapper.schema.get_field_index("outlier")
    try:
        with whole(target) as temporary, parquet.ParquetWriter(temporary, mapper.schema) as writer:
            for batch in mapper(read_part(part, mapper.loaded.model.space)):
                writer.write_batch(batch)
                n += batch.num_rows
                outliers += (batch.column(flagged).true_count) if flagged >= 0 else 0
    except DataError as error:
        text = str(error)
        raise DataError(text if part.source in text else f"{part.source}: {text.removeprefix('X: ')}") from error
    return Written(part, n, outliers if flagged >= 0 else None)


def _opened(path: Path) -> Any:
    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a sound .parquet file ({str(error)[:200]})") from error
