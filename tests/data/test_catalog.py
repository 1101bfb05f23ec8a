from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from narrow import as_a, sure

from lapae.data import DataError, data_sets, fetch, load
from lapae.data.digits import digits


def test_digits():
    data = load("digits")
    assert (data.space.name, data.kind, data.shape) == ("digits", "image", (1, 8, 8))
    assert (len(data.train), len(data.valid), len(data.calib), len(data.test)) == (1255, 162, 200, 180)
    z = data.space.convert(as_a(np.ndarray, data.train.x))
    assert (z.min(), z.max(), z.dtype) == (0, 1, np.float32)
    assert set(sure(data.train.y)) == set(range(10))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_digits_are_those_of_scikit_learn(monkeypatch, elsewhere):
    """Read from the file of the package, or by it where the file is not where it was."""
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    if elsewhere:
        monkeypatch.setattr("lapae.data.digits.FILE", "nowhere.csv.gz")
    x, y = digits.__wrapped__()
    np.testing.assert_array_equal(x.reshape(-1, 64), pixels)
    np.testing.assert_array_equal(y, classes)
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)


def test_splits_follow_the_seed():
    one, same, other = load("digits", seed=3), load("digits", seed=3), load("digits", seed=4)
    np.testing.assert_array_equal(one.valid.x, same.valid.x)
    assert not np.array_equal(one.valid.x, other.valid.x)


def test_limit():
    data = load("digits", limit=20)
    assert (len(data.train), len(data.valid), len(data.test)) == (20, 20, 20)
    assert len(sure(data.train.y)) == 20


@pytest.mark.parametrize(
    ("source", "options", "match"),
    [
        ("mnits", {}, r"mnits: no such file, folder or data set \(did you mean 'mnist'\?\)"),
        ("nowhere/a.npy", {}, r"nowhere/a\.npy: no such file"),
        (Path("digits"), {}, "no such file"),
        ("digits", {"label_column": "y"}, "label_column='y' is for tables"),
        ("digits", {"image_size": 32}, "image_size=32 is for folders"),
        ("digits", {"validation": 1797}, "digits: validation=1797"),
    ],
)
def test_what_cannot_be_loaded(source, options, match):
    with pytest.raises(DataError, match=match):
        load(source, **options)


def test_file_of_an_unknown_kind(tmp_path):
    (tmp_path / "a.pkl").write_text("")
    with pytest.raises(DataError, match=r"a\.pkl: expected a file that ends in .csv"):
        load(tmp_path / "a.pkl")


def test_a_data_error_is_a_value_error():
    assert issubclass(DataError, ValueError)


def test_listing(tmp_path, small_mnist):
    listed = {entry.name: entry for entry in data_sets(small_mnist)}
    assert list(listed) == ["digits", "mnist", "fashion_mnist", "celeba"]
    assert [entry.present for entry in listed.values()] == [True, True, False, False]
    assert listed["celeba"].where == small_mnist / "celeba"


def test_default_folder_is_in_the_home():
    assert data_sets()[1].where == Path("~/.cache/lapae/data/mnist").expanduser()


def test_fetch_of_what_is_not_fetched(tmp_path):
    assert fetch("digits", tmp_path) is None
    with pytest.raises(DataError, match="fetch it by hand"):
        fetch("celeba", tmp_path)
    with pytest.raises(DataError, match="did you mean 'mnist'"):
        fetch("mnis", tmp_path)


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
