"""The kinds of the columns of a frame, by their type and content.

| type               | content                                                        | is          |
|--------------------|----------------------------------------------------------------|-------------|
| bool               |                                                                | boolean     |
| text               | two words: true/false or yes/no                                | boolean     |
| numbers            | 0 and 1; or 1 and missing values, which are 0 then             | boolean     |
| dates, or text     | that reads as dates of one form                                | date        |
| whole numbers      | that read as dates without marks: 20181014, 10142018           | date        |
| whole numbers      | none below 0, more than two different ones                     | count       |
| numbers, or text   | that reads as numbers or times (`lapae.space.written`)         | number      |
| category           | at most 50, or 20 rows for each                                | category    |
| text               | the same, and values come again (two rows for each, or ten)    | category    |

Whole numbers are recognised by their values, so 1.0 and 2.0 are whole. In text of more than 10 different numbers or
dates up to 5 % of the cells may be something else: they count as missing, with a warning.

Left out are columns without any value, columns with a single value, identifiers (text that never repeats, or whole
numbers that are all different in a column named id, or so many in so narrow a range that values drawn by chance would
repeat), free text, and all other types.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lapae.errors import DataError, did_you_mean
from lapae.space.columns import DAY, PRESENCE, Column, unique_names
from lapae.space.frames import WORDS, Frame, Series, days, few, form_at_offset, numbers, parse_dates, text
from lapae.space.written import find_picture, find_time, is_time, parse_written

CONSTANT = "constant"
FEW_NUMBERS = 2
MOST_CATEGORIES = 50
ROWS_EACH = 20
TINY = 10
KEYS, REPEATS = 100, 20
"""Whole numbers are keys, such as those of invoices, if there are at least `KEYS`, all different, although `REPEATS`
pairs of values drawn from their range by chance would be alike. New rows have new keys, which would all be unusual."""
STRAY = 0.05
"""Maximum share of the cells of a column of numbers or dates that may be text."""
SEVERAL = 10
"""A column may have such cells, or a unit, if it has more different numbers or dates than this: fewer may be levels."""
MOST_PARSED = 2000
"""Number of different values used to find the form of a column."""
FORMS = (
    *(DAY, "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d", "%Y/%m/%d %H:%M:%S"),
    *("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y"),
    *("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M"),
    *("%d/%m/%Y %H:%M:%S", "%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%y %H:%M"),
    "",  # ISO 8601 with fractions or a time zone
)
IN_WORDS = (
    *("%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y"),
    *("%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%A, %B %d, %Y", "%b %d, %Y %H:%M", "%b %d, %Y %I:%M %p"),
    *("%d %b %Y %H:%M", "%d %b %Y %H:%M:%S", "%d-%b-%Y %H:%M"),
)
DIGITS = ("%Y%m%d", "%m%d%Y", "%d%m%Y")
YEARS = (-25567, 47482)
"""1900 to 2100 in days since 1970: other numbers of eight digits are no dates."""
PADDED = re.compile(r"0\d*[1-9]\d*(?<=\d{3})")
"""A whole number that begins with 0 is a code, such as 02139, and not a number."""
_LIKE_A_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ]\d.*)?")
_WITH_A_MONTH = re.compile(r".*\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b.*\d.*", re.IGNORECASE)
_IDENTIFIER = re.compile(r"(.*[^a-z])?id|.*[a-z]I[Dd]", re.DOTALL)


def decide_columns(frame: Frame) -> tuple[tuple[Column, ...], dict[str, str]]:
    """Return the columns that can be learned, and the names of those that cannot with the reasons."""
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    names = unique_names(frame.columns)
    for i, (name, (_, series)) in enumerate(zip(names, frame.items(), strict=True)):
        found = decide(series, name, first=i == 0, alone=len(names) == 1)
        if isinstance(found, Column):
            columns.append(found)
        else:
            left_out[name] = found
    return tuple(columns), left_out


def warn_left_out(left_out: dict[str, str], columns: tuple[Column, ...], where: str) -> None:
    """Warn once about all columns that are not learned; raise DataError if none is left."""
    told = "; ".join(f"{name!r} ({reason})" for name, reason in left_out.items())
    if not columns:
        raise DataError(f"{where}: has no column that can be learned: {told}")
    if left_out:
        warnings.warn(f"{where}: columns that are left out: {told}", stacklevel=3)


def select(frame: Frame, columns: Any, drop: Any, where: str) -> Frame:
    """Return `columns` of a frame (None for all) without those in `drop`; names, or numbers from 0."""
    names = unique_names(frame.columns)
    chosen = range(len(names)) if columns is None else [place_of(names, which, where) for which in columns]
    without = {place_of(names, which, where) for which in drop or ()}
    return frame.iloc[:, [i for i in chosen if i not in without]]


def place_of(names: list[str], which: str | int, where: str) -> int:
    """Return the position of a column by its name or its number (negative: from the end)."""
    if which in names:
        return names.index(str(which))
    try:
        number = int(which)
    except ValueError:
        hint = did_you_mean(str(which), names)
        raise DataError(f"{where}: no column {which!r}{hint}; it has {', '.join(names[:20])}") from None
    if not -len(names) <= number < len(names):
        raise DataError(f"{where}: no column {number}, it has {len(names)} columns, counted from 0")
    return number % len(names)


def decide(series: Series, name: str, *, first: bool = False, alone: bool = False) -> Column | str:
    """Return a description of a column, or why it cannot be learned.

    Args:
        series: values.
        name: name of the column.
        first: whether it is the first, which may be an index.
        alone: whether it is the only column, which is data, whatever it looks like.
    """
    if series.dtype.kind == "O" and _truths(series):  # beside missing ones
        series = series.astype("boolean")
    dtype, kind = str(series.dtype), series.dtype.kind
    if kind == "b":
        different = series.nunique(dropna=True)
        return Column(name, "boolean", dtype=dtype) if different == 2 else _nothing(different)
    if kind in "iufm":
        values = numbers(series)
        if kind != "m" and (form := _form_of_digits(values)) is not None:
            return _date(_days_of_digits(values, form), name, dtype, form, first and not alone)
        return _number(values, name, dtype, first, alone, counts=kind != "m")
    if kind == "M":
        return _date(days(series), name, dtype, "", first and not alone)
    if dtype != "category" and kind not in "OUST":
        return f"values of type {dtype}"
    if kind == "O" and any(isinstance(value, (list, tuple, dict, set, np.ndarray)) for value in series):
        return "lists or records: a cell is one value"
    words = text(series)
    known = words[words.notna()]
    values = known.unique()
    if not len(values):
        return "without a single value"
    if dtype != "category":
        found = _written(words, known, values, name, dtype, alone)
        is_number = isinstance(found, Column) and found.kind in ("number", "count") and not is_time(found.format)
        if not alone and first and len(values) == len(known) > 1 and not is_number and np.isnan(_plain(values)).any():
            return "an index: it names the rows"
        if found is not None:
            return found
    return _category(series, known, values, name, dtype)


def _truths(series: Series) -> bool:
    """Whether the values of a column of objects are truth values."""
    known = series.dropna()
    return bool(len(known)) and all(isinstance(value, bool | np.bool_) for value in known)


def near_miss(series: Series) -> str:
    """Return which cells prevent a text column from being one of numbers, times or dates; "" if most of them do."""
    if series.dtype.kind not in "OUST" or str(series.dtype) == "category":
        return ""
    words = text(series)
    known = words[words.notna()]
    count = known.value_counts()
    values = count.index.to_numpy(object)
    for reading in _readings(values):
        bad = np.isnan(reading.values)
        share = 1 - count.to_numpy()[bad].sum() / max(len(known), 1)
        if bad.any() and share >= 0.5:
            return f"{100 * share:.3g} % read as {reading.what}, not {few(values[bad])}"
    return ""


@dataclass(frozen=True)
class _Reading:
    """A way to read the different words of a column, with NaN for those that cannot be read in this way."""

    what: str
    values: np.ndarray
    form: str = ""
    sure: bool = True


def _readings(values: Any) -> Iterator[_Reading]:
    """Yield ways to read different words (m,), the more likely ones first."""
    plain = _plain(values)
    is_code = sum(PADDED.fullmatch(word) is not None for word in values) > STRAY * len(values)
    if not is_code or _form_of_digits(plain) is not None:
        yield _Reading("numbers", plain)
    some = values[:: max(1, len(values) // 100)]
    forms = FORMS if 2 * sum(_LIKE_A_DATE.fullmatch(word) is not None for word in some) >= len(some) else ()
    forms += IN_WORDS if 2 * sum(_WITH_A_MONTH.match(word) is not None for word in some) >= len(some) else ()
    for form in forms:
        if not np.isnan(parse_dates(some, form)).all():
            yield _Reading("dates", parse_dates(values, form), form or form_at_offset(values))
    if (time := find_time(some)) is not None:
        yield _Reading("times", parse_written(values, find_time(values) or time), find_time(values) or time)
    if (picture := find_picture(values)) is not None and str(replace(picture, places=0)) != "0":
        yield _Reading(f"numbers like {picture}", picture.parse(values), str(picture), picture.sure)
    elif picture is not None and not is_code:  # a decimal comma, a long minus, -5 as (5)
        found = picture.parse(values)
        if (np.isnan(plain) & ~np.isnan(found)).any():
            what = "numbers with a decimal comma" if picture.decimal == "," else "numbers"
            yield _Reading(what, found, str(picture))


def _written(words: Any, known: Any, values: Any, name: str, dtype: str, alone: bool) -> Column | str | None:
    """Return what numbers, booleans, times and dates in text are; None if the text is none of these."""
    lower = {word.lower() for word in values}
    if lower in ({"true", "false"}, {"yes", "no"}):
        pair = tuple(sorted(values, key=lambda word: WORDS[word.lower()]))
        return Column(name, "boolean", pair if len(pair) == 2 else (), dtype)
    readings = list(_readings(values))
    count = known.value_counts().reindex(values).to_numpy()
    for strays in (0.0, STRAY):
        for reading in readings:
            bad = np.isnan(reading.values)
            different = len(np.unique(reading.values[~bad]))
            several = different > SEVERAL
            if count[bad].sum() > strays * len(known) or (bad.any() and not several):
                continue
            if not (reading.sure or several):
                continue
            by_word = dict(zip(values, reading.values, strict=True))
            coded = words.map(by_word).to_numpy(np.float64, na_value=np.nan)
            return _read(reading, coded, name, dtype, alone, lenient=bool(bad.any()))
    return None


def _read(reading: _Reading, coded: np.ndarray, name: str, dtype: str, alone: bool, *, lenient: bool) -> Column | str:
    """Return the column of text that was read as numbers, times or dates `coded` (n,)."""
    if reading.what == "dates":
        column = _date(coded, name, dtype, reading.form, False)
    elif reading.form:
        column = _number(coded, name, dtype, False, alone, counts="[" not in reading.form and not is_time(reading.form))
        if isinstance(column, Column):
            kind = "count" if column.kind == "count" else "number"
            column = replace(column, kind=kind, dtype=dtype, format=reading.form)
    elif (form := _form_of_digits(coded)) is not None:
        column = _date(_days_of_digits(coded, form), name, "float64", form, False)
    else:
        column = _number(coded, name, "float64", False, alone)
    return replace(column, lenient=lenient) if isinstance(column, Column) else column


def _number(
    values: np.ndarray, name: str, dtype: str, first: bool, alone: bool, *, counts: bool = True
) -> Column | str:
    """Return what numbers are: booleans, counts, others, or an index or identifier."""
    known = values[~np.isnan(values)]
    different = np.unique(known)
    if len(different) == 1 and len(known) < len(values) and different[0] == 1 and counts:
        return Column(name, "boolean", dtype=dtype, format=PRESENCE)
    if len(different) < 2 and (not len(different) or len(values) > 1):
        return _nothing(len(different))
    # 1.0 and 2.0 are whole: pandas reads whole numbers beside missing ones as floats
    whole = counts and bool((known == np.floor(known)).all())
    if whole and not alone and len(values) == len(different) > 1:
        if first and is_index(name):
            return "an index: it numbers the rows"
        if _IDENTIFIER.fullmatch(name) or _IDENTIFIER.fullmatch(name.lower()):
            return "an identifier: no two are alike"
    n = len(different)
    if whole and not alone and n == len(known) >= KEYS and n * n >= 2 * REPEATS * (different[-1] - different[0] + 1):
        return "an identifier: it numbers the rows"
    if counts and np.array_equal(different, [0.0, 1.0]):
        return Column(name, "boolean", dtype=dtype)
    count = whole and len(different) > FEW_NUMBERS and bool((known >= 0).all()) and bool(np.isfinite(known).all())
    return Column(name, "count" if count else "number", dtype=dtype)


def _form_of_digits(values: np.ndarray) -> str | None:
    """Return the form of dates that are written as whole numbers of eight digits (a leading zero is lost); or None."""
    known = np.unique(values[~np.isnan(values)])
    if len(known) < SEVERAL // 2 or known[0] < 1_011_900 or known[-1] >= 1e8 or (known != np.floor(known)).any():
        return None
    some = known[:: max(1, len(known) // MOST_PARSED)]
    for form in DIGITS:
        found = _days_of_digits(some, form)
        if not np.isnan(found).any() and YEARS[0] <= found.min() <= found.max() <= YEARS[1]:
            return form if not np.isnan(_days_of_digits(known, form)).any() else None
    return None


def _days_of_digits(values: np.ndarray, form: str) -> np.ndarray:
    return parse_dates([None if np.isnan(value) else f"{int(value):08d}" for value in values.tolist()], form)


def _date(values: np.ndarray, name: str, dtype: str, form: str, first: bool) -> Column | str:
    known = values[~np.isnan(values)]
    different = len(np.unique(known))
    if different < 2:
        return _nothing(different)
    if first and different == len(values):
        return "an index: it names the rows"
    if not form and dtype.startswith("datetime") and bool((known == np.floor(known)).all()):
        form = DAY
    return Column(name, "date", dtype=dtype, format=form)


def _category(series: Any, known: Any, values: Any, name: str, dtype: str) -> Column | str:
    n, different = len(known), len(values)
    if dtype == "category":
        values = [str(word).strip() for word in series.cat.categories]
        different = len(values)
        dtype = f"category[{series.cat.categories.dtype}]"
    if different < 2:
        return _nothing(different)
    declared = dtype.startswith("category")
    often = different <= MOST_CATEGORIES and (declared or different <= max(n // 2, min(TINY, n - 1)))
    if not often and different * ROWS_EACH > n:
        return "an identifier: no two are alike" if different == n else f"free text: {different:,} different values"
    return Column(name, "category", tuple(values if declared else sorted(values)), dtype)


def is_index(name: str) -> bool:
    """Return whether a first column of this name numbers the rows, as pandas writes it."""
    return name.lower() in ("", "index", "id", "row") or name.lower().startswith("unnamed: ")


def _plain(values: Any) -> np.ndarray:
    """Return the numbers (m,) in words, NaN for words that are not numbers."""
    import pandas as pd

    return numbers(pd.Series(values, dtype=object))


def _nothing(different: int) -> str:
    return CONSTANT if different else "without a single value"
