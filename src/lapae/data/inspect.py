"""A look at data before anything is learned: what was understood of a file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.catalog import load
from lapae.data.data import Data
from lapae.data.opening import reader_of
from lapae.data.progress import progress
from lapae.data.source import Lazy
from lapae.data.table import TableReader
from lapae.space import Column, chunks
from lapae.space.column_kinds import decide_columns, place_of
from lapae.space.columns import unique_names
from lapae.space.frames import Frame, code_frame

MOST_WORDS = 4


@dataclass(frozen=True)
class Look:
    """What was understood of data."""

    summary: str
    """One line: how many, and what they are."""
    splits: dict[str, int]
    """Number of data to train on, to steer training, to calibrate and to test."""
    columns: tuple[dict[str, Any], ...] = ()
    """Of a table: name, kind, share of missing values, content; None is left out, and the content says why."""
    notes: tuple[str, ...] = ()
    """Warnings."""


def look(source: str | Path, **options: Any) -> Look:
    """What `load` with the same options understands of a source."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        data = load(source, **options)
    splits = {name: len(getattr(data, name)) for name in ("train", "valid", "calib", "test")}
    summary = data.space.describe(sum(splits.values()))
    path = Path(source).expanduser()
    if isinstance(data.train.x, Lazy) and path.is_dir():
        read_all(data, path.name)
    if data.kind not in ("table", "series") or reader_of(path) is not TableReader:
        return Look(summary, splits, notes=tuple(str(warning.message) for warning in told))
    frame = TableReader(path, label_column=options.get("label_column")).frame()
    columns = tuple(columns_of(frame, label=options.get("label_column"), chosen=data.space.names or ()))
    notes = tuple(str(warning.message) for warning in told if "left out" not in str(warning.message))
    return Look(summary, splits, columns, notes)


def read_all(data: Data, name: str) -> None:
    """Decode all images of a folder: a damaged one is an error in training, and no less here."""
    splits = [data.train, data.valid, data.calib, data.test]
    with progress(f"reading {name}", sum(map(len, splits))) as advance:
        for split in splits:
            for _, part in chunks(split.x):
                advance(len(part))


def columns_of(frame: Frame, *, label: str | int | None = None, chosen: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """A row per column of a frame; `chosen` are those that are learned."""
    names = unique_names(frame.columns)
    frame = frame.set_axis(names, axis=1)
    label_name = None if label is None else names[place_of(names, label, "X")]
    columns, reasons = decide_columns(frame.drop(columns=[label_name] if label_name else []))
    known = {column.name: column for column in columns}
    rows = []
    for name in names:
        missing = float(frame[name].isna().mean())
        kind, content = None, reasons.get(name, "not chosen")
        if name == label_name:
            kind, content = "label", f"{frame[name].nunique()} classes"
        elif name in known and (not chosen or name in chosen):
            kind, content = known[name].kind, _content(frame, known[name])
        rows.append({"name": name, "kind": kind, "missing": missing, "content": content})
    return rows


def _content(frame: Frame, column: Column) -> str:
    if column.kind in ("category", "boolean") and column.categories:
        words = column.categories
        return ", ".join(words[:MOST_WORDS]) + (f", … ({len(words)})" if len(words) > MOST_WORDS else "")
    if column.kind == "boolean":
        return "false, true"
    values = code_frame(frame, [column])[:, 0]
    if column.kind == "date":
        ends = np.array([np.nanmin(values), np.nanmax(values)]).round().astype("datetime64[D]")
        return f"{ends[0]} to {ends[1]}"
    return f"{np.nanmin(values):g} to {np.nanmax(values):g}"
