from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapae.data import DataError
from lapae.data.splits import partition

shares = st.one_of(st.none(), st.floats(0, 0.45), st.integers(0, 5))


@given(n=st.integers(12, 500), validation=shares, test=shares, seed=st.integers(0, 2**40))
def test_parts_are_disjoint_and_whole(n, validation, test, seed):
    parts = partition(n, validation=validation, test=test, seed=seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert len(parts[0]) > 0
    for part in parts:
        assert (np.diff(part) > 0).all()
    for part, again in zip(parts, partition(n, validation=validation, test=test, seed=seed), strict=True):
        np.testing.assert_array_equal(part, again)


def test_seeds_differ():
    assert not np.array_equal(partition(100, seed=0)[1], partition(100, seed=1)[1])


@pytest.mark.parametrize(
    ("n", "arguments", "sizes"),
    [
        (100, {}, (80, 10, 10)),
        (3, {}, (1, 1, 1)),
        (60000, {}, (49000, 5000, 6000)),
        (100, {"validation": 7, "test": 0.2}, (73, 7, 20)),
        (100, {"validation": 7.0, "test": 0}, (93, 7, 0)),
        (100, {"validation": 0, "test": 0}, (100, 0, 0)),
        (100, {"validation": 0.001, "test": 0.0}, (99, 1, 0)),
        (100, {"limit": 9}, (9, 9, 9)),
    ],
)
def test_sizes(n, arguments, sizes):
    assert tuple(map(len, partition(n, **arguments))) == sizes


def test_own_partition():
    own = np.array([0] * 50 + [2] * 20)
    train, valid, test = partition(70, own)
    assert (len(train), len(valid)) == (45, 5)
    assert train.max() < 50
    assert valid.max() < 50
    np.testing.assert_array_equal(test, np.arange(50, 70))
    own[:10] = 1
    for part, code in zip(partition(70, own, seed=5), (0, 1, 2), strict=True):
        np.testing.assert_array_equal(part, np.flatnonzero(own == code))


@pytest.mark.parametrize(
    ("n", "own", "arguments", "match"),
    [
        (2, None, {}, "at least 3"),
        (10, None, {"validation": 0.5, "test": 0.5}, "none to train on"),
        (10, None, {"validation": 1.0}, "none to train on"),
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
    if arguments.get("validation") == 1.0:
        arguments, n = {"validation": 1.0, "test": 2}, 3
    with pytest.raises(DataError, match=match):
        partition(n, own, **arguments)
