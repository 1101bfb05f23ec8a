"""Large images as tiles: the source to train on, and which tiles go into which part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.image_files import SKIP, Header, decode, file_bytes, in_threads
from lapae.data.source import Lazy, Records, even
from lapae.data.splits import Parts, partition
from lapae.errors import DataError
from lapae.space.tiles import corners, cut_tiles

LEAST_TILE = 8
MOST_VALUES = 2**28
"""Values of the tiles of a part, at most: a gigabyte as float32."""


class Tiles(Lazy):
    """All tiles of image files, as a source (N, 1 or 3, tile, tile) of uint8. An image is decoded once per access."""

    def __init__(self, paths: Sequence[Path], headers: Sequence[Header], tile: int, folder: Path) -> None:
        self.folder = folder
        self.paths, self.sizes, self.tile = list(paths), [header.size for header in headers], tile
        self.gray = all(header.gray for header in headers)
        self.corners = np.concatenate([corners(size, tile) for size in self.sizes])
        counts = [len(corners(size, tile)) for size in self.sizes]
        self.image = np.repeat(np.arange(len(self.paths)), counts)
        """(N,): the image that each tile is of."""
        self.shape, self.dtype = (len(self.image), 1 if self.gray else 3, tile, tile), np.dtype(np.uint8)

    def __getitem__(self, index: Any) -> np.ndarray:
        chosen = np.arange(len(self))[index]
        if np.ndim(chosen) == 0:
            return self._of((int(self.image[chosen]), np.array([chosen])))[0]
        out = np.empty((len(chosen), *self.shape[1:]), self.dtype)
        images, which = np.unique(self.image[chosen], return_inverse=True)
        wanted = [(int(image), chosen[which == i]) for i, image in enumerate(images)]
        for i, found in enumerate(in_threads(self._of, wanted)):
            out[which == i] = found
        return out

    def name(self, i: int) -> str:
        number = int(self.image[i])
        row, column = self.corners[i].tolist()
        return f"{self.paths[number].relative_to(self.folder)}, row {row}, column {column}"

    def stored(self, index: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """The files, and which tiles of them: to decode them takes many times as long."""
        chosen = np.arange(len(self)) if index is None else index
        yield chosen
        yield from file_bytes([self.paths[i] for i in np.unique(self.image[chosen])])

    def _of(self, wanted: tuple[int, np.ndarray]) -> np.ndarray:
        """Tiles of an image, by their numbers among all."""
        image, tiles = wanted
        try:
            pixels = decode(self.paths[image], self.sizes[image], gray=self.gray)
        except DataError as error:
            raise DataError(f"{error}{SKIP}") from error
        return cut_tiles(pixels, self.tile, self.corners[tiles])


def check_tile(path: Path, size: tuple[int, int], tile: int) -> None:
    """Raise a DataError if an image (height, width) is smaller than a tile."""
    if min(size) < tile:
        raise DataError(f"{path}: {size[0]}x{size[1]} pixels, smaller than a tile of {tile}x{tile}")


def divide_images(records: Records, **options: Any) -> Parts:
    """Training, validation, calibration and test tiles: all of an image are in one part.

    Training takes tiles evenly, as many as fit into memory; the other parts take whole images.
    """
    image = records.groups
    assert image is not None
    most = max(1, MOST_VALUES // int(np.prod(records.x.shape[1:])))
    n = int(image.max()) + 1
    train, *others = partition(n, **options)
    tiles = np.flatnonzero(np.isin(image, train))
    parts = [tiles[even(len(tiles), most)]]
    for part in others:
        n_tiles = np.bincount(image, minlength=n)[part].sum()
        some = part if n_tiles <= most else part[even(len(part), len(part) * most // n_tiles)]
        parts.append(np.flatnonzero(np.isin(image, some)))
    return tuple(parts)  # pyright: ignore[reportReturnType]
