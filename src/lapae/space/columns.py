"""The columns of a table, and conversion of their codes (numbers in the user's units) to features and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from lapae.space.lines import Line
from lapae.space.written import parse_written

ColumnKind: TypeAlias = Literal["number", "count", "boolean", "category", "date"]
WITH_INTERVALS = ("number", "count", "date")
"""Kinds of columns whose values lie in intervals; categories and booleans have none."""
DAY = "%Y-%m-%d"
UNIVERSAL = "%Y-%m-%dT%H:%M:%S+00:00"
PRESENCE = "1 or empty"
"""Format of a boolean that is 1 or empty: empty is false."""
UNSEEN = -1.0
"""Code of a level of a category or boolean that is not in the training data."""
NEWER = {"lenient": False, "values": (), "carried": None, "given_by": "", "implied": (), "line": None}
"""Fields that older saved columns do not have, and their values in that case."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, the kind of its values, and the type that they had.

    | kind             | code                     | likelihood  |
    |------------------|--------------------------|-------------|
    | number, count    | the number               | gaussian    |
    | time (a number)  | seconds                  | gaussian    |
    | boolean          | 0 or 1                   | bernoulli   |
    | category         | 0, 1, … (`categories`)   | categorical, or gaussian (`values`) |
    | date             | days since 1970          | gaussian    |

    A missing value is NaN, a level that is not in the training data `UNSEEN`.
    """

    name: str
    kind: ColumnKind = "number"
    categories: tuple[str, ...] = ()
    """Levels of a category in the order of their codes; words for false and true of a boolean that is text."""
    dtype: str = "float64"
    """pandas' name of the original type."""
    format: str = ""
    """How cells are written: the form of a date (`DAY` if it has no time of day; one that ends in an offset from
    universal time, as +01:00, is of ISO 8601), the picture of a number or a time
    (`lapae.space.written`), `PRESENCE` of a boolean; "" for plain cells."""
    lenient: bool = False
    """Whether cells that are not numbers or dates count as missing, with a warning, as a few did in training."""
    values: tuple[float, ...] = ()
    """Number for each level of a category that is one number in the model (`lapae.space.levels`)."""
    carried: int | None = None
    """Usual level of a category whose levels are too rare for the network; None if the network sees it."""
    given_by: str = ""
    """Name of the column that determines this one, if there is one."""
    implied: tuple[tuple[float, float], ...] = ()
    """Codes of that column, each with the corresponding code of this one."""
    line: Line | None = None
    """In place of these, if each column is a line of the other: that on which the values of this one are."""

    @property
    def written(self) -> bool:
        """Whether its numbers are text, which is read by a picture."""
        return self.kind in ("number", "count") and bool(self.format)

    @property
    def in_words(self) -> bool:
        """Whether its values are words or truth values, with nothing between two of them."""
        return self.kind == "category" or (
            self.kind == "boolean" and (bool(self.categories) or self.dtype.startswith("bool"))
        )

    @property
    def width(self) -> int:
        """Number of features that the column has in the model."""
        return 0 if self.carried is not None else len(self.categories) if self.one_hot else 1

    @property
    def one_hot(self) -> bool:
        """Whether each level of a category is a feature."""
        return self.kind == "category" and not self.values and self.carried is None

    @property
    def likelihood(self) -> str:
        """Name of the likelihood that suits it."""
        return (
            "gaussian"
            if self.values
            else {"category": "categorical", "boolean": "bernoulli"}.get(self.kind, "gaussian")
        )

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features in the model."""
        if not self.one_hot:
            return (self.name,) * self.width
        return tuple(f"{self.name}={category}" for category in self.categories)

    def told(self, given: np.ndarray) -> np.ndarray:
        """Return the codes (n,) that go with those of the column that determines this one, (n,); NaN if there are
        none."""
        if self.line is not None:
            return self.line(given)
        if not self.implied:
            return np.full(given.shape, np.nan)
        keys, values = np.array(self.implied, np.float64).T
        at = np.searchsorted(keys, given).clip(0, len(keys) - 1)  # NaN come last
        return np.where(keys[at] == given, values[at], np.nan)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; fields that are new since 0.2 only if they are not the default."""
        values = {**asdict(self), "categories": list(self.categories)}
        return {name: value for name, value in values.items() if name not in NEWER or value != NEWER[name]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Column:
        """Return the column that `to_dict` describes; raise ValueError, KeyError or TypeError if the values are
        invalid."""
        tuples = {
            "categories": tuple(map(str, values["categories"])),
            "values": tuple(map(float, values.get("values", ()))),
            "implied": tuple((float(a), float(b)) for a, b in values.get("implied", ())),
        }
        line = values.get("line")
        column = cls(**{**values, **tuples, "line": None if line is None else Line.from_dict(line)})
        if column.kind not in get_args(ColumnKind):
            raise ValueError(f"column kind {column.kind!r}: expected one of {', '.join(get_args(ColumnKind))}")
        if not all(isinstance(value, str) for value in (column.name, column.dtype, column.format, column.given_by)):
            raise TypeError(f"name, dtype, format and given_by of a column must be text, got {column!r}")
        if not isinstance(column.lenient, bool):
            raise TypeError(f"lenient of a column must be true or false, got {column.lenient!r}")
        if column.written:
            parse_written([], column.format)
        if column.kind == "category" and not column.categories:
            raise ValueError(f"the category {column.name!r} has no categories")
        n = len(column.categories)
        if column.values and (len(column.values) != n or not np.isfinite(column.values).all()):
            raise ValueError(
                f"{len(column.values)} values for the {n} levels of {column.name!r}: expected as many numbers"
            )
        if column.carried is not None and not (type(column.carried) is int and 0 <= column.carried < n):
            raise ValueError(f"the usual level of {column.name!r} is {column.carried!r}: expected one of its {n}")
        levels = column.kind in ("category", "boolean")
        if not all((0 <= b < max(n, 2) and b == int(b)) if levels else np.isfinite(b) for _, b in column.implied):
            raise ValueError(f"implied values of {column.name!r} are no codes of its levels")
        return column


@dataclass(frozen=True)
class Spans:
    """Positions of the columns of a table among the features of the model."""

    columns: tuple[Column, ...]

    @cached_property
    def starts(self) -> np.ndarray:
        """(F + 1,) first feature of each column, and the number of features at the end."""
        return np.cumsum([0, *(column.width for column in self.columns)])

    @cached_property
    def seen(self) -> np.ndarray:
        """Indices of the columns that the network sees."""
        return np.array([i for i, column in enumerate(self.columns) if column.width], int)

    @property
    def n_features(self) -> int:
        return int(self.starts[-1])

    def add_up(self, x: np.ndarray) -> np.ndarray:
        """Add up features (…, D) of each column: (…, F)."""
        out = np.zeros((*x.shape[:-1], len(self.columns)), x.dtype)
        out[..., self.seen] = np.add.reduceat(x, self.starts[self.seen], axis=-1)
        return out

    @property
    def parts(self) -> tuple[tuple[str, int, int], ...]:
        """(likelihood, start, stop), neighbours of one kind in one part; a category is a part of its own."""
        found: list[tuple[str, int, int]] = []
        for column, start, stop in zip(self.columns, self.starts, self.starts[1:], strict=False):
            if start == stop:
                continue
            name = column.likelihood
            if found and name != "categorical" and found[-1][0] == name:
                found[-1] = (name, found[-1][1], int(stop))
            else:
                found.append((name, int(start), int(stop)))
        return tuple(found)

    def of_kind(self, *kinds: str) -> np.ndarray:
        """Indices of the columns of some kinds."""
        return np.array([i for i, column in enumerate(self.columns) if column.kind in kinds], int)

    def spread(self, values: np.ndarray, otherwise: float) -> np.ndarray:
        """Values (F,) of the columns as values of the features (D,): those of numbers and dates, else `otherwise`."""
        out = np.full(self.n_features, otherwise)
        which = self.of_kind(*WITH_INTERVALS)
        out[self.starts[which]] = values[which]
        return out

    def expand(self, x: np.ndarray) -> np.ndarray:
        """Return codes (n, F) as features (n, D): categories one-hot or as numbers, NaN for all of them if missing.

        A level that is not in the training data is none of those that are or, for a boolean, halfway between them.
        """
        out = np.empty((len(x), self.n_features))
        out[:, self.starts[self.seen]] = x[:, self.seen]
        for i in np.intersect1d(self.of_kind("category", "boolean"), self.seen):
            start, stop = self.starts[i], self.starts[i + 1]
            column, missing, unseen = self.columns[i], np.isnan(x[:, i]), x[:, i] == UNSEEN
            if column.kind == "boolean":
                out[unseen, start] = 0.5
            elif column.one_hot:
                out[:, start:stop] = x[:, i, None] == np.arange(int(stop - start))
            else:
                out[:, start] = np.array(column.values)[np.where(missing | unseen, 0, x[:, i]).astype(int)]
                out[unseen, start] = 0.0
            out[missing, start:stop] = np.nan
        return out

    def probabilities(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return probabilities (…, levels) of categories and booleans from features (…, D), by the column's name.

        Categories that are one number have none.
        """
        found = {}
        for i in self.of_kind("category", "boolean"):
            part, column = x[..., self.starts[i] : self.starts[i + 1]], self.columns[i]
            if column.one_hot:
                found[column.name] = part
            elif column.kind == "boolean":
                found[column.name] = np.concatenate([1 - part, part], -1)
        return found

    def look_up(self, codes: np.ndarray) -> np.ndarray:
        """Return codes (n, F) of columns that others determine, looked up by those in `codes` (n, F); NaN elsewhere."""
        out = np.full(codes.shape, np.nan)
        for i, source in self.sources.items():
            out[:, i] = self.columns[i].told(codes[:, source])
        return out

    def limits(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest code (n, F) that columns determined by others can have; NaN elsewhere."""
        low = self.look_up(codes)
        high = low.copy()
        for i, source in self.sources.items():
            if (line := self.columns[i].line) is not None:
                low[:, i], high[:, i] = line.interval(codes[:, source])
        return low, high

    @cached_property
    def sources(self) -> dict[int, int]:
        """Places of the columns that determine others, by the places of those."""
        places = {column.name: i for i, column in enumerate(self.columns)}
        return {i: places[column.given_by] for i, column in enumerate(self.columns) if column.given_by in places}

    def gather(self, x: np.ndarray, *, deviation: bool = False, whole: bool = True) -> np.ndarray:
        """Return features (…, D) in the user's units as codes (…, F).

        A count is whole, if `whole`, and never below 0, a boolean 0 or 1, or between if it is written as a number and
        not `whole`, a category the code of the greatest. A date without a time is a whole day, if `whole`. The
        deviation of a category is the root of the sum of the squares over its features.
        """
        out = np.zeros((*x.shape[:-1], len(self.columns)), x.dtype)
        out[..., self.seen] = x[..., self.starts[self.seen]]
        for i, column in enumerate(self.columns):
            if column.carried is not None:
                out[..., i] = 0.0 if deviation else column.carried
                continue
            part = x[..., self.starts[i] : self.starts[i + 1]]
            if column.kind == "category":
                nearest = _greatest if column.one_hot else partial(_nearest, np.array(column.values))
                out[..., i] = np.sqrt(np.square(part).sum(-1)) if deviation else nearest(part)
            elif not deviation:
                out[..., i] = _possible(column, out[..., i], whole)
        return out


def _greatest(part: np.ndarray) -> np.ndarray:
    """Return the level (…,) whose feature is the greatest of `part` (…, levels)."""
    return np.where(np.isnan(part).any(-1), np.nan, np.nan_to_num(part, nan=-np.inf).argmax(-1))


def _nearest(values: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return the level (…,) whose number, of `values` (levels,), is the nearest to `part` (…, 1)."""
    order = np.argsort(values)
    at = np.searchsorted((values[order][1:] + values[order][:-1]) / 2, part[..., 0])
    return np.where(np.isnan(part[..., 0]), np.nan, order[at])


def _possible(column: Column, values: np.ndarray, whole: bool) -> np.ndarray:
    if column.kind == "count":
        return np.maximum(np.rint(values) if whole else values, 0.0)
    if column.kind == "boolean":
        return np.where(np.isnan(values), np.nan, values >= 0.5) if whole or column.in_words else np.clip(values, 0, 1)
    return np.rint(values) if column.format == DAY and whole else values


def counted(columns: Sequence[Column]) -> str:
    """Return how many columns there are of each kind: "2 counts, 1 category"."""
    kinds = Counter(column.kind for column in columns)
    many = {"category": "categories"}
    return ", ".join(f"{n} {kind if n == 1 else many.get(kind, f'{kind}s')}" for kind, n in kinds.items())


def unique_names(names: Sequence[Any]) -> list[str]:
    """Return unique names as text: a second "a" becomes "a.1", as in pandas."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for name in map(str, names):
        chosen = name
        while chosen in seen:
            seen[name] += 1
            chosen = f"{name}.{seen[name]}"
        seen[chosen] = 0
        found.append(chosen)
    return found
