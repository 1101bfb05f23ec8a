"""`lapae.mapper` says what the model says, in the schema that it promises; what it cannot do is refused."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from people import people

import lapae
from lapae.arrow import mapper as module
from lapae.cli import main
from lapae.errors import ConfigError, DataError, RunError
from lapae.model import Model
from lapae.storage import IMPUTER
from lapae.view.reasons import find_reasons


@pytest.fixture(scope="module")
def frame():
    return people(50, 1)


@pytest.fixture(scope="module")
def rows(frame):
    return pa.Table.from_pandas(frame, preserve_index=False)


@pytest.fixture(scope="module")
def model(runs):
    return Model.load(runs / "online", allow_nan=True)


def test_scores_are_those_of_the_model(runs, model, rows, frame):
    found = lapae.mapper(runs / "online", false_alarm_rate=0.2).table(rows).to_pandas()
    scores, p = model.anomaly_score(frame)
    np.testing.assert_allclose(found["anomaly_score"], scores, atol=2e-6)
    np.testing.assert_allclose(found["p_value"], p, atol=1e-12)
    assert found["outlier"].tolist() == (p <= 0.2).tolist()
    assert 0 < found["outlier"].sum() < len(found)


def test_reasons_are_those_of_the_model(runs, model, rows, frame):
    found = lapae.mapper(runs / "online", explain=True).table(rows).to_pandas()
    reasons = find_reasons(model, model.space.code(frame))
    told = reasons.feature >= 0
    assert found["feature"].notna().tolist() == told.tolist()
    assert found["feature"][told].tolist() == [model.space.names[i] for i in reasons.feature[told]]
    np.testing.assert_allclose(found["share"][told], reasons.share[told], rtol=1e-6)
    weight = (found["feature"] == "weight").to_numpy()
    assert weight.any()
    expected, low, high = model.counterfactual(frame)
    j = model.space.names.index("weight")
    for name, values in (("expected", expected), ("low", low), ("high", high)):
        np.testing.assert_allclose(found[name][weight].astype(float), values[weight, j], rtol=1e-6)
    np.testing.assert_allclose(found["value"][weight].astype(float), frame["weight"][weight], rtol=1e-6)


def test_imputed_rows_keep_what_was_there(runs, model, rows, frame):
    mapper = lapae.mapper(runs / "online", "impute", level=0.8)
    found = mapper.table(rows).to_pandas()
    filled = model.space.uncode(model.impute(frame))
    low, high = model.impute_interval(frame, 0.8)
    for i, column in enumerate(model.space.columns):
        there = frame[column.name].notna()
        assert found[column.name][there].tolist() == frame[column.name][there].tolist()
        assert found[column.name].notna().all()
        if column.name in ("height", "weight"):
            np.testing.assert_allclose(found[column.name], filled[column.name], rtol=1e-6)
            np.testing.assert_allclose(found[f"{column.name}_low"], low[:, i], rtol=1e-6)
            np.testing.assert_allclose(found[f"{column.name}_high"], high[:, i], rtol=1e-6)
    assert found["city"][frame["city"].isna()].isin(["Ulm", "Bonn", "Köln"]).all()
    assert "age_low" in found
    assert "city_low" not in found


def test_written_numbers_and_truth_values_are_filled_in(tmp_path):
    n = np.arange(80.0)
    frame = pd.DataFrame({"price": [f"€ {value:,.2f}" for value in 20 * n], "size": n, "big": n > 40})
    model = lapae.LaplacianAutoencoder(random_state=0, epochs=1, device="cpu").fit(frame)
    model.save(tmp_path / "run")
    frame = frame.astype({"big": object})
    frame.loc[3, "price"] = frame.loc[5, "big"] = None
    rows = pa.Table.from_pandas(frame, preserve_index=False)
    found = lapae.mapper(tmp_path / "run", "impute").table(rows).to_pandas()
    filled = model.model_.impute(frame)[3, 0]
    np.testing.assert_allclose(found["price"], np.where(n == 3, filled, 20 * n), rtol=1e-6)
    assert found["price_low"][3] <= filled <= found["price_high"][3]
    assert np.delete(found["big"].to_numpy(), 5).tolist() == np.delete(n > 40, 5).tolist()
    assert found["big"][5] in (True, False)
    (tmp_path / "new").mkdir()
    frame.to_csv(tmp_path / "new" / "a.csv", index=False)
    assert (
        main(["impute", str(tmp_path / "run"), str(tmp_path / "new"), "--level", "0.9", "--out", str(tmp_path / "out")])
        == 0
    )
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out"), found)


def test_means_are_those_of_the_model(runs, model, rows, frame):
    mapper = lapae.mapper(runs / "online", "impute", level=None, guess="mean")
    found = mapper.table(rows).to_pandas()
    filled = model.impute(frame, guess="mean")
    for i, column in enumerate(model.space.columns):
        if column.kind in ("number", "count"):
            assert pa.types.is_floating(mapper.schema.field(column.name).type)
            np.testing.assert_allclose(found[column.name].astype(float), filled[:, i], rtol=1e-6)


def test_codes_are_those_of_the_model(runs, model, rows, frame):
    found = lapae.mapper(runs / "online", "embed").table(rows).to_pandas().to_numpy()
    np.testing.assert_allclose(found, np.concatenate(model.encode(frame), 1), rtol=1e-9, atol=1e-12)


def test_reconstructions_are_those_of_the_model(runs, model, rows, frame):
    found = lapae.mapper(runs / "online", "reconstruct", level=0.5).table(rows).to_pandas()
    j = model.space.names.index("weight")
    np.testing.assert_allclose(found["weight"], model.reconstruct(frame)[0][:, j], rtol=1e-6)
    for name, end in zip(("weight_low", "weight_high"), model.interval(frame, 0.5), strict=True):
        np.testing.assert_allclose(found[name], end[:, j], rtol=1e-6)


def test_a_row_with_nothing_observed_has_no_score(runs, rows):
    empty = pa.Table.from_pylist([{}, {"age": 40}], rows.schema)
    found = lapae.mapper(runs / "online", explain=True).table(empty)
    assert found["anomaly_score"].is_null().to_pylist() == [True, False]
    assert found["outlier"].is_null().to_pylist() == [True, False]
    filled = lapae.mapper(runs / "online", "impute").table(empty)
    assert filled["weight"].null_count == 0
    assert filled["age"].to_pylist()[1] == 40


def test_it_is_pickled_by_path_and_loaded_once(runs, rows, monkeypatch):
    mapper = lapae.mapper(runs / "online")
    packed = pickle.dumps(mapper)
    assert len(packed) < 5000
    monkeypatch.setattr(module, "_models", {})
    loads = []
    load = module.load_for_new_data
    monkeypatch.setattr(module, "load_for_new_data", lambda run: loads.append(run) or load(run))
    one, two = pickle.loads(packed), pickle.loads(packed)
    assert one.table(rows).equals(two.table(rows))
    assert one.schema.equals(mapper.schema)
    assert loads == [runs / "online"]


def test_another_model_at_the_path_is_refused(runs, rows, tmp_path, monkeypatch):
    shutil.copytree(runs / "online", tmp_path / "run")
    mapper = lapae.mapper(tmp_path / "run")
    shutil.copy(runs / "vae" / "model.safetensors", tmp_path / "run" / "model.safetensors")
    monkeypatch.setattr(module, "_models", {})
    with pytest.raises(RunError, match="is not the run that the mapper was made from"):
        mapper.table(rows)


def test_a_run_without_an_imputer_gets_one_when_the_mapper_is_made(runs, rows, tmp_path):
    shutil.copytree(runs / "online", tmp_path / "run")
    (tmp_path / "run" / IMPUTER).unlink(missing_ok=True)
    mapper = lapae.mapper(tmp_path / "run", "impute")
    assert (tmp_path / "run" / IMPUTER).exists()
    assert mapper.table(rows).equals(lapae.mapper(runs / "online", "impute").table(rows))


def test_frames_keep_their_index_and_have_the_promised_types(runs, frame):
    mapper = lapae.mapper(runs / "online", "impute", keep={"id": pa.string()})
    found = mapper.frame(frame.set_axis(range(7, 57)))
    assert found.index.tolist() == list(range(7, 57))
    pd.testing.assert_series_equal(found.dtypes, mapper.empty_frame.dtypes)
    pd.testing.assert_series_equal(mapper.frame(frame[:0]).dtypes, mapper.empty_frame.dtypes)


def test_columns_may_come_in_other_types_and_order(runs, rows):
    other = rows.set_column(1, "age", rows["age"].cast(pa.float32()))
    other = other.set_column(4, "city", rows["city"].dictionary_encode())
    other = other.set_column(6, "day", rows["day"].cast(pa.date32())).select(other.schema.names[::-1])
    mapper = lapae.mapper(runs / "online")
    assert mapper.table(other).equals(mapper.table(rows))


def test_decimals_are_the_nearest_floating_point_numbers(runs, rows):
    weights = [None if weight is None else Decimal(f"{weight:.2f}") for weight in rows["weight"].to_pylist()]
    exact = pa.array([None if weight is None else float(weight) for weight in weights])
    decimals, floats = (rows.set_column(3, "weight", of) for of in (pa.array(weights, pa.decimal128(9, 2)), exact))
    mapper = lapae.mapper(runs / "online", "impute")
    assert mapper.table(decimals).equals(mapper.table(floats))


@pytest.mark.parametrize(
    ("verb", "options", "message"),
    [
        ("discoveries", {}, "depends on all p-values together"),
        ("sample", {}, "generated"),
        ("scor", {}, "did you mean 'score'"),
        ("score", {"level": 0.9}, "score has no option 'level'"),
        ("score", {"false_alarm_rate": 2}, "between 0 and 1"),
        ("impute", {"level": 1.0}, "between 0 and 1"),
        ("impute", {"guess": "mode"}, "expected 'median' or 'mean'"),
        ("score", {"keep": {"anomaly_score": pa.int64()}}, "columns 'anomaly_score' of its own"),
        ("score", {"keep": ["id"]}, "names with pyarrow types"),
    ],
)
def test_what_cannot_be_mapped_is_refused(runs, verb, options, message):
    with pytest.raises(ConfigError, match=message):
        lapae.mapper(runs / "online", verb, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop_columns(["age"]), "has no column 'age'"),
        (lambda rows: rows.drop_columns(["id"]), "has no column 'id' to keep"),
        (lambda rows: rows.set_column(1, "age", pa.array([[1]] * 50)), "'age' is of type list"),
        (lambda rows: rows.set_column(1, "age", pa.array(["old"] * 50)), "'old' is not a number"),
        (lambda rows: rows.set_column(2, "height", pa.array([np.inf] * 50)), "column 'height': an infinite value"),
    ],
)
def test_rows_that_do_not_fit_are_refused(runs, rows, change, message):
    with pytest.raises(DataError, match=message):
        lapae.mapper(runs / "online", keep={"id": pa.string()}).table(change(rows))


def test_new_categories_are_warned_of_once(runs, rows):
    other = rows.set_column(4, "city", pa.array(["Rom"] * 50))
    mapper = lapae.mapper(runs / "online")
    with pytest.warns(UserWarning, match="not seen in training .*'Rom'") as seen:
        list(mapper(other.to_batches(max_chunksize=10)))
    assert len(seen) == 1


def test_images_are_no_rows(tmp_path):
    from lapae import LaplacianAutoencoder

    x = np.random.default_rng(0).random((60, 4, 4)).astype(np.float32)
    LaplacianAutoencoder(latent_dim=2, epochs=1).fit(x).save(tmp_path / "run")
    with pytest.raises(ConfigError, match="takes rows of a table"):
        lapae.mapper(tmp_path / "run")


def test_importing_lapae_does_not_import_pyarrow():
    code = "import lapae, sys; dir(lapae); assert 'pyarrow' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_narrow_rows_are_worked_on_in_larger_chunks():
    """Rows of which the same values are hidden go together: more rows at a time, fuller blocks."""
    from lapae.arrow.mapper import CHUNK, VALUES, _chunks

    for width, values, size in ((4, VALUES, VALUES // 4), (200, VALUES, CHUNK), (4, 0, CHUNK)):
        batch = pa.RecordBatch.from_arrays([pa.nulls(CHUNK, pa.int8())] * width, names=[f"c{i}" for i in range(width)])
        found = [chunk.num_rows for chunk in _chunks([batch] * 40, values)]
        assert sum(found) == 40 * CHUNK
        assert set(found[:-1]) == {size}
