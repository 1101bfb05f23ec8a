"""Blocks of new data, and the readers that yield them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lapae.data import DataError
from lapae.runs.files import stamp

if TYPE_CHECKING:
    from lapae.model import Model

BLOCK_ELEMENTS = 2**21
BLOCK_ROWS = 8192
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Block:
    """Some data, in storage units."""

    x: np.ndarray
    """(B, *shape); floats may hold NaN, which is missing."""
    cells: list[list[str]] = field(default_factory=list)
    """The rows of a .csv file as they were written."""
    files: list[Path] = field(default_factory=list)
    """The image files, relative to their folder."""
    index: int = 0
    """Place among the blocks of the input."""


class Input(ABC):
    """A source of blocks."""

    size: int
    """Of the whole, in the units that progress is reported in: bytes of a .csv, data otherwise."""

    def __init__(self, path: Path, model: Model) -> None:
        self.path = path
        self._stamp = self._look()
        self.space = model.space
        self.shape = self.space.shape
        self.block_size = max(1, min(BLOCK_ROWS, BLOCK_ELEMENTS // max(1, int(np.prod(self.shape)))))
        self.skipped: list[str] = []
        """Files that could not be read and were left out."""
        self.turn: tuple[int, int] = (0, 1)
        """(r, n): blocks r, r + n, r + 2n, … are this process's, where n share the input."""

    def blocks(self, progress: Progress) -> Iterator[Block]:
        """All data in order; those of this process's turns. DataError at the end where the file is another by then."""
        yield from self._read(progress)
        if self._look() != self._stamp:
            raise DataError(f"{self.path}: has changed while it was read; give it a file that stays as it is")

    @abstractmethod
    def _read(self, progress: Progress) -> Iterator[Block]:
        """As `blocks`, of a file that stays as it is."""

    def _look(self) -> tuple[int, ...] | None:
        """What changes with the file; a folder's images are read one by one."""
        return None if self.path.is_dir() else stamp(self.path)

    def _mine(self, index: int) -> bool:
        return index % self.turn[1] == self.turn[0]
