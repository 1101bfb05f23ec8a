"""Images: one, or a folder of them, of any size and mode, decoded on access so that they need not fit into memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.features import with_features
from lapae.data.image_files import SKIP, SUFFIXES, Header, decode, file_bytes, in_threads, read_header, transparent
from lapae.data.progress import progress
from lapae.data.reader import Block, Progress, Reader
from lapae.data.source import Lazy, Records
from lapae.data.tiles import LEAST_TILE, Tiles, check_tile
from lapae.errors import DataError
from lapae.space import Fit, Space
from lapae.space.tiles import corners, cut_tiles

SIZES, FEATURE_SIZES = (64, 128), (224, 256)
"""Default side of images, and the largest side up to which images of one size keep it; for pixels, and for features."""
CHECK_AT_ONCE = 512


class ImageReader(Reader):
    """An image, or a folder of them whose sub-folders are labels; scaled to [0, 1].

    Args:
        path: the image or the folder.
        space: space of the model for which the images are read; None to train on them, with the options of
            `lapae.data.load`.
        image_size: by default their own size where all agree and it is at most 128, else 64; with features 256, 224.
        fit: how they are scaled to this size; default: crop, or stretch with features, because a defect may lie at the
            border.
        features: a network whose features are learned instead of pixels.
        resize: scale images of other sizes even if the training images were all of one size.
        alpha: whether transparent pixels are missing.
        any_colour: whether a model of gray images accepts colour images too.
    """

    def __init__(
        self,
        path: Path,
        space: Space | None = None,
        *,
        image_size: int | None = None,
        fit: Fit | None = None,
        tile: int | None = None,
        features: str | None = None,
        skip_bad: bool = False,
        resize: bool = False,
        alpha: bool = False,
        any_colour: bool = False,
    ) -> None:
        super().__init__(path, space)
        self.skip_bad, self.alpha, self.any_colour = skip_bad, alpha, any_colour
        self.image_size, self.tile, self.features = image_size, tile, features
        if tile is not None and (tile < LEAST_TILE or image_size is not None or fit is not None):
            raise DataError(f"tile={tile}: expected at least {LEAST_TILE}, and no image_size or fit beside it")
        if tile is not None and features is not None:
            raise DataError(f"tile={tile}: features are those of whole images; leave one of the two out")
        self.fit: Fit = fit or ("crop" if features is None else "stretch")
        if space is not None:
            learned = space.features
            self.shape = space.model_shape if learned is None else learned.image
            if learned is None and (space.kind != "image" or self.shape[0] not in (1, 3)):
                raise DataError(f"{path}: images, the model takes data of shape {space.shape}")
            self.fit = fit or space.fit or ("crop" if learned is None else "stretch")
            self.resize = resize or space.fit is not None
            # a model of floats in [0, 1] has a scale of 1
            self.scale = (space.most if learned is None else learned.most) / 255
        self.folder = path if path.is_dir() else path.parent
        self.files = list_images(path) if path.is_dir() else [path]
        self.size = len(self.files)

    def records(self) -> Records:
        """Return all images, decoded when they are needed; gray if all are gray, else RGB. `skip_bad` decodes all of
        them once."""
        found = _headers(self.folder, self.files, partial(_sound, skip_bad=self.skip_bad, tile=self.tile or 1))
        paths = [path for path, header in zip(self.files, found, strict=True) if header is not None]
        headers = [header for header in found if header is not None]
        if not paths:
            raise DataError(f"{self.folder}: none of its {len(self.files)} images can be read")
        classes = _classes(self.folder, paths)
        names, y = np.unique(classes, return_inverse=True) if classes else ((), None)
        about: dict[str, Any] = {"name": self.folder.resolve().name, "label_names": tuple(map(str, names)) or None}
        if self.tile is not None:
            tiles = Tiles(paths, headers, self.tile, self.folder)
            return Records(x=tiles, y=None if y is None else y[tiles.image], groups=tiles.image, **about)
        sizes = {header.size for header in headers}
        default, common = SIZES if self.features is None else FEATURE_SIZES
        size = (self.image_size or default, self.image_size or default)
        if self.image_size is None and len(sizes) == 1 and max(next(iter(sizes))) <= common:
            size = next(iter(sizes))
        files = ImageFiles(paths, size, gray=all(header.gray for header in headers), fit=self.fit, folder=self.folder)
        found = Records(x=files, y=y, fit=None if sizes == {size} else self.fit, **about)
        return found if self.features is None else with_features(found, self.features)

    def _read(self, progress: Progress) -> Iterator[Block]:
        """Yield images in the order of their names; for a model of tiles, those of one image per block."""
        at_once = 1 if self.space.tile else self.block_size
        for index, start in enumerate(range(0, self.size, at_once)):
            images, files = [], []
            names = self.files[start : start + at_once]
            for file in names:
                try:
                    images.append(self._pixels(file))
                    files.append([str(file.relative_to(self.folder))])
                except DataError as error:
                    if not self.skip_bad:
                        raise DataError(f"{error}{SKIP}") from error
                    self.skipped.append(str(error))
                progress(1)
            if images:
                yield (
                    self._tiles(images[0], files[0], index)
                    if self.space.tile
                    else Block(self._given(np.stack(images)), ["file"], files, index)
                )

    def _given(self, images: np.ndarray) -> np.ndarray:
        """Return images (n, C, H, W) in the user's layout."""
        return images if self.space.features is not None else self.space.as_given(images)

    def _tiles(self, image: np.ndarray, file: list[str], index: int) -> Block:
        """Return the tiles of an image (C, H, W), and their positions in it."""
        tile = self.space.model_shape[-1]
        at = corners(image.shape[1:], tile)  # pyright: ignore[reportArgumentType]
        cells = [[*file, str(row), str(column)] for row, column in at.tolist()]
        return Block(self.space.as_given(cut_tiles(image, tile, at)), ["file", "row", "column"], cells, index)

    def _pixels(self, path: Path) -> np.ndarray:
        channels, *size = self.shape
        header = read_header(path)
        if self.space.tile:
            check_tile(path, header.size, size[0])
        height, width = header.size if self.space.tile else size
        if channels == 1 and not header.gray and not self.any_colour:
            raise DataError(f"{path}: a colour image, the model takes gray ones")
        if header.size != (height, width) and not self.resize:
            came = f"{header.size[0]}x{header.size[1]}"
            raise DataError(f"{path}: {came} pixels, the model takes {height}x{width}; --resize scales images to it")
        pixels = decode(path, (height, width), gray=channels == 1, fit=self.fit)
        if not self.alpha and self.scale == 1:
            return pixels
        floats = pixels * np.float32(self.scale)
        if not self.alpha:
            return floats
        return np.where(transparent(path, (height, width), self.fit), np.float32(np.nan), floats)


