"""Load data by a name, a file or a folder, in four splits."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapae.data.data import Data
from lapae.data.files import name_of, read_tables, tables_of
from lapae.data.images import ImageReader
from lapae.data.named import DATASETS, NamedSet
from lapae.data.opening import SUFFIXES, options_of, reader_of
from lapae.data.source import Records
from lapae.data.stream import IN_MEMORY, ParquetTable, is_large, stream
from lapae.data.table import TableReader
from lapae.errors import DataError, did_you_mean
from lapae.space import Fit

DATA_VARIABLE = "LAPAE_DATA"
LARGEST_IMAGE_SIZE = 4096
TABLES, FOLDERS = "tables: .csv and .parquet files", "folders of images"
FOR = {
    "label_column": TABLES,
    "group_column": TABLES,
    "columns": TABLES,
    "drop": TABLES,
    "window": "series: tables, and arrays (time, channels)",
    "stride": "series: tables, and arrays (time, channels)",
    "image_size": FOLDERS,
    "fit": FOLDERS,
    "tile": FOLDERS,
    "features": FOLDERS,
    "skip_bad": FOLDERS,
}
"""The kinds of sources to which options apply."""


def load(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    validation: float | int | None = None,
    calibration: float | int | None = None,
    test: float | int | None = None,
    seed: int = 0,
    limit: int | None = None,
    allow_nan: bool = True,
    label_column: str | int | None = None,
    group_column: str | int | None = None,
    columns: Sequence[str | int] | None = None,
    drop: Sequence[str | int] | None = None,
    window: int | None = None,
    stride: int | None = None,
    image_size: int | None = None,
    fit: Fit | None = None,
    tile: int | None = None,
    features: str | None = None,
    skip_bad: bool = False,
) -> Data:
    """Load a data set and split it.

    Args:
        source: a name that `lapae data` lists, a .npy, .npz, .csv or .parquet file, a folder of images, or a folder or
            glob of .parquet files, which are one table. A `Path` is never a name. Parquet files that are too large for
            memory are streamed (`lapae.data.stream`).
        data_dir: folder of the named sets, to which they are downloaded; default: `$LAPAE_DATA`, else
            `~/.cache/lapae/data`.
        validation: fractions or counts; default: the rules of `lapae.data.splits`. Sets with their own splits keep
            them.
        calibration: see `validation`.
        test: see `validation`.
        seed: seed of the splits.
        limit: use at most this many samples of each split.
        allow_nan: accept NaN, and empty cells of a table, as missing values; otherwise they are an error.
        label_column: column of a table that contains the classes, by name or by number from 0.
        group_column: column of a table whose equal values say that rows belong together, by name or by number from 0:
            they are put into the same split (`lapae.data.groups`). Rows without a value belong to no others.
        columns: columns of a table to learn, and columns to leave out.
        drop: see `columns`.
        window: the rows of a table or of an array (time, channels) are steps of a series, which is cut into windows of
            this many steps and split in time.
        stride: steps from one window to the next; default: an eighth of a window, or less if that gives fewer than 500
            windows.
        image_size: height and width that images of a folder are resized to.
        fit: border, crop or stretch: how images of a folder are scaled to one size.
        tile: cut the images of a folder into squares of this side instead of scaling them.
        features: network whose features of the images of a folder are learned instead of their pixels.
        skip_bad: leave out images of a folder that cannot be read, with a warning each.
    """
    given = {"label_column": label_column, "group_column": group_column, "columns": columns, "drop": drop}
    given |= {"window": window, "stride": stride}
    given |= {"image_size": image_size, "fit": fit, "tile": tile, "features": features}
    given |= {"skip_bad": skip_bad or None, "allow_nan": allow_nan}
    given = {name: value for name, value in given.items() if value is not None}
    files = None if isinstance(source, str) and source in DATASETS else tables_of(source)
    options: dict[str, Any] = {"validation": validation, "calibration": calibration, "test": test, "seed": seed}
    if files is not None:
        _check_options(source, given, options_of(TableReader))
        if is_large(files) and limit is None and not IN_MEMORY & {*given}:
            return stream(ParquetTable(files, str(source)), name_of(source), **given, **options)
    if files is not None and not Path(source).expanduser().is_file():
        records = read_tables(files, source, **given)
    else:
        records = _read(source, data_folder(data_dir), given)
    try:
        return Data.divide(records, **options, limit=limit)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error


def _read(source: str | Path, folder: Path, options: dict[str, Any]) -> Records:
    """Read a source. An option that does not apply to it is an error."""
    path = Path(source).expanduser()
    size = options.get("image_size")
    if size is not None and not 1 <= size <= LARGEST_IMAGE_SIZE:
        raise DataError(f"image_size must be from 1 to {LARGEST_IMAGE_SIZE}, got {size}")
    if isinstance(source, str) and source in DATASETS:
        named: NamedSet = DATASETS[source].load()
        _check_options(source, options, named.takes)
        taken = {name: value for name, value in options.items() if name in named.takes}
        return named.records(folder / source, **taken)
    if not path.exists() and not path.is_symlink():
        hint = did_you_mean(str(source), DATASETS)
        raise DataError(
            f"{source}: no such file, folder or data set{hint}; expected one of {', '.join(DATASETS.visible())}, "
            f"a {', '.join(SUFFIXES)} file, a folder of images, or a folder or a glob of .parquet files"
        )
    reader = reader_of(path)
    if reader is None or (reader is ImageReader and not path.is_dir()):
        raise DataError(f"{source}: expected a file that ends in {', '.join(SUFFIXES)}, or a folder of images")
    known = options_of(reader)
    _check_options(source, options, known)
    return reader(path, **{name: value for name, value in options.items() if name in known}).records()


def _check_options(source: str | Path, options: dict[str, Any], known: Set[str]) -> None:
    for name, value in options.items():
        if name not in known and name in FOR:
            raise DataError(f"{source}: {name}={value!r} is for {FOR[name]}")


def check_data(source: str) -> None:
    """Raise DataError for a run of the estimator, whose data are not stored."""
    if source == "X":
        raise DataError(
            "this is a run of the estimator, which does not keep the data that it was fitted to: use --data"
        )


@dataclass(frozen=True)
class DataSet:
    """A named data set, as `lapae data` lists it."""

    name: str
    description: str
    present: bool
    where: Path | None
    """Its folder, whether it exists or not; None for data that come with a package."""


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return the folder of the named sets: the argument, else `$LAPAE_DATA`, else `~/.cache/lapae/data`."""
    return Path(data_dir or os.environ.get(DATA_VARIABLE) or "~/.cache/lapae/data").expanduser()


def data_sets(data_dir: str | Path | None = None) -> list[DataSet]:
    """Return all named data sets, and whether they are present."""
    folder, found = data_folder(data_dir), []
    for name in DATASETS.visible():
        named: NamedSet = DATASETS[name].load()
        where = folder / name if named.has_folder else None
        found.append(DataSet(name, DATASETS[name].title, not named.missing(folder / name), where))
    return found


def fetch(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Download a named data set, or verify the checksums of existing files.

    Returns:
        Its folder; None for a set that comes with a package.
    """
    if name not in DATASETS:
        known = ", ".join(DATASETS.visible())
        raise DataError(f"no data set {name!r}{did_you_mean(name, DATASETS)}; there are {known}")
    named: NamedSet = DATASETS[name].load()
    folder = data_folder(data_dir) / name
    named.fetch(folder)
    return folder if named.has_folder else None
