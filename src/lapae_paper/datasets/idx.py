"""The idx format of MNIST: two zero bytes, a type, the number of axes, big-endian sizes, then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from lapae.data.bounds import check_file, check_memory
from lapae.errors import DataError

UNSIGNED_BYTE = 0x08
DEFLATE_RATIO = 1032  # no deflate stream unpacks to more times its own size


def read_idx(path: Path, *, ndim: int) -> np.ndarray:
    """Read a uint8 array of `ndim` axes from an idx file, gzipped if its name ends in .gz."""
    packed = path.suffix == ".gz"
    try:
        held = check_file(path).st_size
        with gzip.open(path) if packed else path.open("rb") as file:
            return _read(cast(BinaryIO, file), path, ndim, most=held * DEFLATE_RATIO if packed else held)
    except EOFError as error:
        raise DataError(f"{path}: the gzip stream ends too early, the file is truncated; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a sound gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _read(file: BinaryIO, path: Path, ndim: int, most: int) -> np.ndarray:
    head = file.read(4)
    expected = bytes((0, 0, UNSIGNED_BYTE, ndim))
    if head != expected:
        raise DataError(
            f"{path}: wrong magic number {head.hex() or '(empty)'}, expected {expected.hex()} (uint8, {ndim} axes)"
        )
    sizes = file.read(4 * ndim)
    if len(sizes) < 4 * ndim:
        raise DataError(f"{path}: the header is cut short")
    shape = struct.unpack(f">{ndim}I", sizes)
    claimed = math.prod(shape)
    if claimed > most:
        raise DataError(f"{path}: the header claims {claimed:,} bytes of shape {shape}, more than the file can hold")
    check_memory(path, claimed, "there is no smaller way to read it")
    # grows with what is there, so that a header that lies costs no memory
    content = bytearray()
    while len(content) < claimed and (part := file.read(min(2**20, claimed - len(content)))):
        content += part
    if len(content) < claimed:
        raise DataError(
            f"{path}: the header claims {claimed:,} bytes of shape {shape}, the file holds {len(content):,}"
        )
    if file.read(1):  # also reads the gzip trailer, whose checksum is then verified
        raise DataError(f"{path}: holds more than the {claimed:,} bytes of shape {shape} that its header claims")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
