from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapae.data import Data, DataError
from lapae.data.splits import partition

shares = st.one_of(st.none(), st.floats(0, 0.25), st.integers(0, 3))


@given(n=st.integers(12, 500), validation=shares, calibration=shares, test=shares, seed=st.integers(0, 2**40))
def test_parts_are_disjoint_and_whole(n, **options):
    parts = partition(n, **options)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert len(parts[0]) > 0
    for part in parts:
        assert (np.diff(part) > 0).all()
    for part, again in zip(parts, partition(n, **options), strict=True):
        np.testing.assert_array_equal(part, again)


def test_seeds_differ():
    assert not np.array_equal(partition(100, seed=0)[1], partition(100, seed=1)[1])


@pytest.mark.parametrize(
    ("n", "arguments", "sizes"),
    [
        (100, {}, (70, 10, 20, 0)),
        (100, {"test": 0.1}, (60, 10, 20, 10)),
        (9, {}, (9, 0, 0, 0)),
        (10, {}, (6, 1, 3, 0)),
        (57, {}, (32, 6, 19, 0)),
        (1000, {}, (700, 100, 200, 0)),
        (1500, {}, (1150, 150, 200, 0)),
        (4000, {}, (3200, 400, 400, 0)),
        (90000, {}, (80000, 5000, 5000, 0)),
        (100, {"validation": 7, "calibration": 0, "test": 0.2}, (73, 7, 0, 20)),
        (100, {"validation": 7.0, "calibration": 0, "test": 0}, (93, 7, 0, 0)),
        (100, {"validation": 0, "calibration": 0, "test": 0}, (100, 0, 0, 0)),
        (100, {"validation": 0.001, "calibration": 0.001, "test": 0.0}, (98, 1, 1, 0)),
        (100, {"limit": 9, "test": 0.1}, (9, 9, 9, 9)),
    ],
)
def test_sizes(n, arguments, sizes):
    assert tuple(map(len, partition(n, **arguments))) == sizes


def test_own_partition():
    own = np.array([0] * 50 + [2] * 20)
    train, valid, calib, test = partition(70, own)
    assert (len(train), len(valid), len(calib)) == (29, 5, 16)
    assert max(part.max() for part in (train, valid, calib)) < 50
    np.testing.assert_array_equal(test, np.arange(50, 70))
    own[:10] = 1
    train, valid, calib, test = partition(70, own, seed=5)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, calib])), np.arange(10, 50))
    np.testing.assert_array_equal(valid, np.arange(10))
    np.testing.assert_array_equal(test, np.arange(50, 70))


@pytest.mark.parametrize(
    ("n", "own", "arguments", "match"),
    [
        (0, None, {}, "none to train on"),
        (10, None, {"validation": 0.5, "test": 0.5}, "none to train on"),
        (3, None, {"validation": 1.0, "test": 2}, "none to train on"),
        (10, None, {"validation": 1.5}, "validation=1.5"),
        (10, None, {"test": -0.1}, "test=-0.1"),
        (10, None, {"test": 10}, "test=10"),
        (10, None, {"test": True}, "test=True"),
        (10, None, {"validation": float("nan")}, "validation=nan"),
        (10, None, {"limit": 0}, "limit"),
        (10, None, {"seed": -1}, "seed"),
        (3, np.array([0, 0, 2]), {"test": 0.1}, "test split of its own"),
        (3, np.array([0, 1, 2]), {"validation": 0.1}, "validation split of its own"),
        (2, np.array([1, 2]), {}, "no training data"),
    ],
)
def test_impossible(n, own, arguments, match):
    with pytest.raises(DataError, match=match):
        partition(n, own, **arguments)


def test_in_time_with_gaps():
    train, valid, calib, test = partition(100, validation=10, calibration=5, test=5, gap=3)
    assert (train[0], train[-1], len(train)) == (0, 70, 71)
    np.testing.assert_array_equal(valid, np.arange(74, 84))
    np.testing.assert_array_equal(calib, np.arange(87, 92))
    np.testing.assert_array_equal(test, np.arange(95, 100))
    train, valid, _, test = partition(100, validation=10, calibration=0, test=0, gap=3)
    assert (train[-1], valid[0], valid[-1], len(test)) == (86, 90, 99, 0)
    with pytest.raises(DataError, match="as 40 are left out between them"):
        partition(100, gap=40)


def test_windows_that_overlap_count_as_one_row():
    """A record of 335 windows that share no step has a fifth held out, whether these are cut once or eight times."""
    assert len(partition(335, gap=0)[2]) == 67
    assert len(partition(8 * 335, gap=7)[2]) == 8 * 67
    assert len(partition(8 * 1500, gap=7)[2]) == 8 * 200
    assert len(partition(8 * 335)[2]) == 268


def test_rows_without_a_value_are_left_out():
    x = np.random.default_rng(0).standard_normal((60, 3))
    x[::2] = np.nan
    with pytest.warns(UserWarning, match="nothing observed in 30 of 60 rows, the first is row 0"):
        data = Data.of(x, np.arange(60) % 2)
    for split in (data.train, data.valid, data.calib):
        assert split.rows is not None
        assert (split.rows % 2 == 1).all()
        np.testing.assert_array_equal(split.x, x[split.rows])
        np.testing.assert_array_equal(split.y, np.ones(len(split)))
    assert sum(map(len, (data.train, data.valid, data.calib))) == 30
