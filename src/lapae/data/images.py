"""Folders of images: any size and mode, sub-folders are labels. Decoded on access, so that they may exceed memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.decode import SUFFIXES, Header, decode, in_threads, read_header
from lapae.data.progress import progress
from lapae.data.source import Lazy, Records
from lapae.errors import DataError

DEFAULT_SIZE = 64
LARGEST_COMMON_SIZE = 128
CHECK_AT_ONCE = 512
SKIP = " (--skip-bad leaves such files out)"


class ImageFiles(Lazy):
    """Image files as a source (N, 1 or 3, height, width) of uint8, decoded when they are asked for."""

    def __init__(self, paths: list[Path], size: tuple[int, int], *, gray: bool) -> None:
        self.paths, self.size, self.gray = paths, size, gray
        self.shape, self.dtype = (len(paths), 1 if gray else 3, *size), np.dtype(np.uint8)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Decode the images at an integer, a slice or an array of integers."""
        chosen = np.arange(len(self.paths))[index]
        if np.ndim(chosen) == 0:
            return self._read(self.paths[int(chosen)])
        images = in_threads(self._read, [self.paths[i] for i in chosen])
        return np.stack(images) if images else np.empty((0, *self.shape[1:]), self.dtype)

    def _read(self, path: Path) -> np.ndarray:
        try:
            return decode(path, self.size, gray=self.gray)
        except DataError as error:
            raise DataError(f"{error}{SKIP}") from error


def read_images(folder: Path, image_size: int | None = None, *, skip_bad: bool = False) -> Records:
    """The images of a folder, scaled to [0, 1]; classes are the names of its sub-folders, where it has some.

    Size: `image_size` squared; by default that of the images where all agree and it is at most 128, else 64 squared.
    They are RGB unless all are gray. `skip_bad` decodes all of them once, and leaves out what cannot be read, with a
    warning each.
    """
    files = list_images(folder)
    found = _headers(folder, files, partial(_sound, skip_bad=skip_bad))
    paths = [path for path, header in zip(files, found, strict=True) if header is not None]
    headers = [header for header in found if header is not None]
    if not paths:
        raise DataError(f"{folder}: none of its {len(files)} images can be read")
    classes = _classes(folder, paths)
    sizes = {header.size for header in headers}
    size = (image_size or DEFAULT_SIZE, image_size or DEFAULT_SIZE)
    if image_size is None and len(sizes) == 1 and max(next(iter(sizes))) <= LARGEST_COMMON_SIZE:
        size = sizes.pop()
    names = tuple(sorted(set(classes)))
    number = {name: i for i, name in enumerate(names)}
    return Records(
        name=folder.resolve().name,
        x=ImageFiles(paths, size, gray=all(header.gray for header in headers)),
        y=np.array([number[c] for c in classes], dtype=np.int64) if names else None,
        label_names=names or None,
    )


def list_images(folder: Path) -> list[Path]:
    """Image files under a folder, in the order of their names."""
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
    """The sub-folder that each image lies in; none where all lie in the folder itself."""
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
    """Headers of all files: a damaged one is met now and not in the middle of training."""
    headers: list[Header | None] = []
    with progress(f"checking {folder.name}", len(paths)) as advance:
        for start in range(0, len(paths), CHECK_AT_ONCE):
            headers += in_threads(read, paths[start : start + CHECK_AT_ONCE])
            advance(len(headers) - start)
    return headers


def _sound(path: Path, *, skip_bad: bool) -> Header | None:
    """The header of an image; with `skip_bad` None where the file is not sound to its end."""
    try:
        header = read_header(path)
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
