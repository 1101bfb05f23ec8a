"""Frames: from what a user has in columns to codes (n, F) and back, in the types that went in.

pandas is imported where a frame is met. Polars frames go by way of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from lapae.errors import DataError
from lapae.space.columns import Column, unique_names

Frame: TypeAlias = Any
Series: TypeAlias = Any
"""Of pandas, whose own annotations do not know what a frame holds."""
MISSING = frozenset(("", "nan", "na", "n/a", "null"))
"""What stands for a missing value in text, in any case."""
WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "1": 1.0, "0": 0.0}
SHOWN = 5
GROUP_CELLS = 2**18
"""Of columns of numbers that are converted together."""


def as_frame(X: Any) -> Frame | None:
    """A pandas frame of a pandas or polars one, or of a table of objects; None for everything else."""
    library = type(X).__module__.partition(".")[0]
    if library not in ("pandas", "polars"):
        if not (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 2):
            return None
        import pandas as pd

        return pd.DataFrame(X).infer_objects()
    import pandas as pd

    if library == "polars":
        X = pd.DataFrame({name: X[name].to_list() for name in X.columns}) if hasattr(X, "columns") else X.to_pandas()
    return X.to_frame() if isinstance(X, pd.Series) else X


def text(series: Series) -> Series:
    """Values as text without blanks around it, None where they are missing; 7.0 is "7"."""

    def one(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        word = str(value).strip()
        return None if word.lower() in MISSING else word

    import pandas as pd

    values = series.astype(object)
    known = values.notna()
    words = {value: one(value) for value in values[known].unique()}
    return pd.Series([words[v] if k else None for v, k in zip(values, known, strict=True)], dtype=object)


def numbers(series: Series) -> np.ndarray:
    """Values as float64, NaN where they are missing; those that are no numbers are NaN too."""
    import pandas as pd

    if series.dtype.kind == "m":
        return series.dt.total_seconds().to_numpy(np.float64, na_value=np.nan)
    if series.dtype.kind in "biuf":
        missing = {} if isinstance(series.dtype, np.dtype) else {"na_value": np.nan}  # what numpy has is NaN already
        return series.to_numpy(np.float64, **missing)
    found: Any = pd.to_numeric(series.astype(object).where(series.notna(), None), errors="coerce")
    values = found.to_numpy(np.float64, copy=True, na_value=np.nan)
    # Python reads 1_000 as a number, other programs do not
    values[series.astype(str).str.contains("_", regex=False).to_numpy(bool)] = np.nan
    return values


def position(row: int) -> str:
    """What messages call a row of a frame."""
    return f"row {row} (from 0)"


def code_frame(
    frame: Frame,
    columns: Sequence[Column],
    where: str = "X",
    *,
    unknown: dict[str, set[str]] | None = None,
    rows: Callable[[int], str] = position,
) -> np.ndarray:
    """The columns of a frame as codes (n, F).

    Args:
        frame: has all `columns`, in any order, and perhaps others.
        columns: those that are wanted.
        where: begins messages.
        unknown: is filled with the categories that are new, which count as missing; a warning where not given.
        rows: from the position of a row to what messages call it.
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
    if unknown is None:
        warn_unknown(found, where)
    return out


def find_columns(has: list[str], columns: Sequence[Column], where: str) -> list[int]:
    """The places of the columns that are wanted among those there are: by name, or in order where they had no names."""
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


def warn_unknown(unknown: dict[str, set[str]], where: str) -> None:
    """One warning that names all categories that training has not seen."""
    if any(unknown.values()):
        told = "; ".join(f"{name!r}: {few(words)}" for name, words in unknown.items() if words)
        warnings.warn(f"{where}: values that were not seen in training count as missing ({told})", stacklevel=3)


def uncode_frame(x: np.ndarray, columns: Sequence[Column], like: Any = None) -> Any:
    """Codes (n, F) as a frame of the columns and types that went in, of the library and with the index of `like`."""
    import pandas as pd

    made = {column.name: uncode(x[:, i], column) for i, column in enumerate(columns)}
    if type(like).__module__.partition(".")[0] == "polars":
        import polars as pl  # pyright: ignore[reportMissingImports]

        cells = {name: column.astype(object).where(column.notna(), None).tolist() for name, column in made.items()}
        return pl.DataFrame(cells, strict=False)
    frame = pd.DataFrame(made)
    if isinstance(like, pd.DataFrame):
        frame.index = like.index
    return frame


