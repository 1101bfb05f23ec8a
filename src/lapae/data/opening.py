"""The reader that a path calls for."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

from lapae.data.arrays import ArrayReader
from lapae.data.decode import SUFFIXES as IMAGES
from lapae.data.images import ImageReader
from lapae.data.reader import Reader
from lapae.data.table import CSV, PARQUET, TableReader
from lapae.errors import DataError
from lapae.space import Space

ARRAYS = (".npy", ".npz")
SUFFIXES = (*CSV, *PARQUET, *ARRAYS)


def open_input(source: str | Path, space: Space, **options: Any) -> Reader:
    """New data for a model of `space`, with the options of their reader; those of other formats are left aside."""
    path = Path(source).expanduser()
    if not path.exists() and not path.is_symlink():
        raise DataError(f"{path}: no such file or folder")
    reader = reader_of(path)
    if reader is None:
        raise DataError(f"{path}: expected a {', '.join(SUFFIXES)} file, an image, or a folder of images")
    known = options_of(reader)
    return reader(path, space, **{name: value for name, value in options.items() if name in known})


def options_of(reader: type[Reader]) -> set[str]:
    """Names of the options that a reader has."""
    return set(signature(reader).parameters) - {"path", "space"}


def reader_of(path: Path) -> type[Any] | None:
    """The reader of a file by its name, or of a folder."""
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in IMAGES:
        return ImageReader
    if suffix in ARRAYS:
        return ArrayReader
    return TableReader if suffix in (*CSV, *PARQUET) else None
