from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from narrow import as_a, sure

from lapae.data import DataError, data_sets, fetch, load
from lapae.data.digits import digits
from lapae.data.named import DATASETS, NamedSet
from lapae.data.source import Records
from lapae.registry import Entry


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
        ("digist", {}, r"digist: no such file, folder or data set \(did you mean 'digits'\?\)"),
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


@pytest.fixture
def letters(monkeypatch, tmp_path):
    """A set of one file that is fetched by hand, known to the registry; returns its folder, which is not there yet."""

    def read(folder, image_size=6):
        x = np.random.default_rng(0).integers(0, 256, (40, 1, image_size, image_size), dtype=np.uint8)
        return Records(name="letters", x=x)

    named = NamedSet(read, by_hand="Write to {folder}.", parts=("a.txt",), takes=frozenset({"image_size"}))
    monkeypatch.setitem(DATASETS, "letters", Entry("forty letters", named))
    return tmp_path / "letters"


def test_listing(letters):
    listed = {entry.name: entry for entry in data_sets(letters.parent)}
    assert next(iter(listed)) == "digits"
    assert {"digits", "letters"} <= set(listed)
    assert (listed["digits"].present, listed["digits"].where) == (True, None)
    assert (listed["letters"].present, listed["letters"].where) == (False, letters)
    assert listed["letters"].description == "forty letters"
    letters.mkdir()
    (letters / "a.txt").write_text("a")
    assert {entry.name: entry for entry in data_sets(letters.parent)}["letters"].present


def test_default_folder_is_in_the_home(letters):
    where = {entry.name: entry.where for entry in data_sets()}
    assert where["letters"] == Path("~/.cache/lapae/data/letters").expanduser()


def test_a_set_of_the_registry_is_read_with_the_options_it_takes(letters):
    with pytest.raises(DataError, match=rf"a\.txt not found\. Write to {re.escape(str(letters))}\."):
        load("letters", data_dir=letters.parent)
    letters.mkdir()
    (letters / "a.txt").write_text("a")
    assert load("letters", data_dir=letters.parent).shape == (1, 6, 6)
    assert load("letters", data_dir=letters.parent, image_size=4).shape == (1, 4, 4)
    with pytest.raises(DataError, match="letters: tile=3 is for folders"):
        load("letters", data_dir=letters.parent, tile=3)


def test_fetch_of_what_is_not_fetched(letters):
    assert fetch("digits", letters.parent) is None
    with pytest.raises(DataError, match="Write to"):
        fetch("letters", letters.parent)
    with pytest.raises(DataError, match="did you mean 'digits'"):
        fetch("digit", letters.parent)
