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

NUMBERS = ("number", "count", "date")
"""Kinds of columns whose values lie in intervals."""


<<<<<<< HEAD
def codes_of(
    batch: Any,
    columns: Sequence[Column],
    where: str,
    unknown: dict[str, set[str]],
    words: dict[tuple[int, int], str] | None = None,
) -> np.ndarray:
    """Return the features of a record batch as codes (n, F), NaN where missing.

    Args:
        batch: has all `columns`, in any order, and perhaps others.
        columns: the columns of the model.
        where: begins messages.
        unknown: is filled with levels that training has not seen.
        words: is filled with these by row and column.
    """
    places = find_columns(unique_names(batch.schema.names), columns, where)
    out = np.empty((batch.num_rows, len(columns)))
    rest = []
    for i, (place, column) in enumerate(zip(places, columns, strict=True)):
        array = batch.column(place)
        if pa.types.is_nested(array.type) or pa.types.is_binary(array.type):
            raise DataError(f"{where}: column {column.name!r} is of type {array.type}, the model takes a {column.kind}")
        if pa.types.is_decimal(array.type):
            array = array.cast(pa.float64())
        plain = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
        if not plain or column.kind not in ("number", "count"):
            rest.append((i, place))
            continue
        out[:, i] = array.to_numpy(zero_copy_only=False)
        if np.isinf(out[:, i]).any():
            row = int(np.isinf(out[:, i]).argmax())
            raise DataError(f"{where}, row {row} of the batch (from 0), column {column.name!r}: an infinite value")
    if rest:
        chosen = [columns[i] for i, _ in rest]
        arrays = [_readable(batch.column(place), column) for (_, place), column in zip(rest, chosen, strict=True)]
        frame = pa.table(arrays, names=[column.name for column in chosen]).to_pandas()
        found: dict[tuple[int, int], str] = {}
        out[:, [i for i, _ in rest]] = code_frame(
            frame, chosen, where, unknown=unknown, words=found, rows=lambda row: f"row {row} of the batch (from 0)"
        )
        if words is not None:
            words |= {(row, rest[k][0]): word for (row, k), word in found.items()}
    return out


def _readable(array: Any, column: Column) -> Any:
    """Return a date without a time of day as pandas has dates."""
    is_day = column.kind == "date" and pa.types.is_date(array.type)
    return array.cast(pa.timestamp("us")) if is_day else array


=======
>>>>>>> main
def type_of(column: Column) -> Any:
    """Return the Arrow type that values of a column are written in."""
    if column.kind in ("number", "count"):
        return pa.int64() if column.dtype.lower().startswith(("int", "uint")) else pa.float64()
    if column.kind == "date" and column.dtype.startswith("datetime"):
        return pa.timestamp("us", tz="UTC" if "," in column.dtype else None)
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
    made = uncode(values, column)
    made = made.astype(object).where(~np.isnan(values), None)
    if pa.types.is_string(kind):
        made = made.map(str, na_action="ignore")
    return pa.array(made, type=kind, from_pandas=True)


def with_filled(array: Any, made: np.ndarray, missing: np.ndarray, column: Column, where: str) -> Any:
    """Return a column of a batch with values in place of missing ones; the others are as they were.

    Args:
        array: the column (n) of the batch.
        made: codes (n,).
        missing: (n,) bool, where `made` is to be taken.
        column: says the type of the output.
        where: begins messages.
    """
    kind = type_of(column)
    try:
        given = readable(array, column).cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{where}: column {column.name!r} of type {array.type} cannot be written as {kind}, which it was in "
            f"training ({error}); round or convert it first"
        ) from None
    if not missing.any():
        return given
    return pc.call_function("if_else", [pa.array(missing), as_arrow(np.where(missing, made, np.nan), column), given])
