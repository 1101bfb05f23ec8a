"""Frames of columns of several kinds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lapae.data.arrays import in_windows
from lapae.data.groups import as_groups
from lapae.data.labels import parse_classes
from lapae.data.source import Records
from lapae.errors import DataError
from lapae.space.column_kinds import CONSTANT, decide_columns, place_of, select, warn_left_out
from lapae.space.columns import unique_names
from lapae.space.constants import only_value
from lapae.space.frames import Frame, code_frame, numbers, position, text
from lapae.space.series import interval_of, is_clock, time_faults, times_of


def table_records(
    frame: Frame,
    name: str,
    where: str,
    *,
    columns: Sequence[str | int] | None = None,
    drop: Sequence[str | int] | None = None,
    label_column: str | int | None = None,
    group_column: str | int | None = None,
    window: int | None = None,
    stride: int | None = None,
    allow_nan: bool = True,
    rows: Callable[[int], str] = position,
    **about: Any,
) -> Records:
    """Return the columns of a frame that can be learned as codes; a warning names the others.

    Args:
        frame: all rows.
        name: of the data set.
        where: begins messages.
        columns: columns to learn; default: all that can be learned.
        drop: columns not to learn.
        label_column: column of classes.
        group_column: column of the groups of rows, which are put into the same split.
        window: steps of a window, of a series; it holds numbers alone.
        stride: steps from one window to the next.
        allow_nan: whether values may be missing.
        rows: from the position of a row to what messages call it.
        about: other fields of the records.
    """
    names = unique_names(frame.columns)
    frame = whole = frame.set_axis(names, axis=1)
    if label_column is not None:
        label = place_of(names, label_column, where)
        about["y"], about["label_names"] = parse_classes(where, frame.iloc[:, label], rows)
        drop = [*(drop or ()), names[label]]
    if group_column is not None:
        group = place_of(names, group_column, where)
        about["together"] = as_groups(text(frame.iloc[:, group]), len(frame), where)
        drop = [*(drop or ()), names[group]]
    frame = select(frame, columns, drop, where)
    if not len(frame) or not frame.shape[1]:
        raise DataError(f"{where}: holds no rows of features")
    learned, left_out = decide_columns(frame)
    names_of = unique_names(frame.columns)
    series = window is not None or stride is not None
    if series:
        left_out |= {c.name: f"a {c.kind}: a series holds numbers" for c in learned if c.kind in ("category", "date")}
        if len(learned) > 1 and learned[0].name == names_of[0] and is_clock(numbers(frame.iloc[:, 0])):
            left_out[learned[0].name] = "the times of the steps"
        learned = tuple(column for column in learned if column.name not in left_out)
        if (
            names_of[0] in left_out
            and window
            and (times := times_of([[cell] for cell in frame.iloc[:, 0].astype(str)]))
        ):
            about["interval"] = interval_of(times[0])
            for fault in time_faults(*times, window):
                warnings.warn(f"{where}: {fault}", stacklevel=2)
    warn_left_out(left_out, learned, where)
    x = code_frame(frame, learned, where, rows=rows)
    missing = np.isnan(x)
    if missing.any() and not allow_nan:
        row, column = np.argwhere(missing)[0]
        raise DataError(f"{where}, {rows(int(row))}, column {learned[column].name!r}: a value is missing")
    known = {column.name for column in learned}
    others = {other: None for other in names if other not in known}
    others |= {other: only_value(whole[other]) for other, reason in left_out.items() if reason == CONSTANT}
    records = Records(name, x, columns=learned, left_out=others, missing=bool(missing.any()), **about)
    return in_windows(records, where, window, stride) if series else records
