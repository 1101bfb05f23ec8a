"""Results of a command, written block by block under a temporary name and put in place whole at the end."""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lapae.errors import ConfigError, RunError
from lapae.runs import sync_folder


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the body ends well, and is removed when it does not."""
    _check_parent(path)
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp makes it private
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """The same for a folder; one that is there and not empty is left alone."""
    _check_parent(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} exists and is not an empty folder: choose another")
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o777 & ~mask)
        if path.exists():
            path.rmdir()
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _check_parent(path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")


@contextmanager
def csv_rows(path: Path, header: Sequence[str] | None, delimiter: str = ",") -> Iterator[Any]:
    """A function that writes rows (lists of cells) to a .csv file; floats are written so that they read back."""
    with whole(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        if header is not None:
            writer.writerow(header)
        yield writer.writerows


@contextmanager
def npy_rows(path: Path, n: int) -> Iterator[Any]:
    """A function that appends arrays (B, ...), n data in all, to a .npy file on the disk.

    With plain writes and not through a memory map: a full disk is then an error and not a crash.
    """
    with whole(path) as temporary, temporary.open("wb") as file:
        begun = False

        def write(part: np.ndarray) -> None:
            nonlocal begun
            if not begun:
                begun = True
                descr = np.lib.format.dtype_to_descr(part.dtype)
                header = {"descr": descr, "fortran_order": False, "shape": (n, *part.shape[1:])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(part).data)

        yield write
        if not begun:
            raise ConfigError(f"{path}: there are no data to write")


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Arrays in an .npz file."""
    with whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def image_bytes(x: np.ndarray, most: float) -> np.ndarray:
    """Images (..., C, H, W) from 0 to `most` as uint8 (..., H, W, C), or (..., H, W) where C is 1."""
    pixels = np.moveaxis(np.clip(np.rint(x * (255 / most)), 0, 255).astype(np.uint8), -3, -1)
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def save_image(path: Path, pixels: np.ndarray) -> None:
    """One image (H, W) or (H, W, C) as a .png file; `path` may be a temporary name."""
    from PIL import Image

    with path.open("wb") as file:
        Image.fromarray(pixels).save(file, format="PNG")


def grid(images: np.ndarray) -> np.ndarray:
    """Images (n, H, W[, C]) side by side in a square, a pixel apart."""
    n, height, width = images.shape[:3]
    columns = int(np.ceil(np.sqrt(n)))
    rows = -(-n // columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, *images.shape[3:]), 255, np.uint8)
    for i, image in enumerate(images):
        top, left = (i // columns) * (height + 1), (i % columns) * (width + 1)
        sheet[top : top + height, left : left + width] = image
    return sheet
