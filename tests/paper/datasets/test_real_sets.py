"""The paper's data sets by name: listed, and read if they are on this machine."""

from __future__ import annotations

import numpy as np
import pytest
from narrow import as_a, sure

from lapae.data import DataError, data_sets, fetch, load


def test_the_sets_are_listed(small_mnist):
    listed = {entry.name: entry for entry in data_sets(small_mnist)}
    assert set(listed) == {"digits", "mnist", "fashion_mnist", "celeba"}
    assert {name for name, entry in listed.items() if entry.present} == {"digits", "mnist"}
    assert listed["celeba"].where == small_mnist / "celeba"


def test_celeba_is_fetched_by_hand(tmp_path):
    with pytest.raises(DataError, match="fetch it by hand"):
        fetch("celeba", tmp_path)
    with pytest.raises(DataError, match=r"mnits: no such file, folder or data set \(did you mean 'mnist'\?\)"):
        load("mnits")


@pytest.mark.parametrize(("name", "train_mean"), [("mnist", 0.1307), ("fashion_mnist", 0.2860)])
def test_real_mnist(real_data, name, train_mean):
    data = load(name, data_dir=real_data, calibration=0)
    assert (len(data.train), len(data.valid), len(data.test)) == (55000, 5000, 10000)
    assert data.shape == (1, 28, 28)
    train, valid, test = (as_a(np.ndarray, split.x) for split in (data.train, data.valid, data.test))
    whole = (train.sum(dtype=np.int64) + valid.sum(dtype=np.int64)) / 255 / 60000 / 784
    assert round(whole, 4) == train_mean
    if name == "mnist":
        assert round(test.mean() / 255, 4) == 0.1325
        assert sure(data.test.y)[:5].tolist() == [7, 2, 1, 0, 4]
    else:
        assert np.bincount(sure(data.test.y)).tolist() == [1000] * 10


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_checksums_are_those_of_the_real_files(real_data, name):
    assert fetch(name, real_data) == real_data / name


def test_real_celeba(real_data):
    if not (real_data / "celeba").is_dir():
        pytest.skip("CelebA is not on this machine")
    data = load("celeba", data_dir=real_data)
    total = len(data.train) + len(data.valid) + len(data.test)
    if total == 8000:  # the part that is made for tests; the whole set has 202,599
        assert (len(data.train), len(data.valid), len(data.test)) == (6400, 800, 800)
    assert data.shape == (3, 64, 64)
    assert len(sure(data.label_names)) == 40
    assert sure(data.train.y).shape == (len(data.train), 40)
    assert set(np.unique(sure(data.test.y))) == {0, 1}
    assert 0.3 < as_a(np.ndarray, data.test.x).mean() / 255 < 0.6
