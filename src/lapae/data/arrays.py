"""Arrays: .npy files, which are memory-mapped and not loaded, and .npz files."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from lapae.data.bounds import check_file, check_memory
from lapae.data.labels import as_classes
from lapae.data.reader import Block, Progress, Reader, suffix_of
from lapae.data.source import Records
from lapae.errors import DataError
from lapae.space import Range, Space, chunks
from lapae.space.checks import check_units, check_values
from lapae.space.layout import widened
from lapae.space.series import cut

ARRAYS = (".npy", ".npz")
MAX_AXES = 32
"""NumPy allows at most 64, and some are added during processing."""
AT_ONCE = 2**24
MANY = 500
"""If a series has fewer windows, they are by default less than an eighth of their length apart."""
MOST_PACKED = 100
"""Maximum ratio of compression of arrays of more than `LARGE` bytes: more is a decompression bomb, or an array of
almost only zeros."""
LARGE = 2**30


class ArrayReader(Reader):
    """A .npy file, or an .npz file: its array `x`, or the only one; labels in its array `y`, if there is one."""

    def __init__(
        self,
        path: Path,
        space: Space | None = None,
        *,
        allow_nan: bool = True,
        any_range: bool = False,
        window: int | None = None,
        stride: int | None = None,
    ) -> None:
        super().__init__(path, space)
        self.options: dict[str, Any] = {"allow_nan": allow_nan, "window": window, "stride": stride}
        self.any_range = any_range
        self.raw, self.y = (open_npy(path), None) if suffix_of(path, ARRAYS) == ".npy" else open_npz(path)
        self.size = len(self.raw) if self.raw.ndim else 0
        self.is_series = space is not None and space.kind == "series" and self.raw.ndim < 3
        if space is not None:
            few = self.raw[: space.shape[0] if self.is_series else 1] if self.raw.ndim else self.raw
            space.code(few, str(path))  # its type and shape

    def records(self) -> Records:
        """The array as it is: a map of the file where it can be one."""
        about: dict[str, Any] = {}
        if self.y is not None and self.raw.ndim:
            about["y"], about["label_names"] = as_classes(self.path, self.y, len(self.raw))
        return examine(self.raw, self.path.stem, self.path, **self.options, **about)

    def _read(self, progress: Progress) -> Iterator[Block]:
        where = str(self.path)
        if self.is_series:
            x = self._rows(0, self.size)
            x = x[:, None] if x.ndim == 1 else x
            yield from self._windows(Block(x.astype(np.float64), [], [[] for _ in x]), progress)
            return
        for index, start in enumerate(range(0, self.size, self.block_size)):
            stop = min(start + self.block_size, self.size)
            part = self.space.code(self._rows(start, stop), where)
            check_values(self.space, part, where, start)
            if start == 0 and not self.any_range:  # the first block tells
                check_units(self.space, part, where)
            yield Block(part, [], [[] for _ in part], index)
            progress(stop - start)

    def _rows(self, start: int, stop: int) -> np.ndarray:
        """Return some data as they are stored, by plain reads: a memory map of a truncated file would kill the
        process."""
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


def examine(
    x: np.ndarray,
    name: str,
    where: str | Path,
    *,
    allow_nan: bool = True,
    window: int | None = None,
    stride: int | None = None,
    **about: Any,
) -> Records:
    """Return an array as records after checking that its values are numbers; messages begin with `where`.

    With a `window` it is a series (T, C), which is cut into windows.
    """
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where}: holds values of type {x.dtype}, expected numbers")
    if x.ndim == 0 or x.size == 0:
        raise DataError(f"{where}: holds no data, its shape is {x.shape}")
    most = 1.0 if x.dtype == np.bool_ else None
    x = x.view(np.uint8) if x.dtype == np.bool_ else x
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim == 3 and x.shape[1] == 1:
        raise DataError(
            f"{where}: windows of one step, its shape is {x.shape}: expected (n, steps, channels), at least 2 steps; "
            f"samples of {x.shape[2]} values each are a table, ({len(x)}, {x.shape[2]})"
        )
    values = range_in(where, x, allow_nan=allow_nan) if x.dtype != np.uint8 else None
    records = Records(name, x, most=most, values=values, missing=bool(values and values.missing), **about)
    return records if window is None and stride is None else in_windows(records, where, window, stride)


def range_in(where: str | Path, x: np.ndarray, *, allow_nan: bool) -> Range:
    """Return the range of the values of x; infinity, NaN unless allowed, and columns without any value are errors."""
    found = Range(math.inf, -math.inf, True)
    known = np.zeros(x.shape[1:], bool)
    for start, part in chunks(x):
        if part.dtype.kind == "f":
            bad = np.isinf(part) if allow_nan else ~np.isfinite(part)
            if bad.any():
                row, *rest = (int(i) for i in np.argwhere(bad)[0])
                place = f"column {rest[0]}" if len(rest) == 1 else f"position {tuple(rest)}"
                value = part[(row, *rest)]
                hint = "; allow_nan takes NaN as missing" if np.isnan(value) else ""
                raise DataError(f"{where}, row {start + row}, {place} (from 0): the value is {value}{hint}")
            known |= ~np.isnan(part).all(0)
        found = widened(found, part)
    if found.missing and x.ndim == 2 and not known.all():
        column = int(np.argmin(known))
        raise DataError(f"{where}: has no value at all in feature {column} (from 0): there is nothing to learn from it")
    return found


def in_windows(records: Records, where: str | Path, window: int | None, stride: int | None) -> Records:
    """Return a series (T, C) as windows (n, window, C), `stride` steps apart.

    By default they are an eighth of their length apart, or less, so that there are `MANY`.
    """
    x = np.asarray(records.x)
    if window is None:
        raise DataError(f"{where}: a stride of {stride} needs a window")
    if records.partition is not None or x.ndim != 2:
        raise DataError(f"{where}: a window is for a series (time, channels), got an array of shape {x.shape}")
    if window < 2 or (stride is not None and stride < 1):
        raise DataError(f"{where}: window={window}, stride={stride}: expected at least 2 steps, and 1 between windows")
    stride = stride or max(1, min(window // 8, len(x) // MANY))
    windows = cut(x, window, where)[::stride]
    # a label of a window is that of its last step
    y = None if records.y is None else records.y[window - 1 :: stride][: len(windows)]
    return replace(records, x=windows, y=y, most=None, values=None, stride=stride)


def open_npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Return data and labels of an .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            others = [name for name in members if name != "y"]
            name = "x" if "x" in members else others[0] if len(others) == 1 else None
            if name is None:
                raise DataError(
                    f"{path}: expected an array named 'x', or only one; it holds {sorted(members) or 'none'}"
                )
            for info in (members[key] for key in (name, "y") if key in members):
                _check_size(path, info)
            x = _read_member(path, archive, members[name])
            return x, _read_member(path, archive, members["y"]) if "y" in members else None
    except (DataError, MemoryError):
        raise
    except Exception as error:  # zipfile and its decompressors raise errors of many kinds on damaged files
        raise DataError(f"{path}: not a sound .npz file ({error})") from error


def open_npy(path: Path) -> np.ndarray:
    """Return a .npy file as a read-only memory map."""
    try:
        with path.open("rb") as file:
            shape, fortran, dtype = _npy_header(path, file)
            start, held = file.tell(), check_file(path).st_size
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
    """Return an array without elements. NumPy would allocate memory for its other axes, which may have any size."""
    try:
        return np.broadcast_to(np.zeros((), dtype), shape)
    except ValueError as error:
        raise DataError(f"{path}: the header claims a shape that no array has") from error


def _npy_header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, order and type of a .npy stream. Objects are refused, because reading them would run code."""
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


