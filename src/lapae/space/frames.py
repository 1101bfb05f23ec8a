"""Frames: from a user's columns to codes (n, F) and back, in the original types.

pandas is imported where a frame is met. Frames of other libraries (polars, Arrow, whatever has `__arrow_c_stream__`) go
by way of it, read and written by narwhals.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, time
from typing import Any, TypeAlias

import numpy as np

from lapae.errors import DataError
from lapae.space.columns import DAY, PRESENCE, UNSEEN, Column, unique_names
from lapae.space.written import parse_written, write_written

Frame: TypeAlias = Any
Series: TypeAlias = Any
"""Frames and series of pandas, whose own annotations do not say what they contain."""
MISSING = frozenset(
    (
        *("", "nan", "na", "n/a", "null", "none", "<na>", "?", "-", "--", "."),
        *("#n/a", "#na", "#n/a n/a", "#value!", "#div/0!", "#ref!", "#name?", "#num!", "#null!"),  # of spreadsheets
    )
)
"""Words for a missing value, in upper or lower case, except in a column that has one of them as a level."""
WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "1": 1.0, "0": 0.0}
SHOWN = 5
MIDNIGHT = time(0)
_BEYOND = r"\s*[+-]?[\d.]+[eE]\+?\d{3,}\s*"
"""Numbers that may be too large for 64 bits."""
_OFFSET = r"(?P<offset>Z|[+-]\d\d(:?\d\d)?)$"
_TIME_AT_OFFSET = re.compile(r"\d(?P<gap>[T ])\d\d(:?\d\d){0,2}([.,]\d+)?\s?" + _OFFSET)
_AT_OFFSET = re.compile("%[HMS]" + _OFFSET)
"""A time with its offset from universal time, and the form of such times."""
GROUP_CELLS = 2**18
"""Maximum number of cells of numeric columns that are converted together."""


def as_frame(X: Any) -> Frame | None:
    """Return a frame of any library, or a table of objects, as a pandas frame; None for everything else."""
    if isinstance(X, np.ndarray):
        if not (X.dtype == object and X.ndim == 2):
            return None
        import pandas as pd

        return pd.DataFrame(X).infer_objects()
    library = type(X).__module__.partition(".")[0]
    if library == "pandas":
        frame = X.to_frame() if hasattr(X, "to_frame") else X
        return _without_arrow(frame) if hasattr(frame, "columns") else None
    return _by_narwhals(X) if library == "polars" or hasattr(X, "__arrow_c_stream__") else None


def is_frame(X: Any) -> bool:
    """Return whether X is a frame of pandas, polars, Arrow or anything else with `__arrow_c_stream__`."""
    library = type(X).__module__.partition(".")[0]
    return (library == "pandas" and hasattr(X, "columns")) or library == "polars" or hasattr(X, "__arrow_c_stream__")


def _by_narwhals(X: Any) -> Frame:
    import narwhals as nw
    import pandas as pd

    found: Any = _narwhals(X)
    made = {}
    for name in found.columns:
        column = found[name]
        kind, cells = column.dtype, column.to_list()
        if kind == nw.Boolean:
            made[name] = pd.Series(cells, dtype="boolean" if None in cells else bool)
        elif kind in (nw.Date, nw.Datetime):
            made[name] = pd.to_datetime(pd.Series(cells, dtype=object))
        elif kind == nw.Decimal:
            made[name] = pd.Series(cells, dtype=object).astype(float)
        else:
            made[name] = pd.Series(cells, dtype=object if kind == nw.String else None)
    return pd.DataFrame(made)


def _narwhals(X: Any) -> Any:
    """Return a frame that is not of pandas as an eager one of narwhals."""
    import narwhals as nw

    found = nw.from_native(X, pass_through=True, allow_series=True)
    if found is X:  # narwhals does not know its library
        found = nw.from_arrow(X, backend="pyarrow")
    if isinstance(found, nw.LazyFrame):
        return found.collect()
    return found.to_frame() if isinstance(found, nw.Series) else found


def without_rows(X: Any, names: Sequence[str]) -> Any:
    """Return a frame of the library of a frame X, with its columns of these names, their labels and types, and no rows:
    what `uncode_frame` makes new rows like."""
    if type(X).__module__.partition(".")[0] == "pandas":
        given = X if hasattr(X, "columns") else X.to_frame()
        every = unique_names(given.columns)
        return given.iloc[:0, [every.index(name) for name in names]].copy()
    import narwhals as nw

    given = _narwhals(X)
    schema = {name: given.schema[name] for name in names}
    return nw.from_dict({name: [] for name in names}, schema, backend=given.implementation).to_native()


def _without_arrow(frame: Frame) -> Frame:
    """Return a frame of pandas with its columns of Arrow types in those of pandas."""
    arrow = [i for i, dtype in enumerate(frame.dtypes) if type(dtype).__name__ == "ArrowDtype"]
    if not arrow:
        return frame
    import pandas as pd

    columns = [frame.iloc[:, i] for i in range(frame.shape[1])]
    for i in arrow:
        series = columns[i]
        names = {"b": "boolean", "i": "Int64", "u": "UInt64", "f": "Float64"}
        kind, values = series.dtype.kind, series.astype(object).where(series.notna(), None)
        if kind in names:
            columns[i] = series.astype(names[kind] if series.isna().any() else names[kind].lower().replace("ean", ""))
        elif kind == "M" or str(series.dtype).startswith("date"):
            columns[i] = pd.to_datetime(values)
        else:
            columns[i] = pd.to_timedelta(values) if kind == "m" else values
    return pd.concat(columns, axis=1)


def text(series: Series, known: Sequence[str] = ()) -> Series:
    """Return values as text without surrounding blanks, None for missing ones; 7.0 is "7".

    Args:
        series: (n,) values of any type.
        known: words that never mean a missing value.
    """
    kept = {word for word in known if word.lower() in MISSING}

    def one(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        word = str(value).strip()
        return None if word.lower() in MISSING and word not in kept else word

    import pandas as pd

    values = series.astype(object)
    present = values.notna()
    words = {value: one(value) for value in values[present].unique()}
    return pd.Series([words[v] if k else None for v, k in zip(values, present, strict=True)], dtype=object)


def numbers(series: Series) -> np.ndarray:
    """Return values as float64 (n,), NaN for those that are missing or not numbers."""
    import pandas as pd

    if series.dtype.kind == "m":
        return series.dt.total_seconds().to_numpy(np.float64, na_value=np.nan)
    if series.dtype.kind in "biuf":
        missing = {} if isinstance(series.dtype, np.dtype) else {"na_value": np.nan}  # what numpy has is NaN already
        return series.to_numpy(np.float64, **missing)
    found: Any = pd.to_numeric(series.astype(object).where(series.notna(), None), errors="coerce")
    values = found.to_numpy(np.float64, copy=True, na_value=np.nan)
    huge = np.isnan(values) & series.astype(str).str.fullmatch(_BEYOND).to_numpy(bool)
    values[huge] = np.inf  # pandas before 3 takes them for text
    # Python reads 1_000 as a number, other programs do not
    values[series.astype(str).str.contains("_", regex=False).to_numpy(bool)] = np.nan
    return values


def position(row: int) -> str:
    """Return how messages refer to a row of a frame."""
    return f"row {row} (from 0)"


def code_frame(
    frame: Frame,
    columns: Sequence[Column],
    where: str = "X",
    *,
    unknown: dict[str, set[str]] | None = None,
    words: dict[tuple[int, int], str] | None = None,
    rows: Callable[[int], str] = position,
) -> np.ndarray:
    """Return the columns of a frame as codes (n, F).

    Args:
        frame: contains all `columns`, in any order, and possibly others.
        columns: the columns to return.
        where: beginning of messages.
        unknown: filled by column with levels that are not in the training data (their code is `UNSEEN`), and with text
            among numbers, which counts as missing; default: a warning names them.
        words: filled with these levels by row and position in `columns`.
        rows: function from the position of a row to its name in messages.
    """
    frame = frame.iloc[:, find_columns(unique_names(frame.columns), columns, where)]
    found: dict[str, set[str]] = {} if unknown is None else unknown
    out = np.empty((len(frame), len(columns)))

    def refuse(bad: np.ndarray, series: Series, column: Column, why: str) -> None:
        if bad.any():
            first = int(bad.argmax())
            raise DataError(f"{where}, {rows(first)}, column {column.name!r}: {str(series.iloc[first])[:40]!r} {why}")

    rest = {*range(len(columns))}
    for group in _plain(frame, columns):
        values = frame.iloc[:, group].to_numpy(np.float64)
        if not np.isinf(values).any():
            out[:, group] = values
            rest -= {*group}
    for i in sorted(rest):
        out[:, i] = _code(frame.iloc[:, i], columns[i], found, refuse)
        if words is not None and columns[i].kind in ("category", "boolean"):
            new = np.flatnonzero(out[:, i] == UNSEEN)
            words |= {(int(row), i): str(frame.iloc[row, i]).strip() for row in new}
    if unknown is None:
        warn_unknown(found, where, columns)
    return out


def find_columns(has: list[str], columns: Sequence[Column], where: str) -> list[int]:
    """Return the positions of the wanted columns among those that exist: by name, or in order without names."""
    names = [column.name for column in columns]
    places = {name: i for i, name in enumerate(has)}
    if places.keys() >= set(names):
        return [places[name] for name in names]
    if len(has) == len(names) and (unnamed(has) or unnamed(names)):
        return list(range(len(names)))
    absent = [name for name in names if name not in has]
    raise DataError(
        f"{where}: has no column {', '.join(map(repr, absent[:SHOWN]))}{' …' if len(absent) > SHOWN else ''}; "
        f"it has {', '.join(has[:20])}; the model was trained on {', '.join(names[:20])}"
    )


def warn_unknown(unknown: dict[str, set[str]], where: str, columns: Sequence[Column] = ()) -> None:
    """Warn once about all levels that are not in the training data, and once about text among numbers or dates."""
    lenient = {column.name for column in columns if column.lenient}
    for what, chosen in (
        ("values that were not seen in training", unknown.keys() - lenient),
        ("cells that are no numbers or dates count as missing", unknown.keys() & lenient),
    ):
        told = "; ".join(f"{name!r}: {few(words)}" for name, words in unknown.items() if words and name in chosen)
        if told:
            warnings.warn(f"{where}: {what} ({told})", stacklevel=3)


def uncode_frame(
    x: np.ndarray, columns: Sequence[Column], like: Any = None, *, observed: bool = False, others: bool = True
) -> Any:
    """Return codes (n, F) as a frame with the original columns and types.

    Args:
        x: codes (n, F).
        columns: description of the columns.
        like: frame that they belong to: the result is of its library and has its columns, types and index. Columns that
            are no codes are as they were, and so is text that says what the code says. One without rows has no index.
        observed: whether cells of `like` that are not missing stay as they are, also where the code says otherwise.
        others: whether columns that are no codes are as they were; else they are missing.
    """
    import pandas as pd

    made = {column.name: uncode(x[:, i], column) for i, column in enumerate(columns)}
    given = as_frame(like)
    if given is None or (len(given) and len(given) != len(x)):
        return pd.DataFrame(made)
    names = unique_names(given.columns)
    if not made.keys() <= set(names):  # columns without names go by their place
        made = dict(zip(names, made.values(), strict=True))
    for i, (name, series) in enumerate(made.items() if len(given) else ()):
        cells_in = given.iloc[:, names.index(name)]
        made[name] = _as_written(series, cells_in, x[:, i], columns[i], observed=observed)
    if not others:
        made |= {name: pd.Series(np.full(len(x), np.nan)) for name in names if name not in made}
    return _rebuilt(made, like, names, keep=True)


def numbers_frame(x: np.ndarray, columns: Sequence[Column], like: Any) -> Any:
    """Return numbers (n, F), one for each value of `columns`, as a frame of the columns, index and library of `like`;
    NaN for its columns that are not among these."""
    import pandas as pd

    names = unique_names(as_frame(like).columns)  # pyright: ignore[reportOptionalMemberAccess]
    learned = [column.name for column in columns]
    learned = learned if set(learned) <= set(names) else names
    made = {name: pd.Series(np.full(len(x), np.nan)) for name in names}
    made |= {name: pd.Series(x[:, i]) for i, name in enumerate(learned)}
    return _rebuilt(made, like, names, keep=False)


def _rebuilt(made: dict[str, Series], like: Any, names: list[str], *, keep: bool) -> Any:
    """Return the columns `made`, by name, in place of those of the frame `like`, whose names are `names`.

    With `keep` they have the types that they have in `like`, if these can hold them, and other columns stay.
    """
    if type(like).__module__.partition(".")[0] == "pandas":
        import pandas as pd

        given = like.to_frame() if not hasattr(like, "columns") else like
        found = [made[name] if name in made else given.iloc[:, i] for i, name in enumerate(names)]
        if len(given):
            found = [series.set_axis(given.index) for series in found]
        if keep:
            found = [_typed(series, given.iloc[:, i].dtype) for i, series in enumerate(found)]
        return pd.concat(found, axis=1).set_axis(given.columns, axis=1)
    import narwhals as nw

    given = _narwhals(like)
    library, columns = given.implementation, {}
    for name, series in made.items():
        values: list[Any] = series.astype(object).where(series.notna(), None).tolist()
        if len({type(value) for value in values if value is not None and not isinstance(value, int | float)}) > 1:
            values = [None if value is None else str(value) for value in values]
        if any(isinstance(value, float) for value in values):
            values = [float(value) if isinstance(value, int) else value for value in values]
        column = nw.new_series(name, values, nw.Float64 if set(values) == {None} else None, backend=library)
        kind = given[name].dtype
        lossless = kind.is_float() or (kind.is_integer() and not column.dtype.is_float()) or kind == nw.Categorical
        lossless |= isinstance(kind, nw.Datetime) and kind.time_zone == getattr(column.dtype, "time_zone", "")
        lossless |= (
            kind == nw.Date
            and column.dtype == nw.Datetime
            and all(value is None or value.time() == MIDNIGHT for value in values)
        )
        columns[name] = column.cast(kind) if keep and lossless and column.dtype != kind else column
    made_frame = given.with_columns(*columns.values()) if len(given) else nw.from_dict(columns, backend=library)
    return made_frame.to_native()


def _typed(series: Series, dtype: Any) -> Series:
    """Return a column in another type if that can hold its values, else unchanged."""
    if series.dtype == dtype:
        return series
    try:
        cast = series.astype(dtype)
        if series.dtype.kind == "f" and dtype.kind == "f":
            return cast
        same = (cast.astype(series.dtype) == series).to_numpy(bool, na_value=False) | (cast.isna() & series.isna())
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        return series
    return cast if same.all() else series


def _as_written(made: Series, given: Series, values: np.ndarray, column: Column, *, observed: bool) -> Series:
    """Return a column with the cells of `given` that are text and say what its codes `values` (n,) say, or that are
    not missing at all, if `observed` ones stay."""
    if given.dtype.kind in "iu" and made.dtype.kind in "iu" and observed:  # codes are exact up to 2**53 only
        known = given.reset_index(drop=True)
        return known.where(known.notna(), made.astype(given.dtype))
    if given.dtype.kind not in "OUST" and str(given.dtype) != "category":
        return made
    same = _code(given, column, {}, lambda *about: None) == values
    if observed:
        same |= text(given, column.categories).notna().to_numpy()
    elif str(given.dtype) == "category":
        return made
    if not same.any():
        return made
    out = made.astype(object)
    if made.dtype.kind in "biuf" and given[same].map(lambda cell: isinstance(cell, str)).all():
        out[:] = [cell if cell else np.nan for cell in cells(values, column)]
    out[same] = given.to_numpy(object)[same]
    return out.astype(made.dtype) if str(made.dtype).startswith("str") else out


def uncode(values: np.ndarray, column: Column) -> Series:
    """Return codes (n,) of a column in the original type, if it can hold them."""
    import pandas as pd

    if column.kind in ("category", "boolean"):
        values = np.where(values == UNSEEN, np.nan, values)
    missing = np.isnan(values)
    if column.written:
        words = [np.nan if lacks else word for lacks, word in zip(missing, cells(values, column), strict=True)]
        return _words(words, column)
    if column.kind == "date":
        return _dates(values, column)
    if column.kind == "category" or (column.kind == "boolean" and column.categories):
        codes = np.where(missing, -1, values).astype(int)
        words = pd.Index(list(column.categories))
        if column.dtype.startswith("category"):
            inner = column.dtype.removeprefix("category").strip("[]") or "object"
            return pd.Series(pd.Categorical.from_codes(codes, words.astype(inner)))
        return _words([np.nan if code < 0 else column.categories[code] for code in codes], column)
    if column.kind == "boolean" and np.isin(values, (0, 1)).all():
        return pd.Series(values.astype(bool)).astype(column.dtype)
    series = pd.Series(values)
    if column.dtype.startswith("timedelta"):
        return pd.to_timedelta(series, unit="s").astype(column.dtype)
    if column.dtype.lower().startswith(("int", "uint")):
        whole, nullable = (np.rint(values) == values)[~missing].all(), column.dtype[0] in "IU"
        if not whole or (missing.any() and not nullable):
            return series.astype("Float64") if nullable else series
    if column.kind == "boolean" and column.dtype != "boolean":
        return series
    return series.astype(column.dtype)


def cells(values: np.ndarray, column: Column, decimal: str = ".") -> list[str]:
    """Return codes (n,) of a column as text for a file."""
    if column.written:
        return write_written(values.tolist(), column.format)
    if column.kind == "boolean" and not column.in_words:
        return ["" if np.isnan(value) or value == UNSEEN else f"{value:.0f}" for value in values.tolist()]
    if column.kind in ("number", "count"):
        form = ".15g" if column.kind == "number" else ".0f"  # fewer digits round away the spread of 5,400,003.19
        words = ["" if np.isnan(value) else f"{value:{form}}".replace(".", decimal) for value in values.tolist()]
        return ["0" if word == "-0" else word for word in words]
    told = uncode(values, column)
    return ["" if lacks else str(value) for value, lacks in zip(told, told.isna(), strict=True)]


def table_cells(x: np.ndarray, columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Return codes (n, F) as rows of text for a file."""
    return list(zip(*(cells(x[:, i], column) for i, column in enumerate(columns)), strict=True))


