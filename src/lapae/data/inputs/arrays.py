"""New arrays: .npy and .npz files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lapae.data import DataError
from lapae.data.arrays import open_npy, read_npz
from lapae.data.inputs.base import Block, Input, Progress

if TYPE_CHECKING:
    from lapae.model import Model


class ArrayInput(Input):
    """A .npy file, or the array of an .npz file."""

    def __init__(self, path: Path, model: Model, *, any_range: bool = False) -> None:
        super().__init__(path, model)
        self.any_range = any_range
        if path.suffix.lower() == ".npy":
            raw = open_npy(path)
            if raw.dtype.kind not in "biuf":
                raise DataError(f"{path}: holds values of type {raw.dtype}, expected numbers")
        else:
            raw = np.asarray(read_npz(path, allow_nan=True).x)
        self.raw = raw.view(np.uint8) if raw.dtype == np.bool_ else raw
        self.space.code(self.raw[:1], str(path))  # its shape
        self.size = len(raw)

    def _read(self, progress: Progress) -> Iterator[Block]:
        """Slices of the array, in the model's layout."""
        for index, start in enumerate(range(0, self.size, self.block_size)):
            stop = min(start + self.block_size, self.size)
            if self._mine(index):
                part = self.space.code(self._rows(start, stop), str(self.path))
                self.space.check(part, str(self.path), start)
                if start == 0 and not self.any_range:
                    self.space.check_units(part, str(self.path))
                yield Block(part, index=index)
            progress(stop - start)

    def _rows(self, start: int, stop: int) -> np.ndarray:
        """Some data as they are stored. By plain reads: a map of a file that is cut short ends the process."""
        raw = self.raw
        if not isinstance(raw, np.memmap) or not raw.flags.c_contiguous:
            return np.asarray(raw[start:stop])
        size = raw.dtype.itemsize * int(np.prod(raw.shape[1:]))
        try:
            with self.path.open("rb") as file:
                file.seek(raw.offset + start * size)
                content = file.read((stop - start) * size)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror or error})") from error
        if len(content) < (stop - start) * size:
            raise DataError(f"{self.path}: was cut short while it was read")
        return np.frombuffer(content, raw.dtype).reshape(stop - start, *raw.shape[1:])
