"""The columns of a table, and the way of their codes (numbers in the user's units) into the model and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from lapae.space.written import parse_written

ColumnKind: TypeAlias = Literal["number", "count", "boolean", "category", "date"]
DAY = "%Y-%m-%d"
PRESENCE = "1 or empty"
"""Format of a boolean that is 1 or empty: empty is false."""
NEWER = ("lenient",)
"""Fields that older saved columns lack."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, what its values are, and the type that they came as.

    | kind             | code                     | likelihood  |
    |------------------|--------------------------|-------------|
    | number, count    | the number               | gaussian    |
    | time (a number)  | seconds                  | gaussian    |
    | boolean          | 0 or 1                   | bernoulli   |
    | category         | 0, 1, … (`categories`)   | categorical |
    | date             | days since 1970          | gaussian    |
    """

    name: str
    kind: ColumnKind = "number"
    categories: tuple[str, ...] = ()
    """Levels of a category in the order of their codes; words for false and true of a boolean that is text."""
    dtype: str = "float64"
    """pandas' name of the type that went in."""
    format: str = ""
    """How cells are written: the form of a date (`DAY` if it has no time of day), the picture of a number or a time
    (`lapae.space.written`), `PRESENCE` of a boolean; "" for cells that are plain."""
    lenient: bool = False
    """Whether cells that are no numbers or dates count as missing, with a warning, as a few did in training."""

    @property
    def written(self) -> bool:
        """Whether its numbers are text that a picture reads."""
        return self.kind in ("number", "count") and bool(self.format)

    @property
    def width(self) -> int:
        """Features of the model that the column takes up."""
        return len(self.categories) if self.kind == "category" else 1

    @property
    def likelihood(self) -> str:
        """Name of the likelihood that suits it."""
        return {"category": "categorical", "boolean": "bernoulli"}.get(self.kind, "gaussian")

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features in the model."""
        if self.kind != "category":
            return (self.name,)
        return tuple(f"{self.name}={category}" for category in self.categories)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; what is new since 0.2 only if it is not the default."""
        values = {**asdict(self), "categories": list(self.categories)}
        return {name: value for name, value in values.items() if name not in NEWER or value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Column:
        """Return the column that `to_dict` describes; ValueError, KeyError or TypeError if the values are of none."""
        column = cls(**{**values, "categories": tuple(map(str, values["categories"]))})
        if column.kind not in get_args(ColumnKind):
            raise ValueError(f"column kind {column.kind!r}: expected one of {', '.join(get_args(ColumnKind))}")
        if not all(isinstance(value, str) for value in (column.name, column.dtype, column.format)):
            raise TypeError(f"name, dtype and format of a column must be text, got {column!r}")
        if not isinstance(column.lenient, bool):
            raise TypeError(f"lenient of a column must be true or false, got {column.lenient!r}")
        if column.written:
            parse_written([], column.format)
        if column.kind == "category" and not column.categories:
            raise ValueError(f"the category {column.name!r} has no categories")
        return column


@dataclass(frozen=True)
class Spans:
    """Where the columns of a table lie among the features of the model."""

    columns: tuple[Column, ...]

    @cached_property
    def starts(self) -> np.ndarray:
        """(F + 1,) first feature of each column, and the number of features at the end."""
        return np.cumsum([0, *(column.width for column in self.columns)])

    @property
    def n_features(self) -> int:
        return int(self.starts[-1])

    @property
    def parts(self) -> tuple[tuple[str, int, int], ...]:
        """(likelihood, start, stop), neighbours of one kind in one part; a category is a part of its own."""
        found: list[tuple[str, int, int]] = []
        for column, start, stop in zip(self.columns, self.starts, self.starts[1:], strict=False):
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
        which = self.of_kind("number", "count", "date")
        out[self.starts[which]] = values[which]
        return out

    def expand(self, x: np.ndarray) -> np.ndarray:
        """Codes (n, F) as features (n, D): categories one-hot, NaN over all of them where missing."""
        out = np.empty((len(x), self.n_features))
        wide = self.of_kind("category")
        out[:, self.starts[:-1]] = x
        for i in wide:
            start, stop = self.starts[i], self.starts[i + 1]
            out[:, start:stop] = x[:, i, None] == np.arange(int(stop - start))
            out[np.isnan(x[:, i]), start:stop] = np.nan
        return out

    def probabilities(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Of the categories and booleans of features (…, D), by the name of the column: (…, categories)."""
        found = {}
        for i in self.of_kind("category", "boolean"):
            part, column = x[..., self.starts[i] : self.starts[i + 1]], self.columns[i]
            found[column.name] = part if column.kind == "category" else np.concatenate([1 - part, part], -1)
        return found

    def gather(self, x: np.ndarray, *, deviation: bool = False, whole: bool = True) -> np.ndarray:
        """Features (…, D) in the user's units as codes (…, F).

        A count is whole, if `whole`, and never below 0, a boolean 0 or 1, a category the code of the greatest, a date
        without a time a whole day. The deviation of a category is the root of the sum of the squares over its features.
        """
        out = x[..., self.starts[:-1]].copy()
        for i, column in enumerate(self.columns):
            part = x[..., self.starts[i] : self.starts[i + 1]]
            if column.kind == "category":
                out[..., i] = np.sqrt(np.square(part).sum(-1)) if deviation else _greatest(part)
            elif not deviation:
                out[..., i] = _possible(column, out[..., i], whole)
        return out


def _greatest(part: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(part).any(-1), np.nan, np.nan_to_num(part, nan=-np.inf).argmax(-1))


def _possible(column: Column, values: np.ndarray, whole: bool) -> np.ndarray:
    if column.kind == "count":
        return np.maximum(np.rint(values) if whole else values, 0.0)
    if column.kind == "boolean":
        return np.where(np.isnan(values), np.nan, values >= 0.5)
    return np.rint(values) if column.format == DAY else values


def counted(columns: Sequence[Column]) -> str:
    """How many columns there are of each kind: "2 counts, 1 category"."""
    kinds = Counter(column.kind for column in columns)
    many = {"category": "categories"}
    return ", ".join(f"{n} {kind if n == 1 else many.get(kind, f'{kind}s')}" for kind, n in kinds.items())


def unique_names(names: Sequence[Any]) -> list[str]:
    """Names as text, no two alike: a second "a" is "a.1", as pandas has it."""
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