def parse_dates(words: Iterable[str | None], form: str) -> np.ndarray:
    """Return days since 1970 (n,) of dates in text of a form, "" for ISO 8601; NaN for missing ones or another form."""
    import pandas as pd

    iso = not form or _AT_OFFSET.search(form) is not None
    options: dict[str, Any] = {"format": "ISO8601", "utc": True} if iso else {"format": form}
    return days(pd.Series(pd.to_datetime(pd.Series(words, dtype=object), errors="coerce", **options)))


def days(dates: Series) -> np.ndarray:
    """Return days since 1970 (n,), NaN for missing dates; dates of a time zone in universal time."""
    if getattr(dates.dtype, "tz", None) is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    micro = dates.astype("datetime64[us]").to_numpy()
    return np.where(np.isnat(micro), np.nan, micro.astype(np.int64) / 86_400e6)


def form_at_offset(words: Iterable[str]) -> str:
    """Return the form of dates of ISO 8601 with the offset from universal time that all `words` have, +00:00 if they
    have different ones; "" if they have none."""
    found = [_TIME_AT_OFFSET.search(word) for word in words]
    offsets = {cell["offset"] for cell in found if cell is not None}
    if not offsets:
        return ""
    gap = next(cell["gap"] for cell in found if cell is not None)
    return f"%Y-%m-%d{gap}%H:%M:%S{offsets.pop() if len(offsets) == 1 else '+00:00'}"


