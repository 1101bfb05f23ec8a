"""Training, validation, calibration and test splits: seeded, disjoint, and the set's own where it has some."""

from __future__ import annotations

import numpy as np

from lapae.errors import DataError

DEFAULT_SHARE = 0.1
MOST_HELD_OUT = 5000
"""By default the validation set is a tenth, but never more than this: 5,000 of MNIST's 60,000."""
LEAST_ROWS = 10
"""Fewer rows cannot be learned from: there is nothing left to calibrate with."""
CALIBRATION_SHARE, CALIBRATION_DATA = 0.2, 200
"""The calibration set is a fifth up to this many rows, then at least this many and a tenth. Windows of a series that
overlap count as one: 200 windows that overlap eightfold would be less than three days of a pump that was recorded for
four weeks."""
FLAGGING = 19
"""Number of calibration rows needed for a p-value of 0.05; there are at least this many, if that is at most a third of
all rows."""

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def partition(
    n: int,
    own: np.ndarray | None = None,
    *,
    validation: float | int | None = None,
    calibration: float | int | None = None,
    test: float | int | None = None,
    seed: int = 0,
    limit: int | None = None,
    gap: int | None = None,
) -> Parts:
    """Return increasing indices of the training, validation, calibration and test samples of n.

    Args:
        n: number of data.
        own: (n,) the set's own partition: 0 train, 1 validation, 2 test. If it has no validation data, they are drawn
            from its training data, as calibration data always are.
        validation: size of the validation set, a fraction below 1 or a number of samples; default: depends on n.
        calibration: size of the calibration set, in the same way.
        test: size of the test set, in the same way; default: the set's own.
        seed: seed of the draw.
        limit: maximum number of samples in each part.
        gap: number of samples left out between parts, for data that are split in the order of time: training samples
            first, test samples last. Default: they are split at random.
    """
    if seed < 0:
        raise DataError(f"the seed must not be negative, got {seed}")
    rng = np.random.default_rng(seed)
    if own is None:
        rest, held_out = np.arange(n), None
    else:
        if test is not None:
            raise DataError(f"test={test} cannot be chosen: this data set has a test split of its own")
        rest, held_out = np.flatnonzero(own == 0), np.flatnonzero(own == 2)
        if not len(rest):
            raise DataError("this data set's own partition has no training data")
    n_test = 0 if held_out is not None else count_of(test or 0, n, "test")
    valid = np.flatnonzero(own == 1) if own is not None else np.empty(0, int)
    if len(valid) and validation is not None:
        raise DataError(f"validation={validation} cannot be chosen: this data set has a validation split of its own")
    own_valid = 0 if len(valid) else validation
    n_valid, n_calib = held_out_sizes(len(rest), own_valid, calibration, n_test, gap)
    if gap is not None:
        parts = _in_time(n, (n_valid, n_calib, n_test), gap)
    else:
        drawn = np.split(rng.permutation(rest), np.cumsum([n_test, n_valid, n_calib]))
        parts = (
            drawn[3],
            valid if len(valid) else drawn[1],
            drawn[2],
            held_out if held_out is not None else drawn[0],
        )
    if limit is not None:
        if limit < 1:
            raise DataError(f"limit must be at least 1, got {limit}")
        parts = tuple(rng.permutation(part)[:limit] for part in parts)
    train, valid, calib, held_out = (np.sort(part) for part in parts)
    return train, valid, calib, held_out


def held_out_sizes(
    n: int, validation: float | int | None, calibration: float | int | None, n_test: int, gap: int | None = None
) -> tuple[int, int]:
    """Return the numbers of validation and calibration samples of n; raise DataError if they leave none to train on.

    Args:
        n: number of samples that are in no other split by the set's own partition.
        validation: as of `partition`.
        calibration: as of `partition`.
        n_test: number of test samples that are also drawn from them.
        gap: samples left out between parts.
    """
    n_valid = count_of(_default(n) if validation is None else validation, n, "validation")
    overlap = 1 if gap is None else gap + 1
    n_calib = count_of(_default_calibration(n, overlap) if calibration is None else calibration, n, "calibration")
    gaps = (gap or 0) * sum(part > 0 for part in (n_valid, n_calib, n_test))
    if n == 0 or n_valid + n_calib + n_test + gaps >= n:
        raise DataError(
            f"{n_valid} validation, {n_calib} calibration and {n_test} test data of {n} leave none to train on"
            + (f", as {gap} are left out between them: take shorter windows" if gaps else "")
        )
    return n_valid, n_calib


def check_enough(n: int, name: str = "X") -> None:
    """Raise a DataError if n samples are too few to learn from."""
    if n < LEAST_ROWS:
        raise DataError(
            f"{name}: n_samples={n}, expected at least {LEAST_ROWS} with a value, to learn from: p-values and "
            "intervals come from a comparison with held-out rows, and with so few they would be meaningless"
        )


def _in_time(n: int, sizes: tuple[int, int, int], gap: int) -> Parts:
    """Return blocks of n samples: parts of the given `sizes` at the end, each after a gap, and the rest before them."""
    stop, parts = n, []
    for size in reversed(sizes):
        parts.append(np.arange(stop - size, stop))
        stop -= size + (gap if size else 0)
    return (np.arange(stop), *reversed(parts))  # pyright: ignore[reportReturnType]


def _default(n: int) -> int:
    return 0 if n < LEAST_ROWS else min(round(DEFAULT_SHARE * n), MOST_HELD_OUT)


def _default_calibration(n: int, overlap: int) -> int:
    few = max(min(round(CALIBRATION_SHARE * n), CALIBRATION_DATA * overlap), min(FLAGGING, n // 3))
    return 0 if n < LEAST_ROWS else max(few, _default(n))


def count_of(share: float | int, n: int, what: str) -> int:
    """Return how many of n samples a share is: a fraction below 1, or a whole number."""
    if isinstance(share, bool) or not 0 <= share < max(n, 1) or (share >= 1 and share != int(share)):
        raise DataError(f"{what}={share!r}: expected a fraction from 0 to below 1, or a whole number below {n}")
    return int(share) if share >= 1 or share == 0 else max(1, round(share * n))
