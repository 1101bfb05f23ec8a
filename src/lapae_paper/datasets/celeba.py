"""CelebA in its standard layout: aligned faces, 40 attributes, and the official partition.

The faces are cropped to the central 148 of 178 pixels and resized, once; the result is kept as a memory-mapped .npy.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from lapae.data.arrays import open_npy
from lapae.data.bounds import check_file
from lapae.data.image_files import in_threads, opened
from lapae.data.named import NamedSet
from lapae.data.progress import progress
from lapae.data.source import Records
from lapae.errors import DataError, RunError
from lapae.runs.files import npy_rows

IMAGES, ATTRIBUTES, PARTITION = "img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"
WIDTH, HEIGHT, CROP = 178, 218, 148
SIZE = 64
CACHE_VARIABLE = "LAPAE_CACHE"
RECIPE = "crop 148 bilinear 1"  # a change of what is done to a face must change this, and with it the cache
AT_ONCE = 512
MOST_LIST_BYTES = 2**28

HOW_TO_GET = (
    "CelebA is not downloaded: its licence asks you to fetch it by hand (the aligned and cropped images, from the "
    "data set's own page, mmlab.ie.cuhk.edu.hk/projects/CelebA.html). Put it so:\n"
    f"  {{folder}}/{IMAGES}/000001.jpg ...\n  {{folder}}/{ATTRIBUTES}\n  {{folder}}/{PARTITION}"
)


def read_celeba(folder: Path, image_size: int | None = None) -> Records:
    """Read the faces, their attributes and the official splits.

    Args:
        folder: folder with the standard layout.
        image_size: height and width that faces are resized to; default: 64.

    Returns:
        Faces (N, 3, image_size, image_size), uint8 in a memory map, and attributes (N, 40) that are 0 or 1.
    """
    names, codes = _read_partition(folder / PARTITION)
    attribute_names, attributes = _read_attributes(folder / ATTRIBUTES, names)
    return Records(
        name="celeba",
        x=_faces(folder / IMAGES, names, image_size or SIZE),
        y=attributes,
        partition=codes,
        label_names=attribute_names,
    )


CELEBA = NamedSet(
    read_celeba, by_hand=HOW_TO_GET, parts=(IMAGES, ATTRIBUTES, PARTITION), takes=frozenset({"image_size"})
)


def decode_face(path: Path, size: int = SIZE) -> np.ndarray:
    """Decode one face: uint8 (3, size, size). The crop scales with the image: half-size files give the same face."""
    with opened(path) as image:
        width, height = image.size
        if abs(height - width * HEIGHT / WIDTH) > 1:
            raise DataError(f"{path}: {width}x{height} pixels, expected {WIDTH}x{HEIGHT} or the same shape scaled")
        side = CROP * width / WIDTH
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        face = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box)
        return np.asarray(face).transpose(2, 0, 1)


def _faces(folder: Path, names: list[str], size: int) -> np.ndarray:
    """Return all faces as a memory map; they are decoded once and cached."""
    cache = Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/lapae").expanduser()  # the data may be read-only
    cached = cache / f"celeba-{size}-{_fingerprint(folder, names)}.npy"
    shape = (len(names), 3, size, size)
    if cached.exists():
        try:
            faces = open_npy(cached)
            if faces.shape == shape and faces.dtype == np.uint8:
                return faces
        except DataError:
            pass  # damaged: made again
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with progress("decoding CelebA", len(names)) as advance, npy_rows(cached, len(names)) as write:
            for start in range(0, len(names), AT_ONCE):
                paths = [folder / name for name in names[start : start + AT_ONCE]]
                write(np.stack(in_threads(partial(decode_face, size=size), paths)))
                advance(len(paths))
    except (OSError, RunError) as error:
        raise DataError(f"{cached}: cannot be written ({error}); set ${CACHE_VARIABLE}") from error
    return open_npy(cached)


def _fingerprint(folder: Path, names: list[str]) -> str:
    """Digest of the names, sizes and times of the images: other content has another cache."""
    digest = hashlib.sha256(RECIPE.encode())
    for name in names:
        try:
            status = (folder / name).stat()
        except OSError as error:
            raise DataError(f"{folder / name}: listed in {PARTITION} but not there ({error.strerror})") from error
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _lines(path: Path) -> list[str]:
    if check_file(path).st_size > MOST_LIST_BYTES:
        raise DataError(f"{path}: larger than any list of this data set")
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error})") from error


def _is_name(cell: str) -> bool:
    """Whether a cell names a file in the folder of the images, and nothing elsewhere."""
    return Path(cell).name == cell and cell.isprintable() and cell != ".."


def _read_partition(path: Path) -> tuple[list[str], np.ndarray]:
    """Read the file names and their codes (N,): 0 train, 1 validation, 2 test."""
    names, codes = [], []
    for row, line in enumerate(_lines(path), start=1):
        cells = line.split()
        if not cells:
            continue
        if len(cells) != 2 or cells[1] not in ("0", "1", "2") or not _is_name(cells[0]):
            raise DataError(f"{path}, row {row}: {line[:80]!r}, expected a file name and 0, 1 or 2")
        names.append(cells[0])
        codes.append(int(cells[1]))
    if not names:
        raise DataError(f"{path}: is empty")
    return names, np.array(codes)


def _read_attributes(path: Path, names: list[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Read the names of the attributes (A), and their values 0 or 1 (N, A) in the order of `names`.

    The file holds a count, the names, and rows of -1 and 1.
    """
    lines = _lines(path)
    if len(lines) < 2 or not lines[0].strip().isdecimal():
        raise DataError(f"{path}: expected the number of images in row 1 and the names of the attributes in row 2")
    attribute_names = tuple(lines[1].split())
    rows: dict[str, list[int]] = {}
    for row, line in enumerate(lines[2:], start=3):
        name, *cells = line.split() or [""]
        if not name:
            continue
        if len(cells) != len(attribute_names) or not set(cells) <= {"-1", "1"}:
            raise DataError(f"{path}, row {row}: expected {len(attribute_names)} values of -1 or 1 after {name!r}")
        rows[name] = [int(cell == "1") for cell in cells]
    if len(rows) != int(lines[0]):
        raise DataError(f"{path}: row 1 announces {int(lines[0]):,} images, {len(rows):,} rows follow")
    if without := [name for name in names if name not in rows]:
        raise DataError(f"{path}: no row for {without[0]} and {len(without) - 1:,} more that {PARTITION} lists")
    return attribute_names, np.array([rows[name] for name in names], dtype=np.uint8)
