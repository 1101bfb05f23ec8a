"""Columns of Arrow record batches as codes for a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingImports]

from lapae.errors import DataError
from lapae.space import Column
from lapae.space.columns import unique_names
from lapae.space.frames import code_frame, find_columns


def codes_of(
    batch: Any,
    columns: Sequence[Column],
    where: str,
    unknown: dict[str, set[str]],
    words: dict[tuple[int, int], str] | None = None,
) -> np.ndarray:
    """Return the features of a record batch as codes (n, F), NaN where missing.

    Args:
        batch: contains all `columns`, in any order, and possibly others.
        columns: the columns of the model.
        where: beginning of messages.
        unknown: filled with levels that are not in the training data.
        words: filled with these levels by row and column.
    """
    places = find_columns(unique_names(batch.schema.names), columns, where)
    out = np.empty((batch.num_rows, len(columns)))
    rest = []
    for i, (place, column) in enumerate(zip(places, columns, strict=True)):
        array = batch.column(place)
        if pa.types.is_nested(array.type) or pa.types.is_binary(array.type):
            raise DataError(f"{where}: column {column.name!r} is of type {array.type}, the model takes a {column.kind}")
        array = as_floats(array)
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
        arrays = [readable(batch.column(place), column) for (_, place), column in zip(rest, chosen, strict=True)]
        frame = pa.table(arrays, names=[column.name for column in chosen]).to_pandas()
        found: dict[tuple[int, int], str] = {}
        out[:, [i for i, _ in rest]] = code_frame(
            frame, chosen, where, unknown=unknown, words=found, rows=lambda row: f"row {row} of the batch (from 0)"
        )
        if words is not None:
            words |= {(row, rest[k][0]): word for (row, k), word in found.items()}
    return out


def readable(array: Any, column: Column) -> Any:
    """Return a date without a time of day as pandas has dates, and decimal numbers as floats."""
    is_day = column.kind == "date" and pa.types.is_date(array.type)
    if column.kind in ("number", "count"):
        return as_floats(array)
    return array.cast(pa.timestamp("us")) if is_day else array


def as_floats(array: Any) -> Any:
    """Return decimals as the nearest floating-point numbers, which Arrow's cast misses by a bit; others as they are."""
    if not pa.types.is_decimal(array.type):
        return array
    return array.cast(pa.string()).cast(pa.float64())
