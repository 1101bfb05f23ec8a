"""Columns of a table that are not learned: where they stand in new data, and that a constant has changed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lapae.data import Data, DataError, load, open_input
from lapae.space import Space
from lapae.space.constants import others
from lapae.space.frames import SHOWN

ALL: dict[str, Any] = {"validation": 0, "calibration": 0, "test": 0}
SAID = "columns that were constant in training are not judged"


def frame_of(n: int = 40, **constants: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=n), **constants, "c": rng.normal(size=n)})


def learned(frame: pd.DataFrame, **options: Any) -> Space:
    with pytest.warns(UserWarning, match="columns that are left out"):
        return Data.of(frame, **ALL, **options).space


def codes(path, space: Space) -> np.ndarray:
    return np.concatenate([block.x for block in open_input(path, space).blocks(lambda n: None)])


@pytest.mark.parametrize(
    ("value", "same", "other"),
    [
        ("7", [7, 7.0, "7", "7.00", " 7", "7e0"], [8, "8", "seven", 7.001]),
        ("0.1", [0.1, "0.1", "0.10"], [np.float32(0.1) * 2, "0,1"]),
        ("True", [True, "true", "TRUE"], [False, "no"]),
        ("EUR", ["EUR", "eur", " EUR "], ["USD", 1]),
        ("1_000", ["1_000"], [1000, "1000"]),
        ("2024-01-01", ["2024-01-01", pd.Timestamp("2024-01-01")], [pd.Timestamp("2024-01-02"), "2023-01-01"]),
        ("2024-01-01 00:00:00", ["2024-01-01", pd.Timestamp("2024-01-01")], ["2024-01-01 00:00:01"]),
    ],
)
def test_what_is_another_value(value, same, other):
    missing = [None, np.nan, "", "n/a"]
    series = pd.Series([*same, *missing, *other], dtype=object)
    assert others(series, value).index.tolist() == list(range(len(same) + len(missing), len(series)))
    assert not len(others(pd.Series(missing, dtype=object), value))


@pytest.mark.parametrize("constant", [7, 0.1, True, "EUR", pd.Timestamp("2024-01-01")])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_constant_that_stays_is_quiet_and_one_that_changes_is_told(tmp_path, constant, suffix):
    frame = frame_of(unit=constant)

    def written(name: str, table: pd.DataFrame):
        path = tmp_path / f"{name}.{suffix}"
        table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path, index=False)
        return path

    path = written("t", frame)
    with pytest.warns(UserWarning, match=r"'unit' \(constant\)"):
        space = load(path, **ALL).space
    assert list(space.left_out) == ["unit"]
    assert Space.from_dict(space.to_dict()) == space
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = codes(path, space)
        np.testing.assert_array_equal(space.code(frame), x)
        space.code(frame.drop(columns="unit"))
        space.code(frame.assign(unit=None))
    other = frame.assign(unit=frame["unit"].astype(object))
    other.loc[[5, 9], "unit"] = "broken"
    other["unit"] = other["unit"].astype(str)
    row = "row 7" if suffix == "csv" else "row 6"
    with pytest.warns(UserWarning, match=rf"{SAID}: 'unit' was always '.*', now also 'broken' \(first in {row}\)"):
        np.testing.assert_array_equal(codes(written("new", other), space), x)
    with pytest.warns(UserWarning, match=r"now also 'broken' \(first in row 5 \(from 0\)\)"):
        space.code(other)


def test_a_decimal_comma(tmp_path):
    frame = frame_of(unit=0.5)
    frame.to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",")
    with pytest.warns(UserWarning, match="left out"):
        space = load(tmp_path / "t.csv", **ALL).space
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes(tmp_path / "t.csv", space)
    frame.assign(unit=0.25).to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
    with pytest.warns(UserWarning, match=r"'unit' was always '0.5', now also '0.25'"):
        codes(tmp_path / "new.csv", space)


def test_of_many_other_values_a_few_are_kept_and_shown():
    frame = frame_of(300, unit="m", kind=["x", "y"] * 150)
    space = learned(frame)
    with pytest.warns(UserWarning, match="now also|not seen") as told:
        space.code(frame.assign(unit=[f"u{i:03}" for i in range(300)], kind=[f"k{i:03}" for i in range(300)]))
    unknown, constant = (str(warning.message) for warning in told)
    assert unknown.count("'k0") == constant.count("'u0") == SHOWN
    assert " …" in unknown
    assert " …" in constant


@pytest.mark.parametrize("constant", [0, 1, 2])
@pytest.mark.parametrize("header", [False, True])
def test_a_table_without_names_is_read_with_and_without_what_is_not_learned(tmp_path, constant, header):
    """A file that a model was trained on can be scored, whichever column is left out."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    x[:, constant] = 7
    np.savetxt(tmp_path / "t.csv", x, delimiter=",")
    with pytest.warns(UserWarning, match=rf"'{constant}' \(constant\)"):
        space = load(tmp_path / "t.csv", **ALL).space
    x = x[:5]

    def write(table: np.ndarray):
        names = ",".join("uvw"[: table.shape[1]]) if header else ""
        np.savetxt(tmp_path / "new.csv", table, "%.17g", ",", header=names, comments="")
        return tmp_path / "new.csv"

    kept = np.delete(x, constant, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(codes(write(x), space), kept)
        np.testing.assert_array_equal(codes(write(kept), space), kept)
    x[3, constant] = 8
    line = 4 + header
    with pytest.warns(UserWarning, match=rf"'{constant}' was always '7', now also '8' \(first in row {line}\)"):
        np.testing.assert_array_equal(codes(write(x), space), kept)
    with pytest.raises(DataError, match="1 columns, the model takes 2 features"):
        codes(write(x[:, :1]), space)


def test_an_index_before_a_table_without_names(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3))
    x[:, 1] = 7
    np.savetxt(tmp_path / "t.csv", x, delimiter=",")
    with pytest.warns(UserWarning, match="left out"):
        space = load(tmp_path / "t.csv", **ALL).space
    pd.DataFrame(x).to_csv(tmp_path / "new.csv", header=["u", "v", "w"])
    np.testing.assert_array_equal(codes(tmp_path / "new.csv", space), x[:, [0, 2]])


