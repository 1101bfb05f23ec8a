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
from lapae.data.parquet_file import sound
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


def kept_columns(files: Sequence[Path], space: Space) -> Any:
    """Return the schema of the columns that are not features, which are copied into the output.

    All files are looked at, so that one that cannot be read stops a job before anything is written. A column is there
    if one file has it; its values are null for the others. Where its types differ, it gets one that holds them all.
    """
    found: dict[str, tuple[Any, Path]] = {}
    for path in files:
        for each in _others(path, space):
            if each.name not in found:
                found[each.name] = each, path
                continue
            known, first = found[each.name]
            common = _common(known.type, each.type)
            if common is None:
                raise DataError(
                    f"{path}: column {each.name!r} is of type {each.type}, in {first} of type {known.type}: give it "
                    "one type in all files, or leave it out of them"
                )
            found[each.name] = pa.field(each.name, common), first
    return pa.schema([each for each, _ in found.values()])


def _others(path: Path, space: Space) -> list[Any]:
    """Return the columns of a file that are not features, as fields."""
    reader = TableReader(path, space, any_range=True)
    places = [i for i in range(reader.file.width) if i not in set(reader.features)] if reader.header else []
    if path.suffix.lower() not in PARQUET:
        return [pa.field(reader.names[place], pa.string()) for place in places]
    schema = _opened(path).schema_arrow
    return [schema.field(place) for place in places if not schema.field(place).name.startswith("__index")]


def _common(a: Any, b: Any) -> Any:
    """Return the type that holds values of both types, text if nothing else does; None if values have no text."""
    if a == b:
        return a
    try:
        both = pa.unify_schemas([pa.schema({"": a}), pa.schema({"": b})], promote_options="permissive")
        return both.field(0).type
    except pa.ArrowException:
        nested = pa.types.is_nested(a) or pa.types.is_nested(b)
        return None if nested else pa.string()


def check_range(path: Path, space: Space) -> None:
    """Raise DataError if the first rows of a file cannot be in the units of the training data."""
    next(iter(TableReader(path, space).blocks(lambda done: None)), None)


def read_part(part: Part, space: Space, keep: Any) -> Iterator[Any]:
    """Yield the rows of a part as record batches, with features under the names that the model has for them;
    columns of `keep` that the file does not have are null."""
    for batch in _batches(part, space):
        for each in keep:
            if each.name not in batch.schema.names:
                batch = batch.append_column(each.name, pa.nulls(batch.num_rows, each.type))
        yield batch


def _batches(part: Part, space: Space) -> Iterator[Any]:
    path = Path(part.source)
    if path.suffix.lower() not in PARQUET:
        yield from _csv_batches(path, space)
        return
    with sound(path):
        yield from parquet.ParquetFile(path).iter_batches(
            CHUNK, row_groups=range(*part.groups) if part.groups else None
        )


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
            for batch in mapper(read_part(part, mapper.loaded.model.space, mapper.keep)):
                writer.write_batch(batch)
                n += batch.num_rows
                outliers += (batch.column(flagged).true_count) if flagged >= 0 else 0
    except DataError as error:
        text = str(error)
        about = text.removeprefix("X: ").removeprefix("X, ")
        raise DataError(text if part.source in text else f"{part.source}: {about}") from error
    return Written(part, n, outliers if flagged >= 0 else None)


def _opened(path: Path) -> Any:
    with sound(path):
        return parquet.ParquetFile(path)
