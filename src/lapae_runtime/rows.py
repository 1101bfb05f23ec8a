"""Conversion of rows as a client sends them to the numbers that an exported graph takes, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

import numpy as np

MISSING = frozenset(
    (
        *("", "nan", "na", "n/a", "null", "none", "<na>", "?", "-", "--", "."),
        *("#n/a", "#na", "#n/a n/a", "#value!", "#div/0!", "#ref!", "#name?", "#num!", "#null!"),  # of spreadsheets
    )
)
"""Words that stand for a missing value, in any case, as in `lapae.space.frames`."""
TRUTH = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "1": 1.0, "0": 0.0}
EPOCH = datetime(1970, 1, 1)
DAY = "%Y-%m-%d"
OFFSET = re.compile(r"%[HMS](Z|[+-]\d\d(?::?\d\d)?)$")
"""The offset from universal time at the end of the form of a date."""
PRESENCE = "1 or empty"
"""Format of a boolean that is 1 or empty: empty is false."""
UNSEEN = -1.0
"""Number of a level that training has not seen, for a graph that does not treat it as missing."""
NEVER = "never seen"
"""Text that is shown for such a level."""
SHOWN = 5


class InputError(ValueError):
    """Data that the model cannot take; the message says which cell, and what was expected."""


@dataclass(frozen=True)
class Field:
    """A column of the table that a model was trained on.

    Attributes:
        name: its name.
        kind: "number", "count", "boolean", "category" or "date".
        words: levels of a category in the order of their codes; words for false and true of a boolean that is text.
        format: format of a date for `strptime`; "", or one that ends in an offset such as +01:00, for ISO 8601.
        unseen: number of a level of a category or boolean that training has not seen.
    """

    name: str
    kind: str = "number"
    words: tuple[str, ...] = ()
    format: str = ""
    unseen: float = math.nan

    def read(self, value: Any) -> float:
        """Return the number of a cell, NaN if it is missing."""
        if is_missing(value, self.words):
            return 0.0 if self.format == PRESENCE else math.nan
        if self.kind == "date":
            return self._days(value)
        if self.kind in ("boolean", "category"):
            return self._level(value)
        if isinstance(value, timedelta | np.timedelta64):
            value = value / (timedelta(seconds=1) if isinstance(value, timedelta) else np.timedelta64(1, "s"))
        try:
            found = float(value)
        except (TypeError, ValueError):
            raise InputError(f"{str(value)[:40]!r} is not a number (without currency, unit or separators)") from None
        except OverflowError:
            raise InputError("a number of more than 308 digits is not finite") from None
        if not math.isfinite(found):
            raise InputError(f"{value!r} is not finite")
        return found

    def write(self, number: float) -> Any:
        """Return a number of the graph as a value for JSON: a word, a truth value, a date in ISO 8601, a number."""
        if math.isnan(number):
            return None
        if self.kind in ("category", "boolean") and number == UNSEEN:
            return NEVER
        if self.kind == "category":
            return self.words[round(number)]
        if self.kind == "boolean":
            return self.words[round(number)] if self.words else number >= 0.5
        if self.kind == "date":
            # years 1 to 9999, the range of Python's dates, less a day for time zones
            zone = _zone(self.format)
            spare = zone is not None
            moment = EPOCH + timedelta(days=min(max(float(number), spare - 719_162.0), 2_932_896.0 - spare))
            if self.format == DAY:
                return moment.date().isoformat()
            moment = moment if zone is None else moment.replace(tzinfo=UTC).astimezone(zone)
            return moment.isoformat(timespec="seconds")
        return int(number) if self.kind == "count" else float(number)

    def _level(self, value: Any) -> float:
        if self.kind == "boolean" and isinstance(value, bool | np.bool_):
            return float(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        word = str(value).strip()
        if word in self.words:
            return float(self.words.index(word))
        if self.kind == "category":
            return self.unseen
        folded = {each.lower(): float(i) for i, each in enumerate(self.words)}
        return (TRUTH | folded).get(word.lower(), self.unseen)

    def _days(self, value: Any) -> float:
        if isinstance(value, np.datetime64):
            return float((value - np.datetime64("1970-01-01")) / np.timedelta64(1, "D"))
        moment = value if isinstance(value, datetime) else None
        if moment is None and isinstance(value, date):
            moment = datetime(value.year, value.month, value.day)
        if moment is None:
            moment = _moment(f"{int(value):08d}" if isinstance(value, int | float) else str(value).strip(), self.format)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        return (moment - EPOCH) / timedelta(days=1)


def _zone(form: str) -> tzinfo | None:
    """Return the time zone of a form that ends in an offset from universal time, None for others."""
    offset = OFFSET.search(form)
    return None if offset is None else datetime.fromisoformat(f"2000-01-01T00:00{offset[1]}").tzinfo


def _moment(text: str, form: str) -> datetime:
    iso = _zone(form) is not None  # `strptime` would read the time and pass over its offset
    for read in (lambda: datetime.strptime(text, form), lambda: datetime.fromisoformat(text))[iso:]:
        try:
            return read()
        except ValueError:
            continue
    raise InputError(f"{text[:40]!r} is not a date as 2024-01-31{f' or {form}' if form not in ('', DAY) else ''}")


def is_missing(value: Any, known: Sequence[str] = ()) -> bool:
    """Whether a cell is missing; a word in `known` is not."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    word = str(value).strip() if isinstance(value, str) else "x"
    return word.lower() in MISSING and word not in known