def _ahead(form: str) -> np.timedelta64:
    """Return how far the offset of a form is ahead of universal time."""
    found = _AT_OFFSET.search(form)
    ahead = None if found is None else datetime.fromisoformat(f"2000-01-01T00:00{found['offset']}").utcoffset()
    return np.timedelta64(ahead or 0, "s")


def _dates(values: np.ndarray, column: Column) -> Series:
    import pandas as pd

    bounded = np.clip(values, -700_000, 2_900_000)  # years 54 to 9909: what every type of date can hold
    seconds = np.where(np.isnan(bounded), 0, np.rint(bounded * 86_400)).astype("datetime64[s]")
    dates = pd.Series(np.where(np.isnan(values), np.datetime64("NaT"), seconds))
    if not column.dtype.startswith("datetime"):
        form = column.format or "%Y-%m-%dT%H:%M:%S"
        words = (dates + _ahead(form)).dt.strftime(form)
        if _is_number(column.dtype):
            whole = pd.Series(numbers(words))
            return whole if np.isnan(values).any() else whole.astype(column.dtype)
        return _words(words.tolist(), column)
    if "," in column.dtype:
        dates = dates.dt.tz_localize("UTC")
    return dates.astype(column.dtype)


def _is_number(dtype: str) -> bool:
    return dtype.lower().startswith(("int", "uint", "float"))