def test_an_index_that_had_a_name_where_the_columns_had_numbers(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    space = learned(pd.DataFrame({"id": range(40), "0": x[:, 0], "1": x[:, 1]}))
    assert space.left_out == {"id": None}
    pd.DataFrame({"id": range(40), "u": x[:, 0], "v": x[:, 1]}).to_csv(tmp_path / "new.csv", index=False)
    np.testing.assert_array_equal(codes(tmp_path / "new.csv", space), x)


def test_the_labels_of_a_table_without_names_may_come_along(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    (tmp_path / "t.csv").write_text("".join(f"{a},{b},{'pq'[i % 2]}\n" for i, (a, b) in enumerate(x)))
    space = load(tmp_path / "t.csv", label_column=-1, **ALL).space
    assert space.left_out == {"2": None}
    np.testing.assert_array_equal(codes(tmp_path / "t.csv", space), x)


def test_a_channel_that_stands_still_in_training(tmp_path):
    frame = frame_of(60, pressure=3.0)
    space = learned(frame, window=6)
    assert space.kind == "series"
    assert space.left_out == {"pressure": "3"}
    frame.loc[11:, "pressure"] = 4.0
    frame.to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(UserWarning, match=r"'pressure' was always '3', now also '4.0' \(first in row 13\)"):
        codes(tmp_path / "new.csv", space)


@pytest.mark.parametrize("lie", [{"unit": 7}, {"unit": ["m"]}, ["unit"], 3])
def test_a_file_that_lies_is_refused(lie):
    said = learned(frame_of(unit="m")).to_dict()
    with pytest.raises((TypeError, ValueError)):
        Space.from_dict(said | {"left_out": lie})


def test_models_of_before_have_no_such_columns():
    said = learned(frame_of(unit="m")).to_dict()
    del said["left_out"]
    assert Space.from_dict(said).left_out == {}
