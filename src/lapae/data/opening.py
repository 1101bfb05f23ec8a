"""Choice of the reader for a path."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.arrays import ARRAYS, ArrayReader
from lapae.data.image_files import SUFFIXES as IMAGES
from lapae.data.images import ImageReader
from lapae.data.reader import Block, Reader, suffix_of
from lapae.data.table import CSV, PARQUET, TableReader
from lapae.errors import DataError
from lapae.space import Space

SUFFIXES = (*CSV, *PARQUET, *ARRAYS)


def open_input(source: str | Path, space: Space, **options: Any) -> Reader:
    """Open new data for a model of `space`; options that their reader does not have are ignored."""
    path = Path(source).expanduser()
    if not path.exists() and not path.is_symlink():
        raise DataError(f"{path}: no such file or folder")
    reader = reader_of(path)
    if reader is None:
        raise DataError(f"{path}: expected a {', '.join(SUFFIXES)} file, an image, or a folder of images")
    known = options_of(reader)
    return reader(path, space, **{name: value for name, value in options.items() if name in known})


def read_all(source: str | Path, space: Space) -> Block:
    """Read all new data for a model of `space`, of any range, as one block with the cells of columns that are not
    features.

    DataError if there are none.
    """
    blocks = list(open_input(source, space, any_range=True).blocks(lambda done: None))
    if not sum(len(block.x) for block in blocks):
        raise DataError(f"{source}: holds no data")
    cells = [cells for block in blocks for cells in block.cells]
    return Block(np.concatenate([block.x for block in blocks]), blocks[0].names, cells)


def options_of(reader: type[Reader]) -> set[str]:
    """Return the names of the options of a reader."""
    return set(signature(reader).parameters) - {"path", "space"}


def format_of(path: Path) -> str:
    """Return the suffix that determines how a file is read; "" for none, and for folders."""
    return "" if path.is_dir() else suffix_of(path, (*IMAGES, *SUFFIXES))


def reader_of(path: Path) -> type[Any] | None:
    """Return the reader for a file by its name (or that of its link's target), or for a folder."""
    suffix = format_of(path)
    if path.is_dir() or suffix in IMAGES:
        return ImageReader
    if suffix in ARRAYS:
        return ArrayReader
    return TableReader if suffix in (*CSV, *PARQUET) else None
