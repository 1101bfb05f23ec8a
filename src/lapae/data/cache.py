"""A .npy file in the cache: written piece by piece, and there whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lapae.data.places import CACHE_VARIABLE
from lapae.errors import DataError, RunError
from lapae.runs.files import npy_rows


@contextmanager
def write_npy(path: Path, n: int) -> Iterator[Callable[[np.ndarray], None]]:
    """A function that takes parts (B, ...) of n data in all.

    Two processes that do the same work each write a file of their own, and either may take the name.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with npy_rows(path, n) as write:
            yield write
    except (OSError, RunError) as error:
        raise DataError(f"{path}: cannot be written ({error}); set ${CACHE_VARIABLE}") from error
