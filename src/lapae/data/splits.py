"""Training, validation and test splits: seeded, disjoint, and the set's own where it has some."""

from __future__ import annotations

import numpy as np

from lapae.data.errors import DataError

DEFAULT_SHARE = 0.1
MOST_VALIDATION = 5000
"""Validation data are a tenth by default, and never more than this: 5,000 of MNIST's 60,000."""

Parts = tuple[np.ndarray, np.ndarray, np.ndarray]


def partition(
    n: int,
    own: np.ndarray | None = None,
    *,
    validation: float | int | None = None,
    test: float | int | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> Parts:
    """Increasing indices of the training, validation and test data of n.

    `own` (n,) is the set's own partition: 0 train, 1 validation, 2 test. Where it holds no validation data they are
    drawn from its training data. Shares below 1 are fractions, whole numbers are counts. `limit` bounds each part.
    """
    rng = np.random.default_rng(_checked_seed(seed))
    if own is None:
        if n < 3:
            raise DataError(f"{n} data cannot be split into training, validation and test data: at least 3 are needed")
        n_test = _count(DEFAULT_SHARE if test is None else test, n, "test")
        n_valid = _count(_default_validation(n) if validation is None else validation, n, "validation")
        if n_valid + n_test >= n:
            raise DataError(f"{n_valid} validation and {n_test} test data of {n} leave none to train on")
        order = rng.permutation(n)
        parts = order[n_test + n_valid :], order[n_test : n_test + n_valid], order[:n_test]
    else:
        if test is not None:
            raise DataError(f"test={test} cannot be chosen: this data set has a test split of its own")
        train, valid, held_out = (np.flatnonzero(own == code) for code in (0, 1, 2))
        if len(valid) and validation is not None:
            raise DataError(
                f"validation={validation} cannot be chosen: this data set has a validation split of its own"
            )
        if not len(valid):
            n_valid = _count(
                _default_validation(len(train)) if validation is None else validation, len(train), "validation"
            )
            order = rng.permutation(train)
            train, valid = order[n_valid:], order[:n_valid]
        if not len(train):
            raise DataError("this data set's own partition has no training data")
        parts = train, valid, held_out
    if limit is not None:
        if limit < 1:
            raise DataError(f"limit must be at least 1, got {limit}")
        parts = tuple(rng.permutation(part)[:limit] for part in parts)
    train, valid, held_out = (np.sort(part) for part in parts)
    return train, valid, held_out


def _default_validation(n: int) -> int:
    return max(1, min(round(DEFAULT_SHARE * n), MOST_VALIDATION))


def _count(share: float | int, n: int, what: str) -> int:
    """How many of n a share is: a fraction below 1, or a whole number."""
    if isinstance(share, bool) or not 0 <= share < max(n, 1) or (share >= 1 and share != int(share)):
        raise DataError(f"{what}={share!r}: expected a fraction from 0 to below 1, or a whole number below {n}")
    return int(share) if share >= 1 or share == 0 else max(1, round(share * n))


def _checked_seed(seed: int) -> int:
    if seed < 0:
        raise DataError(f"the seed must not be negative, got {seed}")
    return seed
