"""Checks whether new data can be of the kind that a model was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lapae.errors import DataError

if TYPE_CHECKING:
    from lapae.space.space import Space

ABSURD = 100.0
"""Standard deviations from the training mean beyond which the median of new data is considered a mistake."""
LEAST_VALUES = 10
"""Minimum number of values for this check of a column: a broken sensor in a few rows is an outlier, not a mistake."""


def check_values(space: Space, x: np.ndarray, where: str, row: int = 0) -> None:
    """Raise a DataError if a value of x (n, *shape), whose first row is number `row`, is infinite or out of range."""
    if x.dtype.kind == "f" and np.isinf(x).any():
        first = row + int(np.isinf(x).reshape(len(x), -1).any(1).argmax())
        raise DataError(f"{where}, row {first} (from 0): an infinite value")
    if space.kind != "image" or not x.size:
        return
    known = x[~np.isnan(x)] if x.dtype.kind == "f" else x
    if not known.size:
        return
    low, high = float(known.min()), float(known.max())
    came = f"{where}: {'floats' if x.dtype.kind == 'f' else 'values'} from {low:g} to {high:g}"
    expected = f"the model takes images with values from 0 to {space.most:g}"
    if low < 0 or high > space.most:
        raise DataError(f"{came}, {expected}")
    if space.most > 1 and high <= 1 and x.dtype.kind == "f" and (known != np.rint(known)).any():
        raise DataError(f"{came}, {expected}: multiply them by {space.most:g}")


def check_units(space: Space, x: np.ndarray, where: str = "X") -> None:
    """Raise a DataError if x (n, *shape), or half of one column, cannot be in the units of the training data.

    An outlier detector is meant for unusual values, so only absurd ones are refused: data in other units, not
    standardised although the training data were, or from another table. NaN are ignored.
    """
    if not x.size or space.kind == "image":
        return
    values = x.reshape(len(x), -1).astype(np.float64)
    offset, scale = space.units(x.shape[1:])
    values = np.where(np.isnan(offset), np.nan, values)
    gaps = np.abs(values - offset) / scale
    known = ~np.isnan(gaps)
    far = known & (gaps > ABSURD)
    columns = np.flatnonzero((known.sum(0) >= LEAST_VALUES) & (2 * far.sum(0) > known.sum(0)))
    if not len(columns) and 2 * far.sum() <= known.sum():
        return
    worst = int(columns[0]) if len(columns) else int(far.sum(0).argmax())
    names = space.names
    column = repr(names[worst % len(names)]) if names else f"{worst} (from 0)"
    came = f"those of feature {column} are about {np.nanmedian(values[:, worst]):g}"
    expected = f"the model was trained on {offset[worst]:.4g} ± {scale[worst]:.4g}"
    raise DataError(
        f"{where}: values of another range: {came}, {expected}; other units? --any-range takes them as they are"
    )
