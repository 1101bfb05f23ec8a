"""A reader of a format: all of a file for training, or block by block for a trained model.

Data that do not fit a model (by shape, columns or range of values) raise a `DataError` that says what was found and
what was expected. Memory does not grow with the data: blocks are read on request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.bounds import check_file
from lapae.data.source import Records
from lapae.errors import DataError
from lapae.runs.files import stamp
from lapae.space import Space
from lapae.space.checks import check_units, check_values

BLOCK_ELEMENTS = 2**21
BLOCK_ROWS = 8192
MOST_LINKS = 40
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Block:
    """Some data, in the user's units."""

    x: np.ndarray
    """(B, *shape) of the space; NaN in floats is missing."""
    names: list[str] = field(default_factory=list)
    """Names of the cells."""
    cells: list[list[str]] = field(default_factory=list)
    """Cells of each sample that are not learned, such as an index, a label or the name of its file."""
    index: int = 0
    """Position among the blocks of the input."""
    written: Any = None
    """The rows of a table as they were written, if requested."""
    words: dict[tuple[int, int], str] = field(default_factory=dict)
    """Levels of a table's categories and booleans that are not in the training data, by row and feature."""


def suffix_of(path: Path, known: Collection[str]) -> str:
    """Return the suffix that determines the format of a file: its own or, for a link, that of the target; "" for none.

    Some data stores keep files under names without a suffix, with links that have one; others link from a plain name.
    """
    for _ in range(MOST_LINKS):
        if path.suffix.lower() in known or not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return path.suffix.lower() if path.suffix.lower() in known else ""


class Reader(ABC):
    """A file, or a folder of images."""

    size: int
    """Total size in the units of progress: bytes of a .csv, samples otherwise."""

    def __init__(self, path: Path, space: Space | None = None) -> None:
        self.path, self._space = path, space
        if not path.is_dir():
            check_file(path)
        self._stamp = self._look()
        self.any_range = False
        self.at_once = BLOCK_ROWS
        """Data in a block, at most."""
        self.is_series = False
        """Whether the file holds a series in time, whose windows are the data."""
        self.steps: Block | None = None
        """The steps of a series, once its windows are read."""
        self.skipped: list[str] = []
        """Files that could not be read and were left out."""

    @property
    def space(self) -> Space:
        """Space of the model for which the data are read."""
        assert self._space is not None, "opened for training"
        return self._space

    @property
    def block_size(self) -> int:
        """Number of samples in a block."""
        return max(1, min(self.at_once, BLOCK_ELEMENTS // max(1, int(np.prod(self.space.model_shape)))))

    @property
    def carried(self) -> list[str]:
        """Names of the columns of a table that are not features, which are copied to the output."""
        return []

    def row_number(self, row: int) -> str:
        """Return the number that users see for sample `row` (from 0)."""
        return str(row)

    @abstractmethod
    def records(self) -> Records:
        """Return all data, to train on."""

    def blocks(self, progress: Progress) -> Iterator[Block]:
        """Yield all samples in order; raise DataError at the end if the file has changed meanwhile."""
        yield from self._read(progress)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise a DataError if the file is not the one that was opened."""
        if self._look() != self._stamp:
            raise DataError(f"{self.path}: has changed while it was read; give it a file that stays as it is")

    @abstractmethod
    def _read(self, progress: Progress) -> Iterator[Block]:
        """Yield `blocks` of a file that does not change."""

    def _windows(self, steps: Block, progress: Progress) -> Iterator[Block]:
        """Yield the steps of a series, which are kept, as blocks of windows."""
        self.steps, x = steps, steps.x
        where = str(self.path)
        check_values(self.space, x, where)
        if not self.any_range:
            check_units(self.space, x[None, : self.space.shape[0]], where)
        windows, first = self.space.windows(x, where)
        for index, start in enumerate(range(0, len(first), self.block_size)):
            part = slice(start, start + self.block_size)
            yield Block(windows[part], ["start"], [[str(step)] for step in first[part].tolist()], index)
        progress(self.size)

    def _look(self) -> tuple[int, ...] | None:
        """Return a value that changes with the file; the images of a folder are read one by one."""
        return None if self.path.is_dir() else stamp(self.path)
