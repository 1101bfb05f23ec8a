"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from lapae.data.errors import DataError
from lapae.data.places import CACHE_VARIABLE


@contextmanager
def write_npy(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[Callable[[np.ndarray], None]]:
    """Write a .npy of a known shape piece by piece; it takes its name when the body has ended without an error.

    Written with plain writes and not through a memory map: a full disk is then an error and not a crash. Two processes
    that do the same work each write a file of their own, and either may take the name.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise DataError(f"{path.parent}: cannot be written ({error.strerror}); set ${CACHE_VARIABLE}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)

            def write(part: np.ndarray) -> None:
                try:
                    file.write(np.ascontiguousarray(part, dtype=dtype).data)
                except OSError as error:
                    raise DataError(f"{path}: cannot be written ({error.strerror}); set ${CACHE_VARIABLE}") from error

            yield write
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # also Ctrl-C: nothing half-written stays
        os.unlink(temporary)
        raise
