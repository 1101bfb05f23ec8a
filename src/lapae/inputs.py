"""New data for a trained run: tables, arrays and folders of images, read block by block and checked against the run.

What does not fit (another shape, other columns, another range of values) is a `DataError` that says what came and what
was expected. Memory does not grow with the data: .csv files are read row by row, .npy files are mapped.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lapae.data import DataError
from lapae.data.arrays import channels_first, open_npy, read_npz
from lapae.data.decode import SUFFIXES, decode, opened, read_header
from lapae.data.images import list_images
from lapae.data.table import INDEX_NAMES, delimiter_of, is_header, numbers_of
from lapae.value_range import judge

if TYPE_CHECKING:
    from lapae.model import TrainedModel

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

    def __init__(self, path: Path, model: TrainedModel) -> None:
        self.path = path
        self.shape = tuple(model.shape)
        self.block_size = max(1, min(BLOCK_ROWS, BLOCK_ELEMENTS // max(1, int(np.prod(self.shape)))))
        self.skipped: list[str] = []
        """Files that could not be read and were left out."""
        self.turn: tuple[int, int] = (0, 1)
        """(r, n): blocks r, r + n, r + 2n, … are this process's, where n share the input."""

    @abstractmethod
    def blocks(self, progress: Progress) -> Iterator[Block]:
        """All data in order; those of this process's turns."""

    def _mine(self, index: int) -> bool:
        return index % self.turn[1] == self.turn[0]


def open_input(
    source: str | Path,
    model: TrainedModel,
    *,
    resize: bool = False,
    skip_bad: bool = False,
    alpha: bool = False,
    any_colour: bool = False,
    any_range: bool = False,
) -> Input:
    """The data at `source` for `model`.

    `alpha`: pixels of an image that are transparent are missing. `any_colour`: a model of gray images takes colour ones
    too. `any_range`: the values of tables and arrays may be far from those of the training data.
    """
    path = Path(source).expanduser()
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in SUFFIXES:
        return ImageInput(path, model, resize=resize, skip_bad=skip_bad, alpha=alpha, any_colour=any_colour)
    if suffix == ".csv":
        return CsvInput(path, model, any_range=any_range)
    if suffix in (".npy", ".npz"):
        return ArrayInput(path, model, any_range=any_range)
    raise DataError(f"{path}: expected a .csv, .npy or .npz file, an image, or a folder of images")


class CsvInput(Input):
    """A table. Columns are found by name where the run knows names; those that it does not know are carried along."""

    def __init__(self, path: Path, model: TrainedModel, *, any_range: bool = False) -> None:
        super().__init__(path, model)
        self.judge = None if any_range else judge(model)
        if len(self.shape) != 1:
            raise DataError(f"{path}: a table of rows, the model takes data of shape {self.shape}")
        self.size = path.stat().st_size
        try:
            with self._opened() as file:
                self.delimiter = delimiter_of(file.readline(2**16))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read as .csv ({error})") from error
        first = next(self._rows(lambda done: None), None)
        if first is None:
            raise DataError(f"{path}: is empty")
        cells = first[1]
        names = model.data.feature_names
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

    def blocks(self, progress: Progress) -> Iterator[Block]:
        """Rows as numbers, with their cells."""
        cells: list[list[str]] = []
        numbers: list[list[float]] = []
        n_rows = 0
        rows = self._rows(progress)
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
        if self.judge is not None and index == 0:  # the first block tells
            self.judge(self.path, x)
        return Block(x, cells, index=index)

    def _rows(self, progress: Progress) -> Iterator[tuple[int, list[str]]]:
        """Line numbers and cells."""
        try:
            with self._opened() as file:

                def lines() -> Iterator[str]:
                    for line in file:
                        progress(len(line))
                        yield line

                reader = csv.reader(lines(), delimiter=self.delimiter, strict=True)
                for cells in reader:
                    if cells:
                        yield reader.line_num, [cell.strip() for cell in cells]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{self.path}: cannot be read as .csv ({error})") from error

    def _opened(self):
        return self.path.open(encoding="utf-8-sig", newline="")


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


class ImageInput(Input):
    """An image, or a folder of them."""

    def __init__(
        self, path: Path, model: TrainedModel, *, resize: bool, skip_bad: bool, alpha: bool, any_colour: bool
    ) -> None:
        super().__init__(path, model)
        if model.data.kind != "image" or len(self.shape) != 3 or self.shape[0] not in (1, 3):
            raise DataError(f"{path}: images, the model takes data of shape {self.shape}")
        self.folder = path if path.is_dir() else path.parent
        paths = list_images(path)[0] if path.is_dir() else [path]
        self.files = [file.relative_to(self.folder) for file in paths]
        self.size = len(self.files)
        self.resize = resize or model.config.data.image_size is not None
        self.skip_bad, self.alpha, self.any_colour = skip_bad, alpha, any_colour
        self.scale = float(np.max(model.scaling.scale)) / 255  # a model of floats in [0, 1] has a scale of 1

    def blocks(self, progress: Progress) -> Iterator[Block]:
        """Images in the order of their names."""
        for index, start in enumerate(range(0, self.size, self.block_size)):
            images, files = [], []
            names = self.files[start : start + self.block_size]
            if not self._mine(index):
                progress(len(names))
                continue
            for file in names:
                try:
                    images.append(self._read(self.folder / file))
                    files.append(file)
                except DataError as error:
                    if not self.skip_bad:
                        raise DataError(f"{error} (--skip-bad leaves such files out)") from error
                    self.skipped.append(str(error))
                progress(1)
            if images:
                yield Block(np.stack(images), files=files, index=index)

    def _read(self, path: Path) -> np.ndarray:
        channels, height, width = self.shape
        header = read_header(path)
        if channels == 1 and not header.gray and not self.any_colour:
            raise DataError(f"{path}: a colour image, the model takes gray ones")
        if header.size != (height, width) and not self.resize:
            came = f"{header.size[0]}x{header.size[1]}"
            raise DataError(f"{path}: {came} pixels, the model takes {height}x{width}; --resize scales images to it")
        pixels = decode(path, (height, width), gray=channels == 1)
        if not self.alpha and self.scale == 1:
            return pixels
        floats = pixels * np.float32(self.scale)
        return np.where(_transparent(path, (height, width)), np.float32(np.nan), floats) if self.alpha else floats


def _transparent(path: Path, size: tuple[int, int]) -> np.ndarray:
    """Where an image is fully transparent, (height, width)."""
    with opened(path) as image:
        if "A" not in image.getbands() and "transparency" not in image.info:
            return np.zeros(size, bool)
        alpha = image.convert("RGBA").getchannel("A")
        return np.asarray(alpha.resize((size[1], size[0]), 0)) == 0