class ImageFiles(Lazy):
    """Image files as a source (N, 1 or 3, height, width) of uint8, decoded on access."""

    def __init__(
        self, paths: list[Path], size: tuple[int, int], *, gray: bool, fit: Fit = "crop", folder: Path
    ) -> None:
        self.paths, self.size, self.gray, self.folder = paths, size, gray, folder
        self.fit: Fit = fit
        self.shape, self.dtype = (len(paths), 1 if gray else 3, *size), np.dtype(np.uint8)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Decode the images at an integer, a slice or an array of integers."""
        chosen = np.arange(len(self.paths))[index]
        if np.ndim(chosen) == 0:
            return self._read(self.paths[int(chosen)])
        images = in_threads(self._read, [self.paths[i] for i in chosen])
        return np.stack(images) if images else np.empty((0, *self.shape[1:]), self.dtype)

    def name(self, i: int) -> str:
        return str(self.paths[i].relative_to(self.folder))

    def stored(self, index: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield the bytes of the files, because decoding them takes many times as long."""
        yield from file_bytes(self.paths if index is None else [self.paths[i] for i in index])

    def _read(self, path: Path) -> np.ndarray:
        try:
            return decode(path, self.size, gray=self.gray, fit=self.fit)
        except DataError as error:
            raise DataError(f"{error}{SKIP}") from error


def list_images(folder: Path) -> list[Path]:
    """Return the image files under a folder, in the order of their names."""
    try:
        found = sorted(
            path.relative_to(folder)
            for path in folder.rglob("*")
            if path.suffix.lower() in SUFFIXES and not _hidden(path.relative_to(folder)) and path.is_file()
        )
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror})") from error
    if not found:
        raise DataError(f"{folder}: no images in this folder or below it (looked for {', '.join(sorted(SUFFIXES))})")
    return [folder / path for path in found]


def _classes(folder: Path, paths: list[Path]) -> list[str]:
    """Return the sub-folder of each image; none if all are in the folder itself."""
    found = [path.relative_to(folder) for path in paths]
    loose = [path for path in found if len(path.parts) == 1]
    if loose and len(loose) < len(found):
        inside = next(path for path in found if len(path.parts) > 1)
        raise DataError(
            f"{folder}: images both in the folder itself ({loose[0]}) and in sub-folders ({inside}); "
            "put all into sub-folders, which are labels, or none"
        )
    return [] if loose else [path.parts[0] for path in found]


def _headers(folder: Path, paths: list[Path], read: Callable[[Path], Header | None]) -> list[Header | None]:
    """Return the headers of all files, so that a damaged one is found now and not in the middle of training."""
    headers: list[Header | None] = []
    with progress(f"checking {folder.name}", len(paths)) as advance:
        for start in range(0, len(paths), CHECK_AT_ONCE):
            headers += in_threads(read, paths[start : start + CHECK_AT_ONCE])
            advance(len(headers) - start)
    return headers


def _sound(path: Path, *, skip_bad: bool, tile: int) -> Header | None:
    """Return the header of an image that is large enough for a tile; with `skip_bad` None if the file is damaged."""
    try:
        header = read_header(path)
        check_tile(path, header.size, tile)
        if skip_bad:
            decode(path, header.size, gray=header.gray)
        return header
    except DataError as error:
        if not skip_bad:
            raise DataError(f"{error}{SKIP}") from error
        warnings.warn(f"skipped: {error}", stacklevel=2)
        return None


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
