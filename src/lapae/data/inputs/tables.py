"""New tables: .csv files, read row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lapae.data import DataError
from lapae.data.inputs.base import Block, Input, Progress
from lapae.data.table import INDEX_NAMES, delimiter_of, is_header, numbers_of, rows_of

if TYPE_CHECKING:
    from lapae.model import Model


class CsvInput(Input):
    """A table. Columns are found by name where the run knows names; those that it does not know are carried along."""

    def __init__(self, path: Path, model: Model, *, any_range: bool = False) -> None:
        super().__init__(path, model)
        self.any_range = any_range
        if len(self.shape) != 1:
            raise DataError(f"{path}: a table of rows, the model takes data of shape {self.shape}")
        self.size = path.stat().st_size
        self.delimiter = delimiter_of(path)
        first = next(rows_of(path, self.delimiter), None)
        if first is None:
            raise DataError(f"{path}: is empty")
        cells = first[1]
        names = self.space.feature_names
        known = names is not None and set(names) <= set(cells)
        index = cells[0].lower() in INDEX_NAMES
        self.header = cells if known or is_header(cells[1:] if index else cells, None) else None
        self.width = len(cells)
        self.columns = self._columns(names)

    @property
    def carried(self) -> list[int]:
        """Columns that are no features: an index, a label."""
        return [i for i in range(self.width) if i not in set(self.columns)]

    def _columns(self, names: tuple[str, ...] | None) -> list[int]:
        """Where the features are."""
        if names is not None and self.header is not None:
            absent = [name for name in names if name not in self.header]
            if absent:
                raise DataError(
                    f"{self.path}: has no column {', '.join(map(repr, absent[:5]))}{' …' if len(absent) > 5 else ''}; "
                    f"it has {', '.join(self.header[:20])}; the model was trained on {', '.join(names[:20])}"
                )
            twice = [name for name in names if self.header.count(name) > 1]
            if twice and tuple(self.header) != names:
                raise DataError(f"{self.path}: more than one column is named {twice[0]!r}")
            return list(range(self.width)) if twice else [self.header.index(name) for name in names]
        n = self.shape[0]
        if self.header is not None and self.width == n + 1 and self.header[0].lower() in INDEX_NAMES:
            return list(range(1, self.width))
        if self.width != n:
            raise DataError(f"{self.path}: {self.width} columns, the model takes {n} features")
        return list(range(n))

    def _read(self, progress: Progress) -> Iterator[Block]:
        """Rows as numbers, with their cells."""
        cells: list[list[str]] = []
        numbers: list[list[float]] = []
        n_rows = 0
        rows = rows_of(self.path, self.delimiter, progress)
        if self.header is not None:
            next(rows)
        names = None if self.header is None else [self.header[i] for i in self.columns]
        for number, row in rows:
            index = n_rows // self.block_size
            n_rows += 1
            if not self._mine(index):
                continue
            if len(row) != self.width:
                raise DataError(f"{self.path}, row {number}: {len(row)} cells, expected {self.width}")
            numbers.append(numbers_of(self.path, number, [row[i] for i in self.columns], names, None, allow_nan=True))
            cells.append(row)
            if len(cells) == self.block_size:
                yield self._block(cells, numbers, index)
                cells, numbers = [], []
        if cells:
            yield self._block(cells, numbers, n_rows // self.block_size)

    def _block(self, cells: list[list[str]], numbers: list[list[float]], index: int) -> Block:
        x = np.array(numbers)
        if not self.any_range and index == 0:  # the first block tells
            self.space.check_units(x, str(self.path))
        return Block(x, cells, index=index)
