"""Rows that belong together lie in one split."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from lapae import LaplacianAutoencoder
from lapae.cli import main
from lapae.data import Data, DataError
from lapae.data import load as load_data
from lapae.data.groups import as_groups, linked
from lapae.data.inspect import look

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


@pytest.fixture
def visits() -> pd.DataFrame:
    """Visits of 60 patients; nobody noted whose the last two were."""
    generator = np.random.default_rng(2)
    frame = pd.DataFrame(generator.normal(size=(302, 3)).round(4), columns=["weight", "pulse", "age"])
    patients = generator.permutation(np.repeat([f"P{i:02}" for i in range(60)], 5))
    frame.insert(1, "patient", [*patients, None, None])
    return frame


@pytest.mark.parametrize("which", ["patient", "1", -3])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_of_a_file_splits_as_groups_of_a_frame(visits, tmp_path, which, suffix):
    path = tmp_path / f"visits.{suffix}"
    visits.to_csv(path, index=False) if suffix == "csv" else visits.to_parquet(path, index=False)
    data = load_data(path, group_column=which)
    assert data.space.names == ("weight", "pulse", "age")
    assert data.n_groups == 62  # visits of nobody known are groups of their own
    same = Data.of(visits.drop(columns="patient"), groups=visits["patient"])
    for ours, theirs in zip(splits(data), splits(same), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("large", [False, True])
def test_a_column_of_a_folder_of_parquet(visits, tmp_path, monkeypatch, large):
    """Also of files that would be streamed without groups."""
    monkeypatch.setattr("lapae.data.stream.LARGE", 100 if large else 2**25)
    for i in (0, 1):
        visits[151 * i :][:151].to_parquet(tmp_path / f"{i}.parquet", index=False)
    found = splits(load_data(tmp_path, group_column="patient"))
    for ours, theirs in zip(found, splits(load_data(tmp_path, group_column="1")), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    patients = [set(visits["patient"][rows].dropna()) for rows in found]
    assert sum(map(len, patients)) == len(set.union(*patients)) == 60


def test_long_numbers_of_groups_are_exact(tmp_path):
    """Beside an empty cell they would be read as floating-point numbers, and four of them as one."""
    rows = [f"{2**60 + i // 2},{rng.normal()},{rng.normal()}" for i in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["who,a,b", *rows, ",1,2"]))
    assert load_data(tmp_path / "t.csv", group_column="who", test=0.2).n_groups == 41


def test_what_is_refused_of_a_group_column(visits, tmp_path):
    path = tmp_path / "visits.csv"
    visits.to_csv(path, index=False)
    with pytest.raises(DataError, match=r"no column 'pateint'.*; it has weight, patient, pulse, age"):
        load_data(path, group_column="pateint")
    with pytest.raises(DataError, match="groups are for rows; windows are split by time"):
        load_data(path, group_column="patient", window=4)
    with pytest.raises(DataError, match="group_column='patient' is for tables"):
        load_data("digits", group_column="patient")
    visits.assign(patient=np.arange(302) % 5).to_csv(path, index=False)
    with pytest.raises(DataError, match="302 rows in 5 groups, expected at least 10"):
        load_data(path, group_column="patient")
    np.save(tmp_path / "x.npy", visits[["weight", "pulse"]].to_numpy())
    with pytest.raises(DataError, match="group_column='patient' is for tables"):
        load_data(tmp_path / "x.npy", group_column="patient")


def test_a_look_says_what_the_groups_are(visits, tmp_path):
    visits.to_csv(tmp_path / "visits.csv", index=False)
    found = look(tmp_path / "visits.csv", group_column="patient")
    of = {column["name"]: (column["kind"], column["content"]) for column in found.columns}
    assert of["patient"] == ("group", "62 groups of rows, each in one split")
    assert not found.notes


def machines(n: int, seed: int) -> pd.DataFrame:
    """Six rows of each of n machines, which have a level of their own."""
    generator = np.random.default_rng(seed)
    rows = (generator.normal(size=(n, 1, 8)) + 0.05 * generator.normal(size=(n, 6, 8))).reshape(-1, 8)
    return pd.DataFrame(rows, columns=list("abcdefgh")).assign(machine=np.repeat([f"M{i}" for i in range(n)], 6))


def test_commands_hold_out_whole_groups(tmp_path, monkeypatch, capfd):
    """New machines are flagged at the false alarm rate, and their file need not say which machine is which."""
    monkeypatch.chdir(tmp_path)
    machines(100, 1).to_csv("old.csv", index=False)
    machines(100, 2).drop(columns="machine").to_csv("new.csv", index=False)
    rate, quick = {}, ["--epochs", "3", "--device", "cpu"]
    for name, flags in (("rows", ["--drop", "machine"]), ("groups", ["--group-column", "machine"])):
        assert main(["train", "old.csv", *flags, *quick, "--out", name]) == 0
        said = capfd.readouterr().err
        assert ("100 groups of rows, each in one split" in said) == (name == "groups")
        assert main(["score", name, "new.csv", "--json", "--out", "scores.csv"]) == 0
        rate[name] = pd.read_csv("scores.csv")["outlier"].mean()
        capfd.readouterr()
    assert rate["rows"] > 0.3
    assert rate["groups"] < 0.15
    assert 'group_column = "machine"' in (tmp_path / "groups" / "config.toml").read_text()
    assert main(["train", "--config", "groups/config.toml", "--print-config"]) == 0
    assert 'group_column = "machine"' in capfd.readouterr().out
    assert main(["score", "groups", "old.csv", "--out", "scores.csv"]) == 0
    assert "machine" in pd.read_csv("scores.csv").columns  # copied
    assert main(["data", "old.csv", "--group-column", "machine", "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["columns"][-1]["kind"] == "group"


def test_p_values_hold_for_new_groups():
    """Held-out rows of machines that were learned would look too usual."""
    learned, new = (machines(100, seed).drop(columns="machine").to_numpy() for seed in (1, 2))
    rate = {}
    for name, groups in (("rows", None), ("groups", np.repeat(np.arange(100), 6))):
        model = LaplacianAutoencoder(random_state=0, epochs=3, device="cpu").fit(learned, groups=groups)
        rate[name] = (model.predict(new) == -1).mean()
    assert rate["rows"] > 0.3
    assert rate["groups"] < 0.15
