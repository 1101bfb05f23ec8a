"""Arrays in .npy files, which are memory-mapped and not loaded, and in .npz files."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from lapae.data.errors import DataError
from lapae.data.labels import as_classes
from lapae.data.scaling import Scaling
from lapae.data.source import Records, chunks

MAX_MEMBER_BYTES = 4 * 2**30
CHANNELS = (1, 3, 4)
MAX_AXES = 32
"""NumPy has 64 at most; some are added on the way."""


def read_npy(path: Path, *, allow_nan: bool = False) -> Records:
    """The data of a .npy file (N, ...), as a memory map."""
    return interpret(path, open_npy(path), allow_nan=allow_nan)


def read_npz(path: Path, *, allow_nan: bool = False) -> Records:
    """The data of an .npz file: the array `x`, or the only one; labels in the array `y`, if there is one."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            others = [name for name in members if name != "y"]
            name = "x" if "x" in members else others[0] if len(others) == 1 else None
            if name is None:
                raise DataError(
                    f"{path}: expected an array named 'x', or only one; it holds {sorted(members) or 'none'}"
                )
            x = _read_member(path, archive, members[name])
            y = _read_member(path, archive, members["y"]) if "y" in members else None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # zipfile and its decompressors raise errors of many kinds on damaged files
        raise DataError(f"{path}: not a sound .npz file ({error})") from error
    return interpret(path, x, y, allow_nan=allow_nan)


def interpret(path: Path, x: np.ndarray, y: np.ndarray | None = None, *, allow_nan: bool = False) -> Records:
    """Decide what an array is.

    With three axes or more, uint8 is images from 0 to 255, and booleans and floats within [0, 1] are images as they
    are; all else is standardised. Images become (N, C, H, W), from (N, H, W) and (N, H, W, 1, 3 or 4).
    """
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}: holds values of type {x.dtype}, expected numbers")
    if x.ndim == 0 or x.size == 0:
        raise DataError(f"{path}: holds no data, its shape is {x.shape}")
    most = 255.0 if x.dtype == np.uint8 else 1.0
    x = x.view(np.uint8) if x.dtype == np.bool_ else x
    x = x[:, None] if x.ndim == 1 else x
    low, high = bounds(path, x, allow_nan=allow_nan) if x.dtype.kind == "f" else (-np.inf, np.inf)
    in_range = x.dtype == np.uint8 or (low >= 0 and high <= 1)
    scaling = Scaling(0.0, most) if x.ndim >= 3 and in_range else None
    image = scaling is not None and x.ndim in (3, 4)
    classes, label_names = as_classes(path, y, len(x)) if y is not None else (None, None)
    return Records(
        name=path.stem,
        kind="image" if image else "table" if x.ndim == 2 else "array",
        x=channels_first(x) if image else x,
        y=classes,
        scaling=scaling,
        label_names=label_names,
    )


def bounds(path: Path, x: np.ndarray, *, allow_nan: bool) -> tuple[float, float]:
    """Least and greatest of floats x; infinity, and NaN unless allowed, is an error that names its place."""
    low, high = math.inf, -math.inf
    for start, part in chunks(x):
        bad = np.isinf(part) if allow_nan else ~np.isfinite(part)
        if bad.any():
            row, *rest = (int(i) for i in np.argwhere(bad)[0])
            where = f"row {start + row}" + (f", column {rest[0]}" if len(rest) == 1 else f", position {tuple(rest)}")
            value = part[(row, *rest)]
            hint = "; allow_nan, --allow-nan, takes NaN as missing" if np.isnan(value) else ""
            raise DataError(f"{path}, {where} (from 0): the value is {value}{hint}")
        part = part[~np.isnan(part)] if allow_nan else part
        if part.size:
            low, high = min(low, float(part.min())), max(high, float(part.max()))
    return low, high


def open_npy(path: Path) -> np.ndarray:
    """A .npy file as a read-only memory map."""
    try:
        with path.open("rb") as file:
            shape, fortran, dtype = _npy_header(path, file)
            start, held = file.tell(), path.stat().st_size
        claimed = math.prod(shape) * dtype.itemsize
        if claimed != held - start:
            raise DataError(
                f"{path}: the header claims {claimed:,} bytes of shape {shape}, the file holds {held - start:,}"
            )
        if claimed == 0:
            return _nothing(path, shape, dtype)
        return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape, order="F" if fortran else "C")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _nothing(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array without elements. NumPy would take memory for its other axes, which may be of any size."""
    try:
        return np.broadcast_to(np.zeros((), dtype), shape)
    except ValueError as error:
        raise DataError(f"{path}: the header claims a shape that no array has") from error


def _npy_header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of a .npy stream. Objects are refused: reading them would run what they say."""
    try:
        version = np.lib.format.read_magic(file)
        read: Any = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file)
    except OSError:
        raise
    except Exception as error:  # the header is parsed as Python, which raises errors of many kinds
        raise DataError(f"{path}: not a sound .npy file ({str(error)[:200]})") from error
    if len(shape) > MAX_AXES or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise DataError(f"{path}: the header claims a shape that no array has")
    if dtype.hasobject or dtype.itemsize == 0:
        raise DataError(f"{path}: holds values of type {dtype}, expected numbers")
    return shape, fortran, dtype


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One array of an archive. No memory is taken before its header agrees with its place in the archive."""
    member = path / info.filename
    if info.file_size > MAX_MEMBER_BYTES:
        most = f"{MAX_MEMBER_BYTES:,}"
        raise DataError(
            f"{member}: {info.file_size:,} bytes unpacked, at most {most} are loaded; store it as .npy, which is mapped"
        )
    try:
        with archive.open(info) as file:
            shape, fortran, dtype = _npy_header(member, file)
            claimed, held = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
            if claimed != held:
                raise DataError(
                    f"{member}: the header claims {claimed:,} bytes of shape {shape}, the archive holds {held:,}"
                )
            content = file.read()
    except RuntimeError as error:  # an archive with a password
        raise DataError(f"{member}: cannot be read ({error})") from error
    if len(content) != claimed:
        raise DataError(f"{member}: cut short, {len(content):,} of {claimed:,} bytes")
    if claimed == 0:
        return _nothing(member, shape, dtype)
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def channels_first(x: np.ndarray) -> np.ndarray:
    """Images (N, H, W), (N, C, H, W) or (N, H, W, C) as (N, C, H, W), without a copy."""
    if x.ndim == 3:
        return x[:, None]
    return np.moveaxis(x, -1, 1) if x.shape[1] not in CHANNELS and x.shape[-1] in CHANNELS else x
