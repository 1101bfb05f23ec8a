"""Values that a column of a table can have, as far as its rows show, which limit imputed values and intervals.

An interval of a price does not begin below 0 if no price does, one of a column of whole numbers ends on whole numbers,
rounded outward, and one of a class from 1 to 3 does not reach 4. Imputed values and their intervals have as many
decimal places as the column. A limit of a column is certain if many rows have exactly that value, or if it is 0 and all
values have the same sign. Imputed values stay within the range of the rows if there are `ENOUGH` of them: on average at
most 2 in (n + 1) new values lie outside the range of n rows. Their intervals leave it where the row lies beyond the
data (`lapae.impute.line`), but not beyond a certain limit. Of fewer values, imputed ones and their intervals end at
twice the distance of the least and the greatest value from the median.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lapae.space.columns import DAY, Column
from lapae.space.lines import decimal_place

ENOUGH = 50
"""Minimum number of values of a column for its least and greatest value to be bounds of imputed values."""
SHARE, SEVERAL = 0.01, 3
"""Minimum share and number of rows with the least or greatest value of a column for it to be a certain limit."""


@dataclass(frozen=True)
class Possible:
    """Possible values of F columns.

    Attributes:
        low: certain lower limits, (F,); minus infinity if there is none.
        high: certain upper limits, (F,).
        least: lower bounds of imputed values, (F,).
        most: upper bounds of imputed values, (F,).
        whole: whether values are whole numbers, (F,).
        unit: value of the last decimal place of numbers, (F,); NaN if they are not rounded to any.
        few: whether fewer than `ENOUGH` values are known, (F,).
    """

    low: np.ndarray
    high: np.ndarray
    least: np.ndarray
    most: np.ndarray
    whole: np.ndarray
    unit: np.ndarray
    few: np.ndarray

    @classmethod
    def fit(cls, codes: np.ndarray, columns: Sequence[Column] | None) -> Possible:
        """Find the possible values from rows.

        Args:
            codes: rows (n, F) in the user's units; NaN is missing.
            columns: description of the columns; None for columns without names, whose numbers need not be whole.
        """
        n = codes.shape[1]
        low, high, least, most = np.full((4, n), [[-np.inf], [np.inf], [-np.inf], [np.inf]])
        whole, few, unit = np.zeros(n, bool), np.zeros(n, bool), np.full(n, np.nan)
        for j in range(n):
            known = codes[~np.isnan(codes[:, j]), j]
            column = None if columns is None else columns[j]
            if not len(known) or (column is not None and column.kind in ("category", "boolean")):
                continue
            if column is not None:
                whole[j] = column.kind == "count" or column.format == DAY or bool((known == np.rint(known)).all())
                unit[j] = decimal_place(known) if column.kind != "date" else np.nan
            first, last = known.min(), known.max()
            low[j] = first if _shared(known, first) else 0.0 if first >= 0 else -np.inf
            high[j] = last if _shared(known, last) else 0.0 if last <= 0 else np.inf
            few[j], middle = len(known) < ENOUGH, np.median(known)
            ends = (2 * first - middle, 2 * last - middle) if few[j] else (first, last)
            ends = (np.floor(ends[0]), np.ceil(ends[1])) if whole[j] else ends
            least[j], most[j] = max(low[j], ends[0]), min(high[j], ends[1])
        return cls(low, high, least, most, whole, unit, few)

    def interval(
        self,
        low: np.ndarray,
        high: np.ndarray,
        *,
        filled: bool = False,
        limits: tuple[np.ndarray, ...] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return intervals of possible values. One that lies entirely beyond a limit becomes the limit.

        Args:
            low: lower ends, (…, F).
            high: upper ends, (…, F).
            filled: whether they are those of missing values.
            limits: how far these may reach beyond the values of the rows, downward and upward, (…, F) each: they stay
                within certain limits.
        """
        low, high = np.where(self.whole, np.floor(low), low), np.where(self.whole, np.ceil(high), high)
        least, most = (self.least, self.most) if filled else (self.low, self.high)
        if filled and limits is not None:
            least = np.where(self.few, least, np.maximum(self.low, np.fmin(least, limits[0])))
            most = np.where(self.few, most, np.minimum(self.high, np.fmax(most, limits[1])))
        low, high = np.clip(low, least, most), np.clip(high, least, most)
        return (self._on_places(low, np.floor), self._on_places(high, np.ceil)) if filled else (low, high)

    def fill(self, values: np.ndarray, *, whole: bool = True) -> np.ndarray:
        """Return values (…, F) to impute, clipped to the bounds and, if `whole`, with the decimal places of the
        columns."""
        return np.clip(self._on_places(values, np.rint) if whole else values, self.least, self.most)

    def _on_places(self, values: np.ndarray, to_whole: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return values (…, F), moved by `to_whole` to a multiple of the unit of their column."""
        per = np.round(1 / self.unit)  # 1 / 0.01 is exact, 0.01 is not
        # 0.29 * 100 is a little less than 29
        return np.where(np.isnan(per), values, to_whole(np.round(values * per, 6)) / per)


def _shared(known: np.ndarray, end: float) -> bool:
    """Whether many of the values (n,) are the one at their end."""
    return int((known == end).sum()) >= max(SEVERAL, SHARE * len(known))
