"""The columns of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

ColumnKind: TypeAlias = Literal["number", "count", "boolean", "category", "date"]


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, what its values are, and the type that they came as."""

    name: str
    kind: ColumnKind = "number"
    categories: tuple[str, ...] = ()
    """Of a category, in the order of their codes 0, 1, …"""
    dtype: str = "float64"

    @property
    def width(self) -> int:
        """Features of the model that the column takes up."""
        return len(self.categories) if self.kind == "category" else 1

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "categories": list(self.categories)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Column:
        """Inverse of `to_dict`; a ValueError or TypeError where the values are not those of a column."""
        column = cls(**{**values, "categories": tuple(map(str, values["categories"]))})
        if column.kind not in get_args(ColumnKind):
            raise ValueError(f"column kind {column.kind!r}: expected one of {', '.join(get_args(ColumnKind))}")
        if not isinstance(column.name, str) or not isinstance(column.dtype, str):
            raise TypeError(f"name and dtype of a column must be text, got {column.name!r} and {column.dtype!r}")
        return column