def _check_size(path: Path, info: zipfile.ZipInfo) -> None:
    """Raise DataError if an array of an archive is too large to be unpacked, according to the archive."""
    member, advice = path / info.filename, "store it as .npy, which is mapped and not loaded"
    if info.file_size > LARGE and info.file_size > MOST_PACKED * info.compress_size:
        raise DataError(
            f"{member}: {info.file_size:,} bytes packed into {info.compress_size:,}, which looks like a decompression "
            f"bomb; expected at most {MOST_PACKED} times as many, above {LARGE:,} bytes; {advice}"
        )
    check_memory(member, info.file_size, advice)


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Return one array of an archive. No memory is allocated before its header agrees with the archive."""
    member = path / info.filename
    try:
        with archive.open(info) as file:
            shape, fortran, dtype = _npy_header(member, file)
            claimed, held = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
            if claimed != held:
                raise DataError(
                    f"{member}: the header claims {claimed:,} bytes of shape {shape}, the archive holds {held:,}"
                )
            if claimed == 0:
                return _nothing(member, shape, dtype)
            content, filled = np.empty(claimed, np.uint8), 0
            while part := file.read(min(AT_ONCE, claimed - filled)):
                content[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
                filled += len(part)
            more = file.read(1)  # nothing; the checksum of the whole is then verified
    except RuntimeError as error:  # an archive with a password
        raise DataError(f"{member}: cannot be read ({error})") from error
    if filled != claimed or more:
        raise DataError(f"{member}: cut short, {filled:,} of {claimed:,} bytes")
    return content.view(dtype).reshape(shape, order="F" if fortran else "C")
