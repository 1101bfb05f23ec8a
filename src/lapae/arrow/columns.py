"""Codes as Arrow arrays of the types that columns had in training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingImports]
import pyarrow.compute as pc  # pyright: ignore[reportMissingImports]

from lapae.data.arrow_codes import readable
from lapae.errors import DataError
from lapae.space import Column
from lapae.space.frames import uncode


def type_of(column: Column) -> Any:
    """Return the Arrow type that values of a column are written in."""
    if column.kind in ("number", "count"):
        return pa.int64() if column.dtype.lower().startswith(("int", "uint")) else pa.float64()
    if column.kind == "date" and column.dtype.startswith("datetime"):
        return pa.timestamp("us", tz=column.dtype.partition(", ")[2].rstrip("]") or None)
    if column.kind == "boolean" and not column.categories:
        return pa.bool_()
    return pa.string()


def end_of(column: Column) -> Column:
    """Return the column of the ends of intervals: those of whole numbers are real."""
    return replace(column, kind="number", dtype="float64") if column.kind in ("number", "count") else column


def as_arrow(values: np.ndarray, column: Column) -> Any:
    """Return codes (n,) of a column as an Arrow array of `type_of(column)`; NaN is null."""
    kind = type_of(column)
    if column.kind in ("number", "count"):
        whole = np.rint(values) if pa.types.is_integer(kind) else values
        return pa.array(whole, mask=np.isnan(values)).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array(values >= 0.5, mask=np.isnan(values))
    made = uncode(values, column)
    made = made.astype(object).where(~np.isnan(values), None)
    if pa.types.is_string(kind):
        made = made.map(str, na_action="ignore")
    return pa.array(made, type=kind, from_pandas=True)


def with_filled(array: Any, x: np.ndarray, made: np.ndarray, column: Column, where: str) -> Any:
    """Return a column of a batch with values in place of missing ones; the others are as they were, and numbers that
    are written with a currency or a unit are numbers.

    Args:
        array: the column (n) of the batch.
        x: its codes (n,), NaN where `made` is to be taken.
        made: codes (n,).
        column: says the type of the output.
        where: begins messages.
    """
    kind, missing = type_of(column), np.isnan(x)
    try:
        is_numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
        words = column.kind in ("number", "count") and not any(test(array.type) for test in is_numeric)
        given = (pa.array(x, mask=missing) if words else readable(array, column)).cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{where}: column {column.name!r} of type {array.type} cannot be written as {kind}, which it was in "
            f"training ({error}); round or convert it first"
        ) from None
    if not missing.any():
        return given
    return pc.call_function("if_else", [pa.array(missing), as_arrow(np.where(missing, made, np.nan), column), given])
