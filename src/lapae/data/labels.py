"""Labels as integer classes with names, or as a 0/1 matrix of attributes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from lapae.errors import DataError
from lapae.space.frames import Series


def as_classes(path: str | Path, y: np.ndarray, n_data: int) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return the labels of an array file: (N,) whole numbers or text as classes from 0 with names; (N, A) attributes
    unchanged."""
    if y.ndim == 0 or len(y) != n_data:
        raise DataError(f"{path}: labels y of shape {y.shape} for {n_data:,} samples")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2 and y.dtype.kind in "biuf":
        if not np.isin(y, (0, 1)).all():
            raise DataError(f"{path}: labels y of shape {y.shape} are attributes, and must be 0 or 1")
        return y.astype(np.uint8), None
    if y.ndim != 1 or y.dtype.kind not in "biufU":
        raise DataError(
            f"{path}: labels y of shape {y.shape} and type {y.dtype}, expected (N,) classes or (N, A) of 0 and 1"
        )
    if y.dtype.kind == "f":
        if (row := _first_fraction(y)) is not None:
            raise DataError(f"{path}: label y[{row}] is {y[row]}, expected classes: whole numbers or text")
        y = y.astype(np.int64)
    values, classes = np.unique(y.astype(np.uint8) if y.dtype.kind == "b" else y, return_inverse=True)
    return classes.astype(np.int64), tuple(str(value) for value in values)


def parse_classes(where: str, labels: Series, row_name: Callable[[int], str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the labels in a column of a table as classes from 0, in numerical order if all are whole numbers."""
    empty = (labels.isna() | (labels.astype(str).str.strip() == "")).to_numpy(bool)
    if empty.any():
        raise DataError(f"{where}, {row_name(int(empty.argmax()))}: the label is empty")
    cells = [str(label).strip() for label in labels]
    try:
        values = np.array([float(cell) for cell in cells])
    except ValueError:
        values = np.array(cells)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        values = np.array(cells)  # classes named "nan" or "inf"
    if values.dtype.kind == "f" and (i := _first_fraction(values)) is not None:
        raise DataError(f"{where}, {row_name(i)}: the label is {cells[i]!r}, expected classes: whole numbers or text")
    classes, names = as_classes(where, values, len(cells))
    assert names is not None
    return classes, names


def _first_fraction(y: np.ndarray) -> int | None:
    """Return the index of the first float that is not a whole number."""
    whole = np.isfinite(y) & (y == np.round(y)) & (np.abs(y) < 2**53)
    return None if whole.all() else int(np.argmin(whole))
