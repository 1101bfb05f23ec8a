"""What the columns of a frame are, by their type and content.

| type               | content                                                        | is          |
|--------------------|----------------------------------------------------------------|-------------|
| bool               |                                                                | boolean     |
| text               | two words: true/false or yes/no                                | boolean     |
| dates, or text     | that all reads as dates of one form                            | date        |
| whole numbers      | none below 0, more than two different ones                     | count       |
| numbers, or text   | that all reads as numbers                                      | number      |
| category           | at most 50, or 20 rows for each                                | category    |
| text               | the same, and values come again (two rows for each, or ten)    | category    |

Left out: a column without a single value, with one value alone, an identifier (text that does not come again, whole
numbers of which no two are alike in a column named id), free text, and types that are none of the above.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np

from lapae.errors import DataError, did_you_mean
from lapae.space.columns import DAY, Column, unique_names
from lapae.space.frames import WORDS, Frame, Series, days, numbers, parse_dates, text

CONSTANT = "constant"
FEW_NUMBERS = 2
MOST_CATEGORIES = 50
ROWS_EACH = 20
TINY = 10
FORMS = (
    *(DAY, "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d"),
    *("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M"),
    "",  # ISO 8601 with fractions or a time zone
)
_LIKE_A_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ]\d.*)?")
_IDENTIFIER = re.compile(r"(.*[^a-z])?id|.*[a-z]I[Dd]", re.DOTALL)


def decide_columns(frame: Frame) -> tuple[tuple[Column, ...], dict[str, str]]:
    """The columns that can be learned, and those that cannot by name with the reason."""
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
    """One warning that names every column that is not learned; an error where none is left."""
    told = "; ".join(f"{name!r} ({reason})" for name, reason in left_out.items())
    if not columns:
        raise DataError(f"{where}: has no column that can be learned: {told}")
    if left_out:
        warnings.warn(f"{where}: columns that are left out: {told}", stacklevel=3)


def select(frame: Frame, columns: Any, drop: Any, where: str) -> Frame:
    """Only `columns` of a frame (all where None), without those in `drop`; names, or numbers from 0."""
    names = unique_names(frame.columns)
    chosen = range(len(names)) if columns is None else [place_of(names, which, where) for which in columns]
    without = {place_of(names, which, where) for which in drop or ()}
    return frame.iloc[:, [i for i in chosen if i not in without]]


def place_of(names: list[str], which: str | int, where: str) -> int:
    """The place of a column by its name, or by number, negative from the end."""
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
    """What a column is, or why it cannot be learned.

    Args:
        series: its values.
        name: of the column.
        first: whether it is the first, where an index may be.
        alone: whether it is the only one: then it is data, whatever it looks like.
    """
    dtype, kind = str(series.dtype), series.dtype.kind
    if kind == "b":
        different = series.nunique(dropna=True)
        return Column(name, "boolean", dtype=dtype) if different == 2 else _nothing(different)
    if kind in "iufm":
        return _number(numbers(series), name, dtype, kind in "iu", first, alone)
    if kind == "M":
        return _date(days(series), name, dtype, "", first and not alone)
    if dtype != "category" and kind not in "OUST":
        return f"values of type {dtype}"
    words = text(series)
    known = words[words.notna()]
    values = known.unique()
    if not len(values):
        return "without a single value"
    if dtype != "category":
        if not alone and first and len(values) == len(known) > 1 and not _reads_as_numbers(values):
            return "an index: it names the rows"
        if (other := _written(words, known, values, name, dtype, alone)) is not None:
            return other
    return _category(series, known, values, name, dtype)


def _written(words: Any, known: Any, values: Any, name: str, dtype: str, alone: bool) -> Column | str | None:
    """Numbers, booleans and dates that are written as text."""
    if _reads_as_numbers(values):
        return _number(numbers(words), name, "float64", True, False, alone)
    lower = {word.lower() for word in values}
    if lower in ({"true", "false"}, {"yes", "no"}):
        pair = tuple(sorted(values, key=lambda word: WORDS[word.lower()]))
        return Column(name, "boolean", pair if len(pair) == 2 else (), dtype)
    if all(_LIKE_A_DATE.fullmatch(word) for word in values[:100]):
        for form in FORMS:
            if not np.isnan(parse_dates(values, form)).any():
                return _date(parse_dates(known, form), name, dtype, form, False)
    return None


def _number(values: np.ndarray, name: str, dtype: str, integers: bool, first: bool, alone: bool) -> Column | str:
    known = values[~np.isnan(values)]
    different = len(np.unique(known))
    if different < 2 and (different == 0 or len(values) > 1):
        return _nothing(different)
    # whole numbers with holes come as floats
    whole = (integers or len(known) < len(values)) and bool((known == np.floor(known)).all())
    if whole and not alone and len(values) == different > 1:
        if first and is_index(name):
            return "an index: it numbers the rows"
        if _IDENTIFIER.fullmatch(name) or _IDENTIFIER.fullmatch(name.lower()):
            return "an identifier: no two are alike"
    count = whole and different > FEW_NUMBERS and bool((known >= 0).all()) and bool(np.isfinite(known).all())
    return Column(name, "count" if count else "number", dtype=dtype)


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
    """Whether a first column of this name numbers the rows, as pandas writes one."""
    return name.lower() in ("", "index", "id", "row") or name.lower().startswith("unnamed: ")


def _reads_as_numbers(values: Any) -> bool:
    import pandas as pd

    return not np.isnan(numbers(pd.Series(values, dtype=object))).any()


def _nothing(different: int) -> str:
    return CONSTANT if different else "without a single value"
