"""Image files to uint8 arrays. Every failure is a `DataError` that names the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image, ImageOps

from lapae.data.bounds import check_file
from lapae.errors import DataError
from lapae.space import Fit

# A closed list: Pillow also opens formats that run other programs (EPS).
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset((".bmp", ".gif", ".jpg", ".jpeg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
SKIP = " (--skip-bad leaves such files out)"
MAX_PIXELS = 2**26
GRAY_MODES = frozenset(("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N"))
EXIF_ORIENTATION = 0x0112

A = TypeVar("A")
B = TypeVar("B")


class Header(NamedTuple):
    """Properties of an image file that are known before it is decoded."""

    size: tuple[int, int]
    """(height, width), as seen upright."""
    gray: bool


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open an image without reading its pixels; more than `MAX_PIXELS` are refused as a decompression bomb."""
    check_file(path)
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"{path}: {image.width}x{image.height} pixels, at most {MAX_PIXELS:,} are read")
            yield image
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise errors of many kinds on damaged files
        raise DataError(f"{path}: cannot be read as an image ({error})") from error


def read_header(path: Path) -> Header:
    """Return size and mode of an image file without decoding it."""
    with opened(path) as image:
        height, width = image.height, image.width
        if _turned(image) >= 5:  # orientations 5 to 8 exchange the axes
            height, width = width, height
        return Header((height, width), image.mode in GRAY_MODES)


def decode(path: Path, size: tuple[int, int], *, gray: bool, fit: Fit = "crop") -> np.ndarray:
    """Return the image at `path`, upright and scaled to (height, width): uint8 (1 or 3, height, width), without
    alpha."""
    with opened(path) as image:
        # JPEGs are decoded at a fraction of their size where that is still twice what is needed
        image.draft(None, (2 * max(size), 2 * max(size)))
        upright = ImageOps.exif_transpose(image) if _turned(image) > 1 else image
        if upright.mode in ("I", "F"):
            raise DataError(
                f"{path}: mode {upright.mode} (32 bits a pixel) has no known range; store such data as .npy"
            )
        if upright.mode.startswith("I;16"):
            upright = Image.fromarray(((np.asarray(upright).astype(np.uint32) + 128) // 257).astype(np.uint8))
        array = np.asarray(fitted(upright.convert("L" if gray else "RGB"), size, fit))
    return array[None] if gray else np.ascontiguousarray(array.transpose(2, 0, 1))


def transparent(path: Path, size: tuple[int, int], fit: Fit = "crop") -> np.ndarray:
    """Return where the image at `path`, fitted as by `decode`, is fully transparent: (height, width) bool."""
    with opened(path) as image:
        if "A" not in image.getbands() and "transparency" not in image.info:
            return np.zeros(size, bool)
        alpha = image.convert("RGBA").getchannel("A")
        return np.asarray(fitted(alpha, size, fit, Image.Resampling.NEAREST, border=255)) == 0


def fitted(
    image: Image.Image,
    size: tuple[int, int],
    fit: Fit,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
    border: int = 0,
) -> Image.Image:
    """Return an image scaled to (height, width): with borders, cropped at the middle, or stretched."""
    height, width = size
    if image.size == (width, height):
        return image
    if fit == "crop":
        return ImageOps.fit(image, (width, height), resample)
    if fit == "border":
        return ImageOps.pad(image, (width, height), resample, color=border if image.mode == "L" else (border,) * 3)
    return image.resize((width, height), resample)


def in_threads(function: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Map over items in a few threads: Pillow releases the interpreter lock while it decodes and resizes."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), 8, (os.cpu_count() or 1) + 1)) as pool:
        return list(pool.map(function, items))


def file_bytes(paths: Iterable[Path]) -> Iterator[np.ndarray]:
    """Yield the name of each file, without its folder, and its bytes."""
    for path in paths:
        yield np.frombuffer(path.name.encode("utf-8", "surrogateescape"), np.uint8)
        check_file(path)
        try:
            yield np.fromfile(path, np.uint8)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _turned(image: Image.Image) -> int:
    """Return the EXIF orientation, only of JPEGs, because Pillow would decode the whole file of some other formats."""
    return image.getexif().get(EXIF_ORIENTATION, 1) if image.format in ("JPEG", "MPO") else 1
