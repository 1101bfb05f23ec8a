"""Whether the values of new tables and arrays can be of the kind that a model was trained on.

Unusual values are what an outlier detector is for, so that only the absurd is refused: data in other units, not
standardised where the training data were, or of another table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lapae.data import DataError, Scaling

if TYPE_CHECKING:
    from lapae.model import TrainedModel

ABSURD = 100.0
"""Deviations of the training data from their mean, beyond which the median of new data is taken for a mistake."""
LEAST = 10
"""Values at least to judge a column by: a single broken sensor in a few rows is an outlier, not a mistake."""


def check_range(path: Path, x: np.ndarray, scaling: Scaling, names: Sequence[str] | None) -> None:
    """DataError where half of the values of x (B, *shape), or of one of its features, are absurd; NaN are left out."""
    if not x.size:
        return
    offset, scale = (np.broadcast_to(v, x.shape[1:]).ravel() for v in (scaling.offset, scaling.scale))
    values = x.reshape(len(x), -1).astype(np.float64)
    gaps = np.abs(values - offset) / scale
    known = ~np.isnan(gaps)
    if not known.any():
        return
    far = known & (gaps > ABSURD)
    # A constant feature has a scale of 1, which says nothing of its range: it is not judged on its own.
    judged = (known.sum(0) >= LEAST) & (scale != 1)
    columns = np.flatnonzero(judged & (2 * far.sum(0) > known.sum(0)))
    if not len(columns) and 2 * far.sum() <= known.sum():
        return
    worst = int(columns[0]) if len(columns) else int(far.sum(0).argmax())
    column = repr(names[worst]) if names else f"{worst} (from 0)"
    came = f"those of feature {column} are about {np.nanmedian(values[:, worst]):g}"
    expected = f"the model was trained on {offset[worst]:.4g} ± {scale[worst]:.4g}"
    raise DataError(f"{path}: values of another range: {came}, {expected}; other units? --any-range takes them as is")


def judge(model: TrainedModel) -> Callable[[Path, np.ndarray], None] | None:
    """What looks at new tables and arrays for `model`; None for images, which are checked against their own range."""
    if model.data.kind == "image":
        return None
    return lambda path, x: check_range(path, x, model.scaling, model.data.feature_names)
