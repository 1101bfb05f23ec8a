"""Levels that no row has had: rarer than every one that some row has, and named."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import lapae
from lapae import LaplacianAutoencoder
from lapae.cli import main
from lapae.score.unseen import Contradictions, Unseen
from lapae.space import Column, Space
from lapae.space.columns import UNSEEN

COLUMNS = (
    Column("age"),
    Column("sex", "category", ("female", "male")),
    Column("member", "boolean"),
    Column("town", "category", ("a", "b", "c", "d"), carried=0),
)


def people(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sex = rng.choice(["female", "male"], n)
    height = rng.normal(165, 6, n) + 12 * (sex == "male")
    town = np.char.add("t", rng.geometric(0.2, n).astype(str))  # some towns are those of one row
    weight = 0.6 * height - 35 + rng.normal(0, 4, n)
    return pd.DataFrame({"sex": sex, "height": height, "weight": weight, "town": town, "member": rng.random(n) < 0.5})


@pytest.fixture(scope="module")
def fitted() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(random_state=0, device="cpu", epochs=2).fit(people(300, 0))


def test_levels_are_counted_over_all_rows():
    train = np.array([[1.0, 0, 0, 0], [2, 0, 1, 1], [3, 1, 1, np.nan]])
    calib = np.array([[1.0, 1, np.nan, 2]])
    unseen = Unseen.fit(COLUMNS, [train, calib])
    assert unseen is not None
    assert unseen.features.tolist() == [1, 3, -1]  # the network does not see towns
    # 4 rows, no level of one alone; 3 rows, one alone; 3 rows, three alone: new ones come often
    np.testing.assert_allclose(unseen.surprise, [np.log(6), 0, 0])
    np.testing.assert_array_equal(unseen.among(calib)[0], [1, 1, np.nan, UNSEEN])
    np.testing.assert_array_equal(unseen.marked(calib), calib)
    new = unseen.marked(np.array([[1.0, UNSEEN, 0, 3]]))
    np.testing.assert_array_equal(
        new, [[1, UNSEEN, 0, UNSEEN]]
    )  # a level without a row is as new as one without a code
    surprises = unseen.surprises(new)
    np.testing.assert_allclose(surprises, [[np.log(6), 0, 0]])
    import torch

    hidden = torch.tensor([[0.0, torch.nan, torch.nan, 0.0]])
    np.testing.assert_allclose(unseen.total(surprises, hidden), 0)
    np.testing.assert_allclose(unseen.total(surprises, hidden.nan_to_num()), np.log(6))
    assert Unseen.fit(COLUMNS[:1], [train[:, :1]]) is None


def test_levels_that_contradict_another_column_are_counted_in_held_out_rows():
    told = replace(COLUMNS[1], given_by="town", implied=((0.0, 1.0), (2.0, 0.0)))
    usual = replace(COLUMNS[2], given_by="sex", implied=((0.0, 1.0), (1.0, 0.0)))  # and often another
    columns = (COLUMNS[0], told, usual, COLUMNS[3])
    train = np.array([[1.0, 0, 0, 0]] * 9)  # what was looked at to find what goes with what does not count
    calib = np.array([[1.0, 1, 1, 0], [1, 0, 0, 2], [1, np.nan, 0, 0], [1, 1, 0, 1], [1, UNSEEN, 1, 0]])
    rules = Contradictions.fit(columns, [train, calib])
    assert rules is not None
    assert (rules.columns.tolist(), rules.sources.tolist(), rules.features.tolist()) == ([1], [3], [[1, -1]])
    np.testing.assert_allclose(rules.surprise, [np.log(4)])  # none of two rows
    rows = np.array(
        [[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 1], [1, UNSEEN, 0, 0], [1, np.nan, 0, 0], [1, 0, 0, np.nan]]
    )
    np.testing.assert_allclose(rules.surprises(rows)[:, 0], np.log(4) * np.array([1, 0, 0, 0, 0, 0]))
    unseen = Unseen.fit(columns, [train, calib])
    assert unseen is not None
    assert (unseen.blamed.tolist(), unseen.needed.tolist()[-1]) == ([1, 2, 3, 1], [1, -1])
    surprises = unseen.surprises(rows[:1])
    import torch

    hidden = torch.tensor([[0.0, torch.nan, 0.0, 0.0]])
    np.testing.assert_allclose(unseen.total(surprises, hidden), 0)
    np.testing.assert_allclose(unseen.total(surprises, hidden.nan_to_num()), np.log(4))
    assert Contradictions.fit(COLUMNS, [train]) is None


@pytest.mark.filterwarnings("ignore:.*not seen in training")
def test_a_level_that_contradicts_another_column_is_found_named_and_exported(tmp_path):
    def offices(n: int, seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        town = rng.integers(0, 30, n)  # a number in the network, of which it learns no more than an order
        side = np.array(["east", "north", "west"])[town * 7 % 3]
        tax = np.round(np.cos(town), 2)
        return pd.DataFrame({"town": [f"t{i}" for i in town], "side": side, "tax": tax, "a": rng.normal(size=n)})

    model = LaplacianAutoencoder(random_state=0, device="cpu", epochs=2).fit(offices(400, 0))
    rows = offices(100, 1)
    wrong = rows.assign(side=rows["side"].replace({"east": "west", "north": "east", "west": "north"}))
    assert (model.p_value(wrong) <= 0.05).mean() >= 0.9
    assert (model.p_value(rows) <= 0.05).mean() <= 0.15
    assert model.reasons(wrong)["feature"].isin(["side", "town"]).mean() >= 0.9
    assert (model.score_parts(wrong)["unseen"] > 0).all()
    assert not model.score_parts(wrong.assign(town=None))["unseen"].any()
    taxed = rows.assign(tax=rows["tax"].to_numpy()[::-1])
    other = taxed["tax"] != rows["tax"]
    assert (model.p_value(taxed)[other] <= 0.05).mean() >= 0.9
    np.testing.assert_array_equal(model.score_parts(taxed)["unseen"] > 0, other)
    low, high = model.impute_interval(rows.assign(tax=np.nan))  # what is determined is sure
    np.testing.assert_array_equal(np.stack([low["tax"], high["tax"]]), np.stack([rows["tax"]] * 2))
    np.testing.assert_array_equal(model.impute(rows.assign(tax=np.nan))["tax"], rows["tax"])
    model.save(tmp_path / "run")
    both = rows[:20].assign(side=[*rows["side"][:10], *wrong["side"][10:20]], tax=taxed["tax"])
    np.testing.assert_array_equal(LaplacianAutoencoder.load(tmp_path / "run").p_value(both), model.p_value(both))
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    from lapae_runtime import Detector

    model.export(tmp_path / "model.onnx")
    found = Detector.load(tmp_path / "model.onnx").score(both.to_dict("records"), reasons=1)
    np.testing.assert_allclose(found.p_value, model.p_value(both), atol=2e-2)
    np.testing.assert_allclose(found.anomaly_score, -model.score_samples(both), rtol=1e-2, atol=1e-3)


def test_of_two_values_that_contradict_each_other_the_one_that_is_wrong_is_named():
    def trips(n: int, seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        zone = rng.integers(0, 30, n)
        far = 10 * (zone % 3) + rng.normal(size=n)
        borough = np.array(["east", "north", "west"])[zone % 3]
        return pd.DataFrame({"zone": [f"z{i}" for i in zone], "borough": borough, "far": far, "fare": 2 * far + 1})

    model = LaplacianAutoencoder(random_state=0, device="cpu", epochs=5).fit(trips(600, 0))
    rows = trips(60, 1)
    elsewhere = rows["borough"].replace({"east": "west", "north": "east", "west": "north"})
    zones = rows["zone"].str[1:].astype(int).add(1).mod(30)
    for name, wrong in (("borough", elsewhere), ("zone", "z" + zones.astype(str))):
        found = model.reasons(rows.assign(**{name: wrong}))
        assert (found["feature"] == name).mean() >= 0.9
        assert (found["value"] == wrong)[found["feature"] == name].all()
        assert (found["expected"] != wrong)[found["feature"] == name].all()


def test_the_network_gets_none_of_the_levels():
    space = Space("table", (4,), columns=COLUMNS)
    np.testing.assert_array_equal(space.convert(np.array([[5, UNSEEN, UNSEEN, UNSEEN]])), [[5, 0, 0, 0.5]])
    numbered = replace(COLUMNS[1], values=(-1.0, 1.0))
    space = Space("table", (2,), columns=(COLUMNS[0], numbered))
    np.testing.assert_array_equal(space.convert(np.array([[5, UNSEEN], [5, 1]])), [[5, 0], [5, 1]])


def test_a_new_level_is_found_and_named(fitted):
    rows = people(60, 1)
    wrong = rows.assign(sex="femle")
    with pytest.warns(UserWarning, match="not seen in training \\('sex': 'femle'"):
        assert (fitted.p_value(wrong) <= 0.05).mean() >= 0.8
    assert (fitted.p_value(rows) <= 0.05).mean() <= 0.15
    with pytest.warns(UserWarning, match="not seen"):
        reasons = fitted.reasons(wrong.set_index(np.arange(60) + 100))
    assert reasons.index[0] == 100
    assert (reasons["feature"] == "sex").mean() >= 0.9
    named = reasons[reasons["feature"] == "sex"].iloc[0]
    assert named["value"] == "femle"
    assert named["unseen"] == "sex: femle was never seen; seen: female, male"
    assert named["expected"] in ("female", "male")
    with pytest.warns(UserWarning, match="not seen"):
        parts = fitted.score_parts(rows.assign(member="perhaps", town="t1"))
    np.testing.assert_allclose(parts["unseen"], np.log(302))  # none of 300 rows has a level of its own
    assert fitted.impute(wrong.assign(height=np.nan))["sex"].eq("femle").all()  # what is there stays


def test_towns_of_one_row_are_no_surprise(fitted):
    calibration = fitted.model_.calibration
    surprise = dict(zip(["sex", "town", "member"], calibration.unseen.surprise.tolist(), strict=True))
    assert people(300, 0)["town"].value_counts().eq(1).sum() >= 3
    assert (surprise["town"], surprise["sex"]) == (0, pytest.approx(np.log(302)))


def test_new_levels_are_a_surprise_in_the_columns_where_they_come_least_often():
    columns = [Column(name, "category", tuple(f"{i}" for i in range(8))) for name in "abc"]
    rows = np.zeros((1000, 3))
    for j, alone in enumerate((6, 2, 4)):  # 0.6, 0.2 and 0.4 % of the rows have a level of their own
        rows[:alone, j] = np.arange(1, alone + 1)
    unseen = Unseen.fit(columns, [rows])
    assert unseen is not None
    np.testing.assert_allclose(unseen.surprise, [0, np.log(1002 / 3), np.log(1002 / 5)])


def test_as_missing():
    model = LaplacianAutoencoder(random_state=0, device="cpu", epochs=2, unseen="missing").fit(people(120, 0))
    rows = people(20, 1)
    with pytest.warns(UserWarning, match="not seen"):
        found = model.p_value(rows.assign(sex="femle"))
    np.testing.assert_array_equal(found, model.p_value(rows.assign(sex=None)))
    with pytest.raises(lapae.errors.ConfigError, match="unseen"):
        LaplacianAutoencoder(unseen="odd").fit(people(120, 0))


@pytest.mark.filterwarnings("ignore:.*not seen in training")
def test_files_batches_and_loaded_models_agree(fitted, tmp_path):
    pa = pytest.importorskip("pyarrow")
    fitted.save(tmp_path / "run")
    rows = people(30, 2)
    rows.loc[:4, "sex"] = "femle"
    p = fitted.p_value(rows)
    np.testing.assert_array_equal(LaplacianAutoencoder.load(tmp_path / "run").p_value(rows), p)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "scores.csv"
    assert main(["score", str(tmp_path / "run"), str(tmp_path / "rows.csv"), "--explain", "--out", str(out)]) == 0
    with out.open() as file:
        scored = list(csv.DictReader(file))
    np.testing.assert_allclose([float(row["p_value"]) for row in scored], p)
    assert [row["row"] for row in scored[:2]] == ["2", "3"]  # lines of the file: no column names the rows
    assert (scored[0]["value"], scored[0]["feature"]) == ("femle", "sex")
    assert scored[0]["unseen"] == "sex: femle was never seen; seen: female, male"
    assert not scored[9]["unseen"]
    batches = lapae.mapper(tmp_path / "run", explain=True).table(pa.Table.from_pandas(rows)).to_pylist()
    np.testing.assert_allclose([row["p_value"] for row in batches], p)
    for row, batch in zip(scored, batches, strict=True):
        assert (row["feature"] or None, row["value"] or None, row["unseen"] or None) == (
            *(batch["feature"], batch["value"]),
            batch["unseen"],
        )


@pytest.mark.filterwarnings("ignore:.*not seen in training")
def test_exported_graphs_agree(fitted, tmp_path):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    from lapae_runtime import Detector

    fitted.export(tmp_path / "model.onnx")
    rows = people(20, 3)
    rows.loc[:4, "sex"], rows.loc[5:8, "town"] = "femle", "t99"
    found = Detector.load(tmp_path / "model.onnx").score(rows.to_dict("records"), reasons=1)
    np.testing.assert_allclose(found.p_value, fitted.p_value(rows), atol=2e-3)
    np.testing.assert_allclose(found.anomaly_score, -fitted.score_samples(rows), rtol=1e-3, atol=1e-3)
    assert (found.reasons[0][0].column, found.reasons[0][0].value) == ("sex", "never seen")
