"""Columns that were constant in training: nothing can be learned from them, but a change is reported."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lapae.space.columns import unique_names
from lapae.space.frames import Frame, Series, few, numbers, position, remember, text

MIDNIGHT = " 00:00:00"
"""End of the text of a date whose type has a time of day, and whose own text has none."""


def only_value(series: Series) -> str | None:
    """Return the value of a constant column as text; None if there is none."""
    return next((word for word in text(series).unique() if word is not None), None)


def others(series: Series, value: str) -> Series:
    """Return the values of a column that are not `value`, as text by their position; missing ones do not count."""
    import pandas as pd

    words = text(series)
    known, number = words.notna().to_numpy(), numbers(pd.Series([value], dtype=object))[0]
    if np.isnan(number):
        same: Any = words.map(_folded, na_action="ignore") == _folded(value)
        return words[known & ~same.to_numpy(bool)]
    return words[known & (numbers(words) != number)]  # 7, 7.0 and 7.00 are one number


def _folded(word: str) -> str:
    return word.lower().removesuffix(MIDNIGHT)


class Constants:
    """Checks new rows, block by block, for values other than those of training.

    Args:
        left_out: names of the columns that are not learned, with the only value of those that were constant, else None.
        where: beginning of the message.
    """

    def __init__(self, left_out: Mapping[str, str | None], where: str) -> None:
        self.values = {name: value for name, value in left_out.items() if value is not None}
        self.where = where
        self.found: dict[str, tuple[str, set[str]]] = {}
        """By column: the first row with another value, and some of these values."""

    def look(self, frame: Frame, rows: Callable[[int], str] = position, decimal: str = ".") -> None:
        """Check a block of rows.

        Args:
            frame: columns under their names in training; others are ignored.
            rows: from a position in the block to what messages call that row.
            decimal: decimal sign of numbers that are written as text.
        """
        names = unique_names(frame.columns)
        for name in set(names) & set(self.values):
            series, value = frame.iloc[:, names.index(name)], self.values[name].replace(decimal, ".")
            if decimal != ".":
                series = series.map(lambda cell: cell.replace(decimal, ".") if isinstance(cell, str) else cell)
            new = others(series, value)
            if len(new):
                if name not in self.found:
                    self.found[name] = rows(int(new.index[0])), set()
                remember(self.found[name][1], new)

    def warn(self) -> None:
        """Warn once about all columns that have changed."""
        if self.found:
            told = "; ".join(
                f"{name!r} was always {self.values[name][:40]!r}, now also {few(words)} (first in {row})"
                for name, (row, words) in sorted(self.found.items())
            )
            warnings.warn(f"{self.where}: columns that were constant in training are not judged: {told}", stacklevel=3)