def read_rows(rows: Any, fields: Sequence[Field]) -> np.ndarray:
    """Return rows of a table as numbers (n, F), NaN where missing.

    Args:
        rows: an array (n, F) of numbers; or a sequence of mappings from names to cells, as `json.loads` gives; or a
            mapping from names to columns (n,), such as a frame. Other columns are ignored.
        fields: columns of the table.
    """
    if isinstance(rows, np.ndarray):
        if rows.ndim != 2 or rows.shape[1] != len(fields) or rows.dtype.kind not in "biuf":
            raise InputError(f"an array {rows.shape} of {rows.dtype}: expected numbers (n, {len(fields)})")
        return _finite(rows)
    if isinstance(rows, Mapping) or hasattr(rows, "columns"):
        has = {str(name): name for name in rows}
        _named(has, fields, "rows")
        columns = [list(rows[has[field.name]]) for field in fields]
        if len({len(column) for column in columns}) > 1:
            raise InputError(
                f"columns of {sorted({len(column) for column in columns})} cells: expected as many in each"
            )
    else:
        records = list(rows)
        for i, record in enumerate(records):
            if not isinstance(record, Mapping):
                raise InputError(f"row {i} is a {type(record).__name__}: expected a mapping from column names to cells")
            _named(record, fields, f"row {i}")
        columns = [[record[field.name] for record in records] for field in fields]
    return np.array([_column(c, field) for c, field in zip(columns, fields, strict=True)]).reshape(len(fields), -1).T


def _column(cells: Sequence[Any], field: Field) -> list[float]:
    found = []
    for i, cell in enumerate(cells):
        try:
            found.append(field.read(cell))
        except InputError as error:
            raise InputError(f"row {i}, column {field.name!r}: {error}") from None
    return found


def _named(has: Mapping[str, Any], fields: Sequence[Field], where: str) -> None:
    absent = [field.name for field in fields if field.name not in has]
    if absent:
        more = " …" if len(absent) > SHOWN else ""
        raise InputError(
            f"{where}: has no column {', '.join(map(repr, absent[:SHOWN]))}{more} (null is a missing value)"
        )


def _finite(x: np.ndarray) -> np.ndarray:
    if np.isinf(x).any():
        raise InputError(f"row {int(np.argwhere(np.isinf(x))[0][0])}: an infinite value")
    return x.astype(np.float64)
