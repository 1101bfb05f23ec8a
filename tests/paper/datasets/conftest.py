"""Made files for the readers, and the real data sets where they are at hand."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from own_folders import own_folders

__all__ = ["own_folders"]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data sets: $LAPAE_DATA, or that beside the checkout."""
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("LAPAE_DATA") or beside)
    if not (folder / "mnist").is_dir():
        pytest.skip("the real data sets are not on this machine (set $LAPAE_DATA)")
    return folder


def idx_bytes(array: np.ndarray, magic: bytes | None = None) -> bytes:
    head = magic or bytes((0, 0, 8, array.ndim))
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def write_idx() -> Callable[..., bytes]:
    """Write an array as idx, gzipped; returns the bytes of the file."""

    def write(path: Path, array: np.ndarray, magic: bytes | None = None) -> bytes:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(idx_bytes(array, magic)))
        return path.read_bytes()

    return write


@pytest.fixture
def small_mnist(tmp_path, write_idx) -> Path:
    """A data folder with an MNIST of 40 training and 10 test images of 4x5."""
    rng = np.random.default_rng(0)
    for part, n in (("train", 40), ("t10k", 10)):
        write_idx(tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz", rng.integers(0, 256, (n, 4, 5)))
        write_idx(tmp_path / "mnist" / f"{part}-labels-idx1-ubyte.gz", rng.integers(0, 10, n))
    return tmp_path
