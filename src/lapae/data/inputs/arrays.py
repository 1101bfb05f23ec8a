"""New arrays: .npy and .npz files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lapae.data import DataError
from lapae.data.arrays import channels_first, open_npy, read_npz
from lapae.data.inputs.base import Block, Input, Progress
from lapae.data.value_range import judge

if TYPE_CHECKING:
    from lapae.model import TrainedModel


class ArrayInput(Input):
    """A .npy file, or the array of an .npz file."""

    def __init__(self, path: Path, model: TrainedModel, *, any_range: bool = False) -> None:
        super().__init__(path, model)
        self.judge = None if any_range else judge(model)
        if path.suffix.lower() == ".npy":
            raw = open_npy(path)
            if raw.dtype.kind not in "biuf":
                raise DataError(f"{path}: holds values of type {raw.dtype}, expected numbers")
        else:
            raw = np.asarray(read_npz(path, allow_nan=True).x)
        self.raw = raw.view(np.uint8) if raw.dtype == np.bool_ else raw
        self.kind = model.data.kind
        if _as_model(self.raw, self.shape, self.kind) is None:
            came = tuple(raw.shape[1:])
            raise DataError(f"{path}: data of shape {came}, the model takes data of shape {self.shape}")
        self.size = len(raw)
        self.most = float(np.max(model.scaling.scale)) if model.data.kind == "image" else None

    def _read(self, progress: Progress) -> Iterator[Block]:
        """Slices of the array, in the model's layout."""
        for index, start in enumerate(range(0, self.size, self.block_size)):
            stop = min(start + self.block_size, self.size)
            if self._mine(index):
                part = _as_model(self._rows(start, stop), self.shape, self.kind)
                assert part is not None
                self._check(part, start)
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

    def _check(self, part: np.ndarray, start: int) -> None:
        if part.dtype.kind == "f" and np.isinf(part).any():
            row = start + int(np.isinf(part).reshape(len(part), -1).any(1).argmax())
            raise DataError(f"{self.path}, row {row} (from 0): an infinite value")
        if self.judge is not None and start == 0:
            self.judge(self.path, part)
        if self.most is None or not part.size or (part.dtype.kind == "f" and np.isnan(part).all()):
            return
        low, high = float(np.nanmin(part)), float(np.nanmax(part))
        expected = f"the model takes images with values from 0 to {self.most:g}"
        if low < 0 or high > self.most:
            raise DataError(f"{self.path}: values from {low:g} to {high:g}, {expected}")
        if self.most > 1 and part.dtype.kind == "f" and 0 < high <= 1 and start == 0:
            raise DataError(f"{self.path}: floats from {low:g} to {high:g}, {expected}: scale them by {self.most:g}")


def _as_model(x: np.ndarray, shape: tuple[int, ...], kind: str) -> np.ndarray | None:
    """The array in the layout (N, *shape) of the model, or None where it does not fit."""
    if x.ndim == 0:
        return None
    x = x[:, None] if x.ndim == 1 else x
    if x.shape[1:] == shape:
        return x
    if kind == "image" and x.ndim in (3, 4) and channels_first(x).shape[1:] == shape:
        return channels_first(x)
    return None
