"""Rows that belong together, such as those of one customer, patient or machine, and are put into the same split.

New rows belong to new groups. If rows of one group were both learned and held out, the model would know the held-out
ones better than new ones: p-values would be too small, and intervals too narrow. One row of each group is used for
calibration: calibration rows are neighbours of each other, but a row of a new group has no neighbours from its own
group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lapae.data.splits import LEAST_ROWS, Parts, partition
from lapae.errors import DataError


def as_groups(groups: Any, n: int, name: str = "X") -> np.ndarray | None:
    """Return the number (n,) of each row's group, from 0; None if there are no groups.

    Args:
        groups: (n,) labels of any type, None for no groups; a missing label is a group of its own.
        n: number of rows.
        name: begins messages.
    """
    if groups is None:
        return None
    labels = np.asarray(groups)
    if labels.shape != (n,):
        raise DataError(f"{name}: groups of shape {labels.shape}, expected one label for each of {n} rows, ({n},)")
    import pandas as pd

    numbers = pd.factorize(pd.Series(labels))[0].astype(np.int64)
    missing = numbers < 0
    numbers[missing] = numbers.max(initial=-1) + 1 + np.arange(missing.sum())
    return numbers


def linked(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the groups (n,) of rows that hang together by groups `first` (n,) or `second` (n,), from 0."""
    label, before = first, None
    while before is None or (label != before).any():
        before = label
        for groups in (second, first):  # the least label of a group is that of all its rows
            least = np.full(int(groups.max()) + 1, len(first))
            np.minimum.at(least, groups, label)
            label = least[groups]
    return np.unique(label, return_inverse=True)[1].reshape(-1)


def divide_groups(groups: np.ndarray, name: str, **options: Any) -> Parts:
    """Split rows so that each group is in one part; one row of each group is used for calibration.

    Args:
        groups: (n,) the group of each row.
        name: begins messages.
        options: options of `lapae.data.splits.partition`; shares are of groups.
    """
    numbers = np.unique(groups, return_inverse=True)[1].reshape(-1)
    n = int(numbers.max(initial=-1)) + 1
    if n < LEAST_ROWS:
        raise DataError(
            f"{name}: {len(groups)} rows in {n} groups, expected at least {LEAST_ROWS}: whole groups are held out to "
            "calibrate, and p-values from so few would be meaningless; without groups single rows are held out"
        )
    limit = options.pop("limit", None)
    train, valid, calib, test = (np.flatnonzero(np.isin(numbers, part)) for part in partition(n, **options))
    calib = np.random.default_rng(options.get("seed", 0)).permutation(calib)
    calib = np.sort(calib[np.unique(numbers[calib], return_index=True)[1]])
    return train[:limit], valid[:limit], calib[:limit], test[:limit]
