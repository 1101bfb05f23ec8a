"""A look at data before training: how a file is understood."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.catalog import load
from lapae.data.data import Data
from lapae.data.files import tables_of
from lapae.data.opening import reader_of
from lapae.data.progress import progress
from lapae.data.source import Lazy
from lapae.data.stream import SAMPLE_ROWS, ParquetTable
from lapae.data.table import TableReader
from lapae.space import Column, chunks
from lapae.space.column_kinds import decide_columns, near_miss, place_of
from lapae.space.columns import unique_names
from lapae.space.frames import Frame, code_frame, text
from lapae.space.written import write_written

MOST_WORDS = 4
MOST_SHOWN = 24
"""Characters of an example."""


@dataclass(frozen=True)
class Look:
    """How data are understood."""

    summary: str
    """One line: the number and kind of samples."""
    splits: dict[str, int]
    """Number of samples to train on, to validate, to calibrate and to test."""
    columns: tuple[dict[str, Any], ...] = ()
    """Columns of a table: name, kind (None for one that is left out), share of missing values, content (or why it is
    left out), an example cell, the form that cells were read by, and cells that keep text from being numbers or dates.
    """
    notes: tuple[str, ...] = ()
    """Warnings."""


def look(source: str | Path, **options: Any) -> Look:
    """Return how `load` with the same options understands a source."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        data = load(source, **options)
    splits = {name: len(getattr(data, name)) for name in ("train", "valid", "calib", "test")}
    summary = data.space.describe(sum(splits.values()))
    path = Path(source).expanduser()
    files = tables_of(source) if data.kind in ("table", "series") and data.space.columns else None
    if files is None and isinstance(data.train.x, Lazy) and path.is_dir():
        read_all(data, path.name)
    if files is None and (data.kind not in ("table", "series") or reader_of(path) is not TableReader):
        return Look(summary, splits, notes=tuple(str(warning.message) for warning in told))
    chosen: dict[str, Any] = {name: options.get(name) for name in ("label_column", "group_column")}
    if files is not None and not path.is_file():
        frame = ParquetTable(files, str(source)).some(SAMPLE_ROWS, options.get("seed", 0))[0]
    else:
        frame = TableReader(path, **chosen).frame()
    columns = tuple(columns_of(frame, **chosen, learned=data.space.names or ()))
    notes = tuple(str(warning.message) for warning in told if "left out" not in str(warning.message))
    return Look(summary, splits, columns, notes)


def read_all(data: Data, name: str) -> None:
    """Decode all images of a folder: a damaged one is an error here, as in training."""
    splits = [data.train, data.valid, data.calib, data.test]
    with progress(f"reading {name}", sum(map(len, splits))) as advance:
        for split in splits:
            for _, part in chunks(split.x):
                advance(len(part))


def columns_of(
    frame: Frame,
    *,
    label_column: str | int | None = None,
    group_column: str | int | None = None,
    learned: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """Return one entry per column of a frame; `learned` are those that are learned."""
    names = unique_names(frame.columns)
    frame = frame.set_axis(names, axis=1)
    label, group = (
        None if which is None else names[place_of(names, which, "X")] for which in (label_column, group_column)
    )
    columns, reasons = decide_columns(frame.drop(columns=[name for name in {label, group} if name is not None]))
    known = {column.name: column for column in columns}
    rows = []
    for name in names:
        cells = frame[name]
        words = text(cells)
        missing = float(words.isna().mean())
        example = " ".join(next(iter(words[words.notna()]), "").split("\n"))  # 2, also if read as 2.0
        kind, content = None, reasons.get(name, "not chosen")
        if name == label:
            kind, content = "label", f"{frame[name].nunique()} classes"
        elif name == group:
            kind, content = "group", f"{words.nunique() + int(words.isna().sum())} groups of rows, each in one split"
        elif name in known and (not learned or name in learned):
            kind, content = known[name].kind, _content(frame, known[name])
        form, almost = known[name].format if name in known else "", ""
        if (name in known and known[name].lenient) or name in reasons or kind == "category":
            almost = near_miss(cells)
        about = {"example": example[:MOST_SHOWN], "form": form, "almost": almost}
        rows.append({"name": name, "kind": kind, "missing": missing, "content": content, **about})
    return rows


def _content(frame: Frame, column: Column) -> str:
    if column.kind in ("category", "boolean") and column.categories:
        words = column.categories
        return ", ".join(words[:MOST_WORDS]).replace("\n", " ") + (
            f", … ({len(words)})" if len(words) > MOST_WORDS else ""
        )
    if column.kind == "boolean":
        return "empty, 1" if column.format else "0, 1" if column.dtype[:4] != "bool" else "false, true"
    values = code_frame(frame, [column], unknown={})[:, 0]
    if column.written:
        return " to ".join(write_written([np.nanmin(values), np.nanmax(values)], column.format))
    if column.kind == "date":
        ends = np.array([np.nanmin(values), np.nanmax(values)]).round().astype("datetime64[D]")
        return f"{ends[0]} to {ends[1]}"
    return f"{np.nanmin(values):g} to {np.nanmax(values):g}"
