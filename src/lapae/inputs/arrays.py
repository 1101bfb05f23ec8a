"""New arrays: .npy files, mapped, and .npz files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lapae.data import DataError
from lapae.data.arrays import channels_first, open_npy, read_npz
from lapae.inputs.base import Block, Input, Progress
from lapae.value_range import judge

if TYPE_CHECKING:
    from lapae.model import TrainedModel


class ArrayInput(Input):
    """A .npy file, mapped, or the array of an .npz file."""

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
        self.x = _as_model(self.raw, self.shape, model.data.kind)
        if self.x is None:
            came = tuple(raw.shape[1:])
            raise DataError(f"{path}: data of shape {came}, the model takes data of shape {self.shape}")
        self.size = len(raw)
        self.most = float(np.max(model.scaling.scale)) if model.data.kind == "image" else None

    def blocks(self, progress: Progress) -> Iterator[Block]:
        """Slices of the array, in the model's layout."""
        assert self.x is not None
        for index, start in enumerate(range(0, self.size, self.block_size)):
            part = self.x[start : start + self.block_size]
            if self._mine(index):
                part = np.asarray(part)
                self._check(part, start)
                yield Block(part, index=index)
            progress(len(part))

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
