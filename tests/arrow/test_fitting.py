"""One model for each key: the same bytes in whatever order rows come; keys that fail are named."""

from __future__ import annotations

import pickle
from inspect import getfullargspec
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from people import people

import lapae
from lapae.errors import ConfigError, DataError
from lapae.runs import MODEL

QUICK = {"epochs": 2, "latent_dim": 2}


def shops(n: int = 60) -> pd.DataFrame:
    """Rows of four shops; one has too few rows."""
    frame = people(3 * n + 4, 0).drop(columns=["id", "city", "member"])
    return frame.assign(shop=["A/1"] * n + ["b b"] * n + [None] * n + ["few"] * 4)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    fitter = lapae.fit_mapper(tmp_path_factory.mktemp("runs"), "shop", **QUICK)
    rows = shops()
    return fitter, rows, fitter(rows)


def test_a_run_for_each_key_and_a_reason_for_the_others(fitted):
    fitter, rows, found = fitted
    assert list(found.columns) == fitter.schema.names
    assert found.dtypes.equals(fitter.empty_frame.dtypes)
    told = found.set_index(found["shop"].fillna("none"))
    assert told["rows"].to_dict() == {"A/1": 60, "b b": 60, "none": 60, "few": 4}
    assert "expected at least 10" in told["error"]["few"]
    assert told["error"].notna().sum() == 1
    assert pd.isna(told["run"]["few"])
    assert not fitter.run_of("few").exists()
    for name, key in (("A/1", "A/1"), ("b b", "b b"), ("none", None)):
        assert told["run"][name] == str(fitter.run_of(key))
        model = lapae.LaplacianAutoencoder.load(fitter.run_of(key))
        assert list(model.learned_columns_) == ["age", "height", "weight", "day"]
        own = rows[rows["shop"].isna() if key is None else rows["shop"] == key]
        assert len(model.p_value(own)) == 60
    assert {path.name for path in fitter.out.iterdir()} == {"shop=A%2F1", "shop=b b", "shop=__HIVE_DEFAULT_PARTITION__"}


def test_the_order_of_rows_and_keys_does_not_matter(fitted, tmp_path):
    fitter, rows, _ = fitted
    again = pickle.loads(pickle.dumps(lapae.fit_mapper(tmp_path, "shop", **QUICK)))
    mixed = rows.iloc[np.random.default_rng(1).permutation(len(rows))]
    for _, one in mixed.groupby("shop"):
        again.frame(one)
    for key in ("A/1", "b b"):
        assert (again.run_of(key) / MODEL).read_bytes() == (fitter.run_of(key) / MODEL).read_bytes()


def test_columns_of_arrow_s_types_are_learned_as_those_of_a_file(tmp_path):
    """Ray hands over frames of Arrow's types, Dask its own text: a run would remember them."""
    rows = people(60, 0).drop(columns="id").assign(shop="A", member=lambda x: x["member"].astype(object))
    rows["age"] = rows["age"].astype(float)
    rows.loc[3, "age"] = np.nan
    plain, odd = (lapae.fit_mapper(tmp_path / name, "shop", **QUICK) for name in ("plain", "odd"))
    table = pa.Table.from_pandas(rows, preserve_index=False)
    plain.frame(table.to_pandas())
    of_arrow = table.set_column(0, "age", table["age"].cast(pa.int64())).to_pandas(types_mapper=pd.ArrowDtype)
    assert odd.frame(of_arrow)["error"].isna().all()
    assert (odd.run_of("A") / MODEL).read_bytes() == (plain.run_of("A") / MODEL).read_bytes()


def test_a_worker_that_was_lost_is_done_again(fitted):
    """Engines repeat a task whose worker died, perhaps after it had written a run."""
    fitter, rows, _ = fitted
    one = rows[rows["shop"] == "b b"]
    before = (fitter.run_of("b b") / MODEL).read_bytes()
    assert fitter(one)["error"].isna().all()
    assert (fitter.run_of("b b") / MODEL).read_bytes() == before


def test_several_keys_and_no_rows(tmp_path):
    rows = shops().assign(year=[2023, 2024] * 92)
    rows = rows[rows["shop"].isin(["A/1"])]
    fitter = lapae.fit_mapper(tmp_path, ["shop", "year"], **QUICK)
    assert fitter(rows)["year"].tolist() == ["2023", "2024"]
    assert fitter.run_of("A/1", 2024) == tmp_path / "shop=A%2F1" / "year=2024"
    assert (fitter.run_of("A/1", 2024) / MODEL).exists()
    assert len(fitter(rows[:0])) == 0


def test_spark_hands_over_a_frame_without_its_key():
    """Spark gives (key, frame) to functions of two arguments, and counts `self`."""
    assert len(getfullargspec(lapae.fit_mapper("runs", "shop")).args) == 1


def test_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no option 'epoch'.*epochs"):
        lapae.fit_mapper(tmp_path, "shop", epoch=3)
    wrong: list[Any] = [[], [3], "rows"]
    for key in wrong:
        with pytest.raises(ConfigError, match="expected names of columns"):
            lapae.fit_mapper(tmp_path, key)
    with pytest.raises(DataError, match="no column 'shop'"):
        lapae.fit_mapper(tmp_path, "shop")(people(20, 0))
