"""Tables in .csv files, with a header or without."""

from __future__ import annotations

import csv
import math
import re
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from lapae.data.labels import parse_classes
from lapae.data.source import Records, named
from lapae.errors import DataError, did_you_mean

MISSING = frozenset(("", "nan", "na", "n/a", "null"))
DELIMITERS = (",", ";", "\t")
INDEX_NAMES = frozenset(("", "index", "id", "unnamed: 0", "row"))
"""Names of a first column that numbers the rows, as pandas writes one."""
NO_NUMBER = " is not a number"
CLASSES = " is not a number (label_column, --label-column, is for a column of classes)"


class Table(NamedTuple):
    """The content of a .csv file."""

    x: np.ndarray
    """(N, F) float64."""
    feature_names: tuple[str, ...] | None
    labels: list[str] | None
    rows: list[int]
    """(N,) the line of the file that each datum ends on, from 1."""


def read_csv(path: Path, *, label_column: str | int | None = None, allow_nan: bool = False) -> Records:
    """The numbers of a .csv file (N, F), to be standardised; classes from `label_column`, a name or a number from 0."""
    table = parse_csv(path, label_column=label_column, allow_nan=allow_nan)
    y, label_names = parse_classes(path, table.labels, table.rows) if table.labels is not None else (None, None)
    return Records(path.stem, table.x, y, label_names=label_names, columns=named(table.feature_names))


def parse_csv(path: Path, *, label_column: str | int | None = None, allow_nan: bool = False) -> Table:
    """Read a .csv file. The first row is a header if none of its cells is a number, the label's left aside.

    An index is not learned: a first column that numbers the rows (`INDEX_NAMES`, whole numbers, no two alike) or, under
    a header, that names them (words or dates, no two alike).
    """
    values, labels, rows = array("d"), [], []
    words: list[str] | None = None
    header: list[str] | None = None
    label: int | None = None
    width = 0
    for row, cells in rows_of(path, delimiter_of(path)):
        if not width:
            width = len(cells)
            label = _label_index(path, cells, label_column)
            if label_column in cells or is_header(cells, label):
                header = cells
                continue
        if len(cells) != width:
            raise DataError(f"{path}, row {row}: {len(cells)} cells, expected {width}")
        if label is not None:
            labels.append(cells.pop(label))
        if not rows and header and len(cells) > 1 and _is_word(cells[0]):
            words = []
        if words is not None and _is_word(cells[0]):
            words.append(cells[0])
            cells[0] = "0"  # left out below, or refused
        values.extend(numbers_of(path, row, cells, header, label, allow_nan, CLASSES))
        rows.append(row)
    if header and label is not None and header[label] == label_column and label_column in labels:
        # the name of a class was given, and a row of data was taken for the header
        raise DataError(f"{path}: {label_column!r} is a label and no column; label_column must be a name or a number")
    n_features = width - (label is not None)
    if not rows or not n_features:
        raise DataError(f"{path}: " + ("is empty" if not width else "holds no rows of numbers"))
    names = [name for i, name in enumerate(header) if i != label] if header else None
    x = np.frombuffer(values, dtype=np.float64).reshape(len(rows), n_features)
    if words and names and not 1 < len(words) == len(set(words)) == len(rows):
        raise DataError(f"{path}, row {rows[0]}, column {names[0]!r}: {words[0][:40]!r}{CLASSES}")
    numbered = bool(names) and n_features > 1 and names[0].lower() in INDEX_NAMES and _numbers_rows(x[:, 0])
    if names and (words or numbered):
        does = "names" if words else "numbers"
        warnings.warn(f"{path}: its first column {names[0]!r} {does} the rows, and is not learned", stacklevel=3)
        x, names = x[:, 1:], names[1:]
    return Table(x, tuple(names) if names else None, labels if label is not None else None, rows)


@contextmanager
def _reading(path: Path) -> Iterator[TextIO]:
    """A .csv file; what goes wrong in reading it is a DataError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as .csv ({error})") from error


def delimiter_of(path: Path) -> str:
    """What stands between the cells of a file's first line."""
    with _reading(path) as file:
        line = file.readline(2**16)
    return max(DELIMITERS, key=re.sub(r'"[^"]*"', "", line).count)


def rows_of(
    path: Path, delimiter: str, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Lines that rows end on, from 1, and their cells; blank lines are left out. `progress` counts characters."""
    with _reading(path) as file:
        lines = file if progress is None else _counted(file, progress)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        for cells in reader:
            if cells:
                yield reader.line_num, [cell.strip() for cell in cells]


def _counted(lines: Iterable[str], progress: Callable[[int], None]) -> Iterator[str]:
    for line in lines:
        progress(len(line))
        yield line


def _numbers_rows(column: np.ndarray) -> bool:
    """Whether (N,) are whole numbers, no two alike; one alone says nothing."""
    return 1 < len(column) == len(np.unique(column)) and bool((np.floor(column) == column).all())


def _label_index(path: Path, first: list[str], label_column: str | int | None) -> int | None:
    """The label's place in a row: by name in the header, or by number, negative from the end."""
    if label_column is None:
        return None
    if isinstance(label_column, str) and label_column in first:
        if first.count(label_column) > 1:
            raise DataError(f"{path}: {first.count(label_column)} columns are named {label_column!r}; give its number")
        return first.index(label_column)
    try:
        number = int(label_column)
    except ValueError:
        named = [cell for cell in first if cell and not _is_number(cell)]
        hint = did_you_mean(str(label_column), named)
        has = f"it has {', '.join(named[:20])}" if is_header(first, None) else "it has no header"
        raise DataError(f"{path}: no column {label_column!r}{hint}; {has}") from None
    if not -len(first) <= number < len(first):
        raise DataError(f"{path}: no column {number}, it has {len(first)} columns, counted from 0")
    return number % len(first)


def is_header(cells: list[str], label: int | None) -> bool:
    """Whether a first row names columns: none of its cells, but the label's, is a number."""
    features = [cell for i, cell in enumerate(cells) if i != label]
    named = [cell for cell in features if _is_word(cell)]
    return bool(named) and not any(_is_number(cell) and math.isfinite(float(cell)) for cell in features)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python reads 1_000, other programs do not


def _is_word(cell: str) -> bool:
    return cell.lower() not in MISSING and not _is_number(cell)


def numbers_of(
    path: Path,
    row: int,
    cells: list[str],
    header: list[str] | None,
    label: int | None,
    allow_nan: bool,
    no_number: str = NO_NUMBER,
) -> list[float]:
    """The cells as numbers; the first that is none (`no_number` says so), or that is not allowed, is named."""
    try:
        numbers = list(map(float, cells))
        if all(map(math.isfinite, numbers)) and "_" not in "".join(cells):
            return numbers
    except ValueError:
        pass
    numbers = []
    for i, cell in enumerate(cells):
        column = i + (label is not None and i >= label)
        where = f"{path}, row {row}, column {repr(header[column]) if header else column}"
        missing = cell.lower() in MISSING
        if _is_word(cell):
            raise DataError(f"{where}: {cell[:40]!r}{no_number}")
        number = math.nan if missing else float(cell)
        if math.isinf(number) or (math.isnan(number) and not allow_nan):
            what = " is missing; allow_nan, --allow-nan, takes it" if missing else " is not finite"
            raise DataError(f"{where}: {cell!r}{what}")
        numbers.append(number)
    return numbers