def _words(words: list[Any], column: Column) -> Series:
    """Return text in the type of its column, NaN where missing."""
    import pandas as pd

    return pd.Series(words, dtype=column.dtype if column.dtype.startswith("str") else object)  # pyright: ignore


def _plain(frame: Frame, columns: Sequence[Column]) -> Iterator[list[int]]:
    """Columns of numbers that are numpy's in the frame too, and missing where they are NaN; as many as are few cells.

    One by one, thousands of columns take seconds.
    """
    found = [
        i
        for i, (column, dtype) in enumerate(zip(columns, frame.dtypes, strict=True))
        if column.kind in ("number", "count") and isinstance(dtype, np.dtype) and dtype.kind in "iuf"
    ]
    step = max(1, GROUP_CELLS // max(1, len(frame)))
    return (found[start : start + step] for start in range(0, len(found), step))


def _code(series: Series, column: Column, unknown: dict[str, set[str]], refuse: Callable[..., None]) -> np.ndarray:
    """Return one column as codes (n,); unreadable cells are refused, or named in `unknown` and missing."""
    if column.kind in ("number", "count"):
        values = _numbers(series, column)
        bad = np.isnan(values) & series.notna().to_numpy()
        if bad.any():
            bad &= ~text(series).isna().to_numpy()
        why = f"is not a number as {column.format}" if column.format else "is not a number"
        _stray(bad, series, column, unknown, lambda: refuse(bad, series, column, why))
        refuse(np.isinf(values), series, column, "is not finite")
        return values
    if column.kind == "date" and series.dtype.kind == "M":
        return days(series)
    if column.kind == "boolean" and series.dtype.kind in "biuf":
        return _booleans(numbers(series), series, column, unknown)
    words = text(series, column.categories)
    if column.kind == "date":
        if _is_number(column.dtype):
            words = words.str.zfill(8)
        values = parse_dates(words, column.format if column.dtype[:8] != "datetime" else "")
        # a date of ISO 8601 is never another one, with a time of day or without
        other = np.isnan(values) & words.str.match(r"\d{4}-\d\d-\d\d", na=False).to_numpy(bool)
        if other.any():
            values[other] = parse_dates(words[other], "")
        bad = np.isnan(values) & words.notna().to_numpy()
        why = "is not a date as 2024-01-31" + (f" or {column.format}" if column.format not in ("", DAY) else "")
        _stray(bad, series, column, unknown, lambda: refuse(bad, series, column, why))
        return values
    known = {word: float(i) for i, word in enumerate(column.categories)}
    if column.kind == "boolean":
        words, known = words.str.lower(), WORDS | {word.lower(): i for word, i in known.items()}
        words = words.replace({"1.0": "1", "0.0": "0"})  # whole numbers beside missing ones are floats
    values = words.map(known).to_numpy(np.float64, copy=True, na_value=np.nan)
    new = np.isnan(values) & words.notna().to_numpy()
    if new.any():
        remember(unknown.setdefault(column.name, set()), words[new])
        values[new] = UNSEEN
    return _present(values, words.isna().to_numpy(), column)


def _numbers(series: Series, column: Column) -> np.ndarray:
    """Return the numbers (n,) of a column: those that are text by the picture that the column is written by."""
    if column.dtype.startswith("timedelta") and series.dtype.kind not in "biufm":  # times among objects, or as text
        import pandas as pd

        return numbers(pd.Series(pd.to_timedelta(series, errors="coerce")))
    if not column.format or series.dtype.kind in "biufm":
        return numbers(series)
    return parse_written(text(series), column.format)


def _stray(
    bad: np.ndarray, series: Series, column: Column, unknown: dict[str, set[str]], refuse: Callable[[], None]
) -> None:
    """Name `bad` cells (n,) of a column that may have some, else refuse them."""
    if not column.lenient:
        refuse()
    elif bad.any():
        remember(unknown.setdefault(column.name, set()), series[bad].astype(str))


def _booleans(values: np.ndarray, series: Series, column: Column, unknown: dict[str, set[str]]) -> np.ndarray:
    """Return numbers (n,) as 0 and 1; other numbers are levels that are not in the training data."""
    other = ~(np.isnan(values) | (values == 0) | (values == 1))
    if other.any():
        remember(unknown.setdefault(column.name, set()), series[other].astype(str))
    return _present(np.where(other, UNSEEN, values), np.isnan(values), column)


def _present(values: np.ndarray, empty: np.ndarray, column: Column) -> np.ndarray:
    """Return codes (n,) with empty cells as false, if that is what they mean."""
    return np.where(empty, 0.0, values) if column.format == PRESENCE else values


def unnamed(names: Sequence[str]) -> bool:
    """Return whether the columns have numbers instead of names."""
    return list(names) == [str(i) for i in range(len(names))]


def remember(seen: set[str], words: Iterable[str]) -> None:
    """Remember words for a message: at most one more than `few` shows, however many rows there are."""
    for word in sorted(set(words)):
        if len(seen) > SHOWN:
            return
        seen.add(word)


def few(words: Iterable[str]) -> str:
    """Return the first of some words in alphabetical order, for a message."""
    found = sorted(words)
    return ", ".join(repr(word[:40]) for word in found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