def uncode(values: np.ndarray, column: Column) -> Series:
    """Codes (n,) of a column in the type that went in, where it can hold them."""
    import pandas as pd

    missing = np.isnan(values)
    if column.kind == "date":
        return _dates(values, column)
    if column.kind == "category" or (column.kind == "boolean" and column.categories):
        codes = np.where(missing, -1, values).astype(int)
        words = pd.Index(list(column.categories))
        if column.dtype.startswith("category"):
            inner = column.dtype.removeprefix("category").strip("[]") or "object"
            return pd.Series(pd.Categorical.from_codes(codes, words.astype(inner)))
        return _words([np.nan if code < 0 else column.categories[code] for code in codes], column)
    if column.kind == "boolean" and not missing.any():
        return pd.Series(values.astype(bool)).astype(column.dtype)
    series = pd.Series(values)
    if column.dtype.startswith("timedelta"):
        return pd.to_timedelta(series, unit="s").astype(column.dtype)
    whole = column.dtype.lower().startswith(("int", "uint"))
    if whole and (missing.any() or (np.rint(values) != values).any()):
        return series.astype("Int64") if column.kind == "count" and column.dtype[0] in "IU" else series
    if column.kind == "boolean" and column.dtype != "boolean":
        return series
    return series.astype(column.dtype)


def cells(values: np.ndarray, column: Column, decimal: str = ".") -> list[str]:
    """Codes (n,) of a column as they are written into a text file."""
    if column.kind == "number":
        return [f"{value:.8g}".replace(".", decimal) for value in values.tolist()]
    if column.kind == "count":
        return [f"{value:.0f}" for value in values.tolist()]
    return [str(value) for value in uncode(values, column)]


def table_cells(x: np.ndarray, columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Codes (n, F) as rows of a text file."""
    return list(zip(*(cells(x[:, i], column) for i, column in enumerate(columns)), strict=True))


def parse_dates(words: Iterable[str | None], form: str) -> np.ndarray:
    """Days since 1970 (n,) of dates in text of a form, "" for ISO 8601; NaN where there is none, or another form."""
    import pandas as pd

    options: dict[str, Any] = {"format": form} if form else {"format": "ISO8601", "utc": True}
    return days(pd.Series(pd.to_datetime(pd.Series(words, dtype=object), errors="coerce", **options)))


def days(dates: Series) -> np.ndarray:
    """Days since 1970 (n,), NaN where missing; dates of a time zone in universal time."""
    if getattr(dates.dtype, "tz", None) is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    micro = dates.astype("datetime64[us]").to_numpy()
    return np.where(np.isnat(micro), np.nan, micro.astype(np.int64) / 86_400e6)


def _dates(values: np.ndarray, column: Column) -> Series:
    import pandas as pd

    bounded = np.clip(values, -700_000, 2_900_000)  # years 54 to 9909: what every type of date can hold
    seconds = np.where(np.isnan(bounded), 0, np.rint(bounded * 86_400)).astype("datetime64[s]")
    dates = pd.Series(np.where(np.isnan(values), np.datetime64("NaT"), seconds))
    if not column.dtype.startswith("datetime"):
        form = column.format or "%Y-%m-%dT%H:%M:%S"
        return _words(dates.dt.strftime(form).tolist(), column)
    if "," in column.dtype:
        dates = dates.dt.tz_localize("UTC")
    return dates.astype(column.dtype)


def _words(words: list[Any], column: Column) -> Series:
    """Text in the type of its column, NaN where missing."""
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
    if column.kind in ("number", "count"):
        values = numbers(series)
        bad = np.isnan(values) & series.notna().to_numpy()
        if bad.any():
            bad &= ~text(series).isna().to_numpy()
        refuse(bad, series, column, "is not a number")
        refuse(np.isinf(values), series, column, "is not finite")
        return values
    if column.kind == "date" and series.dtype.kind == "M":
        return days(series)
    if column.kind == "boolean" and series.dtype.kind in "biuf":
        return numbers(series)
    words = text(series)
    if column.kind == "date":
        values = parse_dates(words, column.format if column.dtype[:8] != "datetime" else "")
        # a date of ISO 8601 is never another one, with a time of day or without
        other = np.isnan(values) & words.str.match(r"\d{4}-\d\d-\d\d").fillna(False).to_numpy(bool)
        if other.any():
            values[other] = parse_dates(words[other], "")
        refuse(np.isnan(values) & words.notna().to_numpy(), series, column, "is not a date")
        return values
    known = {word: float(i) for i, word in enumerate(column.categories)}
    if column.kind == "boolean":
        words, known = words.str.lower(), WORDS | {word.lower(): i for word, i in known.items()}
    values = words.map(known).to_numpy(np.float64, na_value=np.nan)
    new = words[np.isnan(values) & words.notna().to_numpy()]
    if len(new):
        remember(unknown.setdefault(column.name, set()), new)
    return values


def unnamed(names: Sequence[str]) -> bool:
    """Whether the columns have numbers in place of names."""
    return list(names) == [str(i) for i in range(len(names))]


def remember(seen: set[str], words: Iterable[str]) -> None:
    """Add words that a message will name: as many as `few` shows and one more, however many rows there are."""
    for word in sorted(set(words)):
        if len(seen) > SHOWN:
            return
        seen.add(word)


def few(words: Iterable[str]) -> str:
    """The first of some words in alphabetical order, for a message."""
    found = sorted(words)
    return ", ".join(repr(word[:40]) for word in found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
