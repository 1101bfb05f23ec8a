"""Columns of numbers and dates that are the same as another one, in other units: y = a x + b.

Celsius and Fahrenheit, net and gross at one rate, a number and its copy, a day that is written twice. They are exact in
all training rows that have both, up to the last decimal place that is written: the difference y - (a x + b) is at most
half of it if y was computed from the x that is written, and |a| times half of that of x more if both were rounded. A
missing value is a x + b, on the decimal places of its column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SCREENED = 2000
"""Number of rows in which all pairs of columns are correlated."""
LEAST = 0.99
"""Minimum absolute correlation there of two columns that are looked at further."""
CANDIDATES = 3
"""Number of columns that are looked at for each column: those that correlate best."""
DISTINCT = 20
"""Minimum number of distinct values of either column, in rows that have both."""
EXACT = 1e-6
"""Largest difference of numbers that are not rounded, in standard deviations."""
COARSE = 0.1
"""Largest difference of rounded numbers, in standard deviations."""
SHORT = 7
"""Maximum number of decimal places of a slope, or of its inverse, that is taken to be one a person chose."""

MOST_PLACES = 6
"""Maximum number of decimal places that imputed values are rounded to."""


@dataclass(frozen=True)
class Line:
    """The values of a column y, given those of another one: a x + b.

    Attributes:
        a: slope.
        b: intercept.
        reach: largest difference of y and a x + b.
        unit: last decimal place of y; 0 if it is not rounded.
    """

    a: float
    b: float
    reach: float
    unit: float

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Line:
        """Return the line with these fields; raise ValueError, KeyError or TypeError if they are invalid."""
        line = cls(*(float(values[name]) for name in ("a", "b", "reach", "unit")))
        if not (np.isfinite([line.a, line.b, line.reach]).all() and line.a and line.reach >= 0 and 0 <= line.unit <= 1):
            raise ValueError(f"{line}: expected finite numbers, a slope other than 0 and a unit from 0 to 1")
        return line

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return a x + b, on the decimal places of y; NaN where x is."""
        return self._on_places(self.a * x + self.b, np.rint)

    def interval(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest value that y can have."""
        middle, best = self.a * x + self.b, self(x)
        low, high = self._on_places(middle - self.reach, np.ceil), self._on_places(middle + self.reach, np.floor)
        return np.minimum(low, best), np.maximum(high, best)

    def _on_places(self, values: np.ndarray, to_whole: np.ufunc) -> np.ndarray:
        if not self.unit:
            return values
        per = np.round(1 / self.unit)
        return to_whole(np.round(values * per, 6)) / per  # 0.29 * 100 is a little less than 29


def lines(
    x: np.ndarray, chosen: Sequence[int], days: Sequence[int], dates: Sequence[int]
) -> dict[int, tuple[int, Line]]:
    """Find columns that are a line of another one in all rows that have both.

    Args:
        x: rows (n, F); NaN is missing.
        chosen: places of the columns that are looked at.
        days: places of those that are days.
        dates: places of those that are dates, with a time of day or without.

    Returns:
        By the place of a column y: the place of the column x that tells most about it, and the line.
    """
    found: dict[int, tuple[int, Line]] = {}
    if len(x) < DISTINCT or len(chosen) < 2:
        return found
    places = np.array(chosen)
    r = _correlations(x[np.linspace(0, len(x) - 1, min(len(x), SCREENED)).astype(int)][:, places])
    units: dict[int, float] = {}
    for k, y in enumerate(places.tolist()):
        best = np.argsort(-r[k], kind="stable")[:CANDIDATES]
        told: list[tuple[float, int, Line]] = []
        for i in places[best[r[k, best] >= LEAST]].tolist():
            both = ~(np.isnan(x[:, i]) | np.isnan(x[:, y]))
            if 2 * both.sum() < (~np.isnan(x[:, [i, y]])).sum(0).min():
                continue  # hardly ever known together
            for j in (i, y):
                if j not in units:
                    known = x[~np.isnan(x[:, j]), j]
                    units[j] = float(j in days) if j in dates else float(np.nan_to_num(decimal_place(known)))
            line = fit(x[both, i], x[both, y], units[i], units[y])
            if line is not None:
                told.append((line.reach, i, line))
        if told:
            found[y] = min(told, key=lambda one: one[0])[1:]
    return found


def fit(x: np.ndarray, y: np.ndarray, of_x: float, of_y: float) -> Line | None:
    """Return the line on which all of n values y are, given x, (n,) each; None if there is none.

    Args:
        x: values of the other column.
        y: values of the column.
        of_x: last decimal place of x; 0 if it is not rounded.
        of_y: that of y.
    """
    if min(len(np.unique(x)), len(np.unique(y))) < DISTINCT:
        return None
    center, spread = x - x.mean(), float(y.std())
    slope = float(center @ (y - y.mean()) / (center @ center))
    if slope == 0:
        return None
    # rounded values leave the slope a little uncertain: a short one, such as 1.19 or 1 / 1.8, is the one that was meant
    slopes = [a for k in range(SHORT + 1) for a in (round(slope, k), _inverse(1 / slope, k)) if a] + [slope]
    for tolerance in (EXACT * spread, of_y / 2, of_y / 2 + abs(slope) * of_x / 2):
        if tolerance > max(COARSE, EXACT) * spread:
            break
        for a in slopes:
            rest = y - a * x
            least, most = float(rest.min()), float(rest.max())
            rounding = 1e-9 * tolerance + 1e-14 * float(np.abs(a * x).max() + np.abs(y).max())
            if (most - least) / 2 <= tolerance + rounding:
                b = _shortest(most - tolerance - rounding, least + tolerance + rounding, (least + most) / 2)
                far = float(np.abs(y - (a * x + b)).max())
                return Line(a, b, far + rounding if tolerance == EXACT * spread else tolerance + rounding, of_y)
    return None


def _inverse(slope: float, places: int) -> float:
    short = round(slope, places)
    return 1 / short if short else 0.0


def _shortest(low: float, high: float, middle: float) -> float:
    """Return the number of fewest decimal places from low to high, which contain `middle`."""
    return next((b for k in range(SHORT + 3) if low <= (b := round(middle, k)) <= high), middle)


def _correlations(x: np.ndarray) -> np.ndarray:
    """Return absolute correlations (C, C) of columns of x (n, C) in rows that have both; 0 with itself."""
    known = ~np.isnan(x)
    count = known.sum(0).clip(1)
    z = np.where(known, x - np.nansum(x, 0) / count, 0.0)
    z /= np.sqrt((z * z).sum(0) / count).clip(np.finfo(float).tiny)
    m = known.astype(float)
    n = (m.T @ m).clip(1)
    total, squares = z.T @ m / n, (z * z).T @ m / n  # of one column in the rows of the other
    variance = squares - total**2
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.abs((z.T @ z / n - total * total.T) / np.sqrt(variance * variance.T))
    r = np.nan_to_num(r, nan=0.0, posinf=0.0)
    np.fill_diagonal(r, 0.0)
    return r


def decimal_place(known: np.ndarray) -> float:
    """Return the last decimal place that some of the values (n,) have; NaN for numbers that are not rounded."""
    return next((10.0**-n for n in range(MOST_PLACES + 1) if (np.round(known, n) == known).all()), np.nan)
