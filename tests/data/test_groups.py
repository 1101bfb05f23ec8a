"""Rows that belong together lie in one split."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lapae import LaplacianAutoencoder
from lapae.data import Data, DataError
from lapae.data.groups import as_groups, linked

rng = np.random.default_rng(0)


def splits(data: Data) -> list[np.ndarray]:
    return [split.rows for split in (data.train, data.valid, data.calib, data.test) if split.rows is not None]


@pytest.mark.parametrize("frame", [False, True])
def test_groups_lie_in_one_split(frame):
    customer = rng.permutation(np.repeat([f"customer {i}" for i in range(60)], 5))
    x = rng.normal(size=(300, 2))
    data = Data.of(pd.DataFrame(x, columns=["a", "b"]) if frame else x, groups=customer, test=0.2)
    parts = splits(data)
    assert [len(rows) for rows in parts] == [5 * 23, 5 * 6, 19, 5 * 12]  # one of each group calibrates
    held = [set(customer[rows]) for rows in parts]
    assert [len(group) for group in held] == [23, 6, 19, 12]
    assert sum(map(len, held)) == len(set.union(*held))


def test_copies_of_rows_of_two_groups_hang_together():
    x = np.concatenate([rng.normal(size=(100, 3))] * 2)
    groups = np.concatenate([np.arange(100) // 2, 50 + np.arange(100) // 4])
    data = Data.of(x, groups=groups)
    for rows in splits(data):
        others = [part for part in splits(data) if part is not rows]
        assert not np.isin(groups[rows], groups[np.concatenate(others)]).any()
    assert len(np.unique(np.asarray(data.calib.x), axis=0)) == len(data.calib.x)


def test_linked():
    np.testing.assert_array_equal(linked(np.array([0, 0, 1, 2, 3]), np.array([0, 1, 1, 2, 3])), [0, 0, 0, 1, 2])


def test_labels_of_any_type():
    np.testing.assert_array_equal(as_groups(["b", None, "a", "b", None], 5), [0, 2, 1, 0, 3])
    np.testing.assert_array_equal(as_groups([2.5, np.nan, 1.0], 3), [0, 2, 1])
    assert as_groups(None, 3) is None


def test_what_is_refused():
    x = rng.normal(size=(40, 2))
    with pytest.raises(DataError, match=r"groups of shape \(39,\), expected one label for each of 40 rows"):
        Data.of(x, groups=np.arange(39))
    with pytest.raises(DataError, match="40 rows in 4 groups, expected at least 10"):
        Data.of(x, groups=np.arange(40) // 10)
    with pytest.raises(DataError, match="groups are for rows"):
        Data.of(x, groups=np.arange(40), window=4)


def test_p_values_hold_for_new_groups():
    """Each machine has a level of its own. Held-out rows of machines that were learned would look too usual."""
    generator = np.random.default_rng(1)
    level = generator.normal(size=(200, 8))
    rows = (level[:, None] + 0.05 * generator.normal(size=(200, 6, 8))).reshape(-1, 8)
    learned, new = rows[:600], rows[600:]
    rate = {}
    for name, groups in (("rows", None), ("groups", np.repeat(np.arange(100), 6))):
        model = LaplacianAutoencoder(random_state=0, epochs=3, device="cpu").fit(learned, groups=groups)
        rate[name] = (model.predict(new) == -1).mean()
    assert rate["rows"] > 0.3
    assert rate["groups"] < 0.15
