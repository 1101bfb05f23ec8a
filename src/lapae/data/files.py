"""Tables in several files, given by a folder or a glob, and as one table to train on."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lapae.data.bounds import check_memory
from lapae.data.frame import table_records
from lapae.data.image_files import SUFFIXES as IMAGES
from lapae.data.parquet_file import check_same_columns
from lapae.data.reader import suffix_of
from lapae.data.source import Records
from lapae.data.table import CSV, PARQUET, TableReader
from lapae.errors import DataError


def find_files(source: Path) -> list[Path]:
    """Return the tables of a folder, a glob or a file, in order; names that begin with "." or "_" are skipped."""
    if source.is_dir():
        named = {path: path.relative_to(source).parts for path in sorted(source.rglob("*"))}
    else:
        named = {Path(name): (Path(name).name,) for name in sorted(glob.glob(str(source), recursive=True))}
    shown = [path for path, names in named.items() if not any(name.startswith((".", "_")) for name in names)]
    found = [path for path in shown if path.suffix.lower() in (*CSV, *PARQUET) and path.is_file()]
    if not found:
        raise DataError(f"{source}: no {', '.join((*CSV, *PARQUET))} file there")
    return found


def tables_of(source: str | Path) -> list[Path] | None:
    """Return the Parquet files of a source to train on; None if it is something else."""
    path = Path(source).expanduser()
    if path.is_dir():
        names = [each for each in path.rglob("*") if not each.name.startswith((".", "_"))]
        if not any(suffix_of(each, (*CSV, *PARQUET)) for each in names) or any(
            suffix_of(each, IMAGES) for each in names
        ):
            return None
    elif path.exists() or path.is_symlink():
        return [path] if suffix_of(path, PARQUET) else None
    elif not glob.has_magic(str(path)):
        return None
    files = find_files(path)
    texts = [file for file in files if suffix_of(file, CSV)]
    if texts:
        raise DataError(
            f"{source}: holds {texts[0].name}: a table in several files must be Parquet, which says the types of its "
            "columns; convert the files, or train on one of them"
        )
    return files


def name_of(source: str | Path) -> str:
    """Return a name for a folder, a file or a glob."""
    path = Path(source)
    while glob.has_magic(path.name):
        path = path.parent
    return path.stem or "tables"


def read_tables(files: Sequence[Path], source: str | Path, **options: Any) -> Records:
    """Read one table in several Parquet files into memory.

    Args:
        files: the files, which have the same columns.
        source: begins messages.
        options: as of `lapae.data.load`.
    """
    import pandas as pd

    every = [TableReader(path) for path in files]
    frames, n_bytes, starts = [], 0, [0]
    for reader in every:
        check_same_columns(reader.names, every[0].names, reader.path, files[0])
    readers = [reader for reader in every if reader.size] or every[:1]
    for reader in readers:
        frames.append(reader.frame()[readers[0].names])
        n_bytes += int(frames[-1].memory_usage(deep=True).sum())
        starts.append(starts[-1] + len(frames[-1]))
        check_memory(
            source, n_bytes, "labels, groups and windows need all rows in memory: leave them out, and rows are streamed"
        )

    def row_name(row: int) -> str:
        file = next(i for i, stop in enumerate(starts[1:]) if row < stop)
        return f"{readers[file].path.name}, {readers[file].row_name(row - starts[file])}"

    frame = pd.concat(frames, ignore_index=True)
    return table_records(frame, name_of(source), str(source), rows=row_name, **options)
