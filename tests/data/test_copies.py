"""Copies of rows are told from rows that are equal by chance, and lie in one split."""

from __future__ import annotations

import numpy as np
import pytest

from lapae.data import Data
from lapae.data.copies import copied
from lapae.errors import DataError


def normal(n: int, d: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def test_groups_are_those_of_equal_rows():
    x = normal(50)
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(50), 3))
    groups = copied(x[order])
    assert groups is not None
    assert groups.max() == 49
    for group in range(50):
        assert len(np.unique(order[groups == group])) == 1


def test_missing_values_and_signs_of_zero_are_equal():
    x = normal(40)
    x[:, 1] = np.nan
    x[0, 0], again = 0.0, x.copy()
    again[0, 0] = -0.0
    groups = copied(np.concatenate([x, again]))
    assert groups is not None
    np.testing.assert_array_equal(groups[:40], groups[40:])


@pytest.mark.parametrize("n", [30, 300, 3000])
def test_equal_by_chance(n):
    rng = np.random.default_rng(n)
    assert copied(rng.integers(1, 7, (n, 2)).astype(float)) is None  # dice
    assert copied(rng.integers(0, 3, (n, 3)).astype(float)) is None
    assert copied(np.round(rng.normal(40, 12, (n, 1)))) is None  # ages
    assert copied(normal(n)) is None


def test_few_profiles_are_no_copies():
    """A product's code, name and price occur together as often as it is sold."""
    profiles = normal(30, 3)
    assert copied(profiles[np.random.default_rng(0).integers(0, 30, 1000)]) is None


def test_some_of_many_rows():
    x = normal(2000)
    x[-7:] = x[:7]
    groups = copied(x)
    assert groups is not None
    np.testing.assert_array_equal(groups[-7:], groups[:7])
    assert groups.max() == 1992


def test_copies_lie_in_one_split_and_calibrate_once():
    rows = np.repeat(normal(100), 5, 0)
    data = Data.of(rows, test=0.1)
    parts = [{row.tobytes() for row in np.asarray(part.x)} for part in (data.train, data.valid, data.calib, data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 100
    assert [len(part.x) for part in (data.train, data.valid, data.calib, data.test)] == [300, 50, 20, 50]
    np.testing.assert_array_equal(np.asarray(data.train.x), rows[data.train.rows])


def test_copies_of_too_few_rows_are_refused():
    with pytest.raises(DataError, match="20 rows, of which only 4 differ"):
        Data.of(np.repeat(normal(4), 5, 0))


def test_a_table_of_coarse_values_five_times_over():
    """No value is a row's own, but almost every row has copies."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, k, 300) for k in (2, 3, 8, 12, 9, 20)], 1).astype(float)
    assert copied(x) is None
    groups = copied(np.repeat(x, 5, 0))
    assert groups is not None
    assert groups.max() + 1 < 350
