"""The sections of the report: what is unusual and why, errors beside PCA, calibration, charts, numbers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from narrow import as_a, sure
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lapae import LaplacianAutoencoder
from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.data import Data, Split
from lapae.data.deliveries import deliveries
from lapae.fit import fit, load_data
from lapae.predict.decode import encode_mean
from lapae.runs import Run
from lapae.space import Column, Space
from lapae.view.display import choose_display
from lapae.view.explore.explorer import Explorer, Options
from lapae.view.explore.uploads import read_upload
from lapae.view.latent_map import networks_of
from lapae.view.named_splits import NamedSplits
from lapae.view.report.calibration import calibration, verdict
from lapae.view.report.chart import histogram, p_histogram
from lapae.view.report.errors import by_pca, reconstruction
from lapae.view.report.page import _verdict, write_report
from lapae.view.report.planes import Operations, side_of
from lapae.view.report.unusual import most_unusual, score
from lapae.view.report.widths import verdict as width_verdict
from lapae.view.report.widths import widths
from lapae.view.verdicts import Verdicts

NAMES = ("mass", "width", "height", "depth", "age")


def rows(n: int = 400) -> Data:
    """Rows on a curve in units far from 1; test row 3 has a width that nothing else goes with."""
    generator = np.random.default_rng(0)
    t = generator.uniform(-1, 1, (n, 1))
    x = np.concatenate([t, t**2, np.sin(3 * t), 1 - t, np.cos(2 * t)], 1) + 0.03 * generator.standard_normal((n, 5))
    x = 100 + 10 * x
    x[353, 1] += 12
    index = np.split(np.arange(n), [250, 300, 350])
    space = Space.of(x[index[0]], columns=[Column(name) for name in NAMES], name="curve")
    train, valid, calib, test = (Split(x[part], None, part) for part in index)
    return Data(space, train, valid, calib, test)


@pytest.fixture(scope="module")
def made():
    config = Config(
        model=ModelConfig(hidden=(32,), latent_dim=1),
        method=MethodConfig.taking("online"),
        train=TrainConfig(epochs=150, batch_size=25, learning_rate=3e-3, verbose=False, device="cpu"),
    )
    data = rows()
    model = fit(config, data)
    splits = NamedSplits.of(data)
    verdicts = Verdicts(model)
    z = model.tensor(as_a(np.ndarray, splits.parts["train"].x))
    return verdicts, splits, choose_display(model, z, encode_mean(model.method, z).numpy())


def test_the_planted_row_is_first_and_its_column_is_named(made):
    verdicts, splits, display = made
    scores = score(verdicts, splits, 0)
    assert scores.complete
    assert len(scores.p) == 400
    first = most_unusual(verdicts, splits, display, scores, 3)[0]
    assert (first["id"], first["part"], first["index"]) == ("row 353", "test", 3)
    assert first["p"] == "0.02"  # 1 of 51
    assert first["values"][0]["name"] == "width"
    assert first["values"][0]["share"] > 50
    assert float(first["values"][0]["value"]) == pytest.approx(rows().test.x[3, 1], rel=1e-3)
    assert first["values"][0]["outside"]
    low, high = map(float, re.findall(r"[\d.]+", first["values"][0]["expected"]))
    odd, middle = rows().test.x[3, 1], (low + high) / 2  # the reconstruction goes after the odd value
    assert abs(middle - (odd - 12)) < abs(middle - odd)  # 12 less was there before
    assert 0.03 < (scores.p[scores.part == "validation"] <= 0.1).mean() < 0.2  # 50 data, compared with 50


def test_rows_are_flagged_at_the_rate_of_the_model(made):
    verdicts, splits, display = made
    assert verdicts.rate == 0.05
    scores = score(verdicts, splits, 0)
    held = scores.part == "validation"  # of complete rows the line of the chart says the same
    np.testing.assert_array_equal(scores.anomaly_score[held] > verdicts.threshold, scores.p[held] <= 0.05)
    assert most_unusual(verdicts, splits, display, scores, 1)[0]["rare"]  # p = 1 / 51
    config = verdicts.model.config
    other = Verdicts(
        replace(verdicts.model, config=replace(config, train=replace(config.train, false_alarm_rate=0.01)))
    )
    assert not most_unusual(other, splits, display, scores, 1)[0]["rare"]
    assert (other.rate, other.threshold) == (0.01, math.inf)


def test_a_sample_is_not_compared_with_itself(made):
    verdicts, splits, _ = made
    x = splits.parts["calibration"].x
    anomaly_score, p = verdicts.scores(x, itself=True)
    others = [(anomaly_score[np.arange(50) != i] >= anomaly_score[i]).sum() for i in range(50)]
    np.testing.assert_allclose(p, (1 + np.array(others)) / 50)


def test_errors_stand_beside_those_of_pca(made):
    verdicts, splits, display = made
    found = reconstruction(verdicts, splits, display, 0)
    assert [column["name"] for column in found["columns"]]
    assert {column["name"] for column in found["columns"]} == set(NAMES)
    ours, pca = (float(found["explained"][name][:-2]) for name in ("ours", "pca"))
    assert pca < ours <= 100
    assert found["verdict"].startswith(
        f"The model explains {ours:.0f} % of the variance, PCA with 1 component {pca:.0f}"
    )
    assert "test samples" in found["among"]


@pytest.mark.parametrize("n", [8, 60])
def test_pca_is_that_of_a_singular_value_decomposition(n):
    x = torch.randn(n, 3, 4, generator=torch.Generator().manual_seed(0))
    center = x.mean(0)
    _, _, axes = torch.linalg.svd((x - center).flatten(1), full_matrices=False)
    exact = center + ((x - center).flatten(1) @ axes[:2].T @ axes[:2]).reshape(x.shape)
    torch.testing.assert_close(by_pca(x, x, center, 2), exact, rtol=1e-3, atol=1e-3)


def test_calibration_is_measured_on_data_that_did_not_calibrate(made):
    verdicts, splits, _ = made
    found = calibration(verdicts, splits, 0)
    assert found is not None
    assert found["n"] == 50
    assert "test samples" in found["among"]
    inside = float(found["inside"][:-2]) / 100
    assert 0.8 < inside <= 1
    only = NamedSplits({"train": splits.parts["test"]})
    assert calibration(verdicts, only, 0) is None


def test_verdicts_in_words():
    assert verdict(0.91) == "Well calibrated: 90 % intervals contain 91 % of the values."
    assert verdict(0.7) == "Too sure of itself: 90 % intervals contain 70 % of the values."
    assert verdict(0.99) == "Too cautious: 90 % intervals contain 99 % of the values."


def test_histogram_holds_every_sample_or_says_how_many_are_beyond():
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.standard_normal(500), [1000.0, 2000.0]])
    found = histogram({"a": values, "b": np.array([np.nan])}, 2.0)
    assert found is not None
    assert list(found.bars) == ["a"]
    assert 2 <= found.beyond["a"] <= 10
    shares = [height / (found.frame.bottom - found.frame.top) * found.frame.up[1] for *_, height in found.bars["a"]]
    assert sum(shares) == pytest.approx(100 * (1 - found.beyond["a"] / 502), abs=1)
    assert found.mark == found.frame.x(2.0)
    assert histogram({"a": np.array([np.nan])}, 1.0) is None
    one = histogram({"a": np.array([3.0])}, math.inf)
    assert one is not None
    assert one.mark is None


def test_maps_are_decoded_as_the_model_predicts(made):
    model = made[0].model
    assert networks_of(model, None) is None
    assert networks_of(model, 7) == 7
    options = replace(model.config.method.options, predictive="mc", n_samples=100)
    drawn = replace(model, config=replace(model.config, method=replace(model.config.method, options=options)))
    assert networks_of(drawn, None) == 20


def test_maps_of_costly_networks_are_coarser():
    assert side_of(1e3, 1) == 32
    assert side_of(1e3, 3) == 16
    assert side_of(1e9, 1) == 8
    assert side_of(1e12, 6) == 8


def test_operations_are_counted_as_torch_counts_them():
    convolutions = [nn.Unflatten(1, (16, 1, 1)), nn.ConvTranspose2d(16, 8, 3), nn.Conv2d(8, 8, 2, groups=2)]
    attention = nn.TransformerEncoderLayer(4, 2, batch_first=True)
    network = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), *convolutions, nn.Flatten(2), attention).eval()
    with torch.no_grad(), Operations() as ours:
        network(torch.ones(2, 3))
    with torch.no_grad(), FlopCounterMode(display=False) as theirs:
        network(torch.ones(2, 3))
    assert ours.total == theirs.get_total_flops() > 0


def test_only_some_of_many_columns_are_shown_and_the_page_knows():
    t = np.random.default_rng(0).uniform(-1, 1, (200, 1))
    x = np.concatenate([np.random.default_rng(1).standard_normal((200, 30)), t @ np.ones((1, 10))], 1)
    space = Space.of(x)
    model: Any = type("Wide", (), {"space": space, "shape": space.model_shape})()
    display = choose_display(model, torch.from_numpy(space.convert(x)), t)
    assert len(display.features) == 24
    assert set(range(30, 40)) <= set(display.features.tolist())  # those that go with the code
    assert display.to_dict()["of"] == 40


def test_columns_of_several_kinds(tmp_path):
    generator = np.random.default_rng(0)
    n = 300
    city = generator.integers(0, 3, n)
    frame = pd.DataFrame(
        {
            "city": np.array(["Rome", "Oslo", "Lima"])[city],
            "member": generator.random(n) < 0.5,
            "joined": pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 900, n), unit="D"),
            "visits": generator.poisson(5 + 10 * city),
            "height": 1.5 + 0.2 * city + 0.02 * generator.standard_normal(n),
        }
    )
    model = LaplacianAutoencoder(epochs=5, random_state=0).fit(frame)
    frame.loc[7, "height"] = 3.0
    page = model.report(frame, path=tmp_path / "page.html").read_text("utf-8")
    assert '"words": ["' in page
    assert "row 7<" in page
    assert re.search(r"20\d\d-\d\d-\d\d to 20\d\d-\d\d-\d\d", page)
    assert "share of wrong ones" in page
    found = Explorer(
        model.model_, NamedSplits.given(model.model_.space.code(frame)), Options(points=50, side=4, draws=3)
    )
    item = found.item("given", 7)
    assert len(item["mean"]) == len(item["blame"]) == len(item["values"]) == 5
    assert np.argmax(item["blame"]) == 4
    frame.to_csv(tmp_path / "more.csv", index=False)
    upload = read_upload((tmp_path / "more.csv").read_bytes(), model.model_, 7)
    np.testing.assert_allclose(upload.stored, item["values"])
    stored = np.array(item["values"])
    stored[0] = np.nan
    assert all(sample[0] in (0, 1, 2) for sample in found.complete(stored, 0)["samples"])


def test_one_gross_error_is_not_all_of_the_variance(tmp_path):
    """New data with an outlier: PCA of these data would have learned it, and explained all but nothing else."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 2)) @ rng.normal(size=(2, 6)) + 0.1 * rng.normal(size=(500, 6))
    model = LaplacianAutoencoder(latent_dim=2, epochs=5, random_state=0, device="cpu").fit(x[:400])
    new = x[400:].copy()
    new[3, 2] = 1e3
    text = model.report(new, path=tmp_path / "report.html").read_text("utf-8")
    assert "that are unusual" in text
    words = sure(re.search(r"The model explains[^.]*", text))[0]
    assert min(map(int, re.findall(r"(\d+) %", words))) > 90


def test_a_verdict_in_words_knows_chance():
    """p-values that compare with few held-out samples vary together, so that more of them may be small by chance."""

    def said(rare: int, n: int, references: int) -> str:
        return _verdict({"n": n, "rare": rare, "level": 0.05, "references": references, "expected": "10"})

    assert said(10, 200, 1000).startswith("No more unusual samples than chance explains: 10 of 200")
    assert said(18, 200, 1000).startswith("More unusual")
    assert said(18, 200, 60).startswith("No more")
    assert said(0, 200, 1000).startswith("No more")


def test_p_values_of_normal_samples_are_level_with_their_line():
    chart = p_histogram(np.linspace(0.005, 0.995, 100))
    assert chart is not None
    assert len(chart.bars["p-values"]) == 10
    assert {y for _, y, _, _ in chart.bars["p-values"]} == {chart.mark}
    assert p_histogram(np.full(19, 0.5)) is None


def test_new_rows_are_shown_beside_held_out_ones_and_generated_rows_beside_the_data(tmp_path):
    known = deliveries(120, seed=0)
    known.insert(0, "id", [f"parcel {i}" for i in range(120)])
    known["depot"] = "north"
    model = LaplacianAutoencoder(epochs=2, random_state=0).fit(known)
    page = Path(model.report(known.head(40), path=tmp_path / "report.html")).read_text("utf-8")
    assert "held-out samples" in page
    assert 'href="#widths"' in page
    assert "each tenth of the range contains a tenth of them" in page
    assert "Columns that are not learned" in page
    assert "depot (always north)" in page
    assert page.count('<div class="bars">') == 8
    heights = [float(h) for h in re.findall(r'<[iu] style="height:([\d.]+)%"', page.partition('id="sampled"')[2])]
    assert max(heights) == 100
    assert len(heights) > 40


def test_intervals_of_given_rows_are_compared_with_those_of_held_out_ones(made):
    """Widths are those of `Model.interval`; rows beyond the end of the curve have wider ones."""
    verdicts, splits, display = made
    model, usual = verdicts.model, verdicts.calibration.held_out
    assert widths(verdicts, splits, display, 0) is None  # the samples of a run
    known = model.space.to_user(usual.double().numpy())
    t = np.linspace(2, 3, 50)[:, None]
    beyond = 100 + 10 * np.concatenate([t, t**2, np.sin(3 * t), 1 - t, np.cos(2 * t)], 1)
    found = {
        name: sure(widths(verdicts, NamedSplits.given(x), display, 0)) for name, x in (("as", known), ("far", beyond))
    }
    assert found["as"]["times"] == "1.0 times"
    assert found["as"]["verdict"].startswith("The model knows these samples as well")
    assert float(found["far"]["times"].split()[0]) > 1.5
    assert found["far"]["verdict"].startswith("These samples lie where the model knows less")
    assert int(found["far"]["beyond"].split()[0]) > int(found["as"]["beyond"].split()[0])
    assert found["far"]["lacking"] is None
    assert sure(widths(verdicts, NamedSplits.given(np.where(beyond > 120, np.nan, beyond)), display, 0))["lacking"]
    ends = {name: model.interval(x) for name, x in (("as", known), ("far", beyond))}
    for column, old, new, _ in found["far"]["columns"]:
        for shown, (low, high) in ((old, ends["as"]), (new, ends["far"])):
            width = np.median((high - low)[:, NAMES.index(column)])
            assert float(shown.replace(",", "")) == pytest.approx(width, rel=6e-3)
    assert "times as wide" in width_verdict(0.5)


def test_a_report_of_a_run_says_what_training_said(tmp_path):
    known = deliveries(150, seed=0)
    known.to_csv(tmp_path / "known.csv", index=False)
    config = Config(data=DataConfig(source=str(tmp_path / "known.csv")), train=TrainConfig(epochs=2, verbose=False))
    data = load_data(config.data)
    model = fit(config, data, run=Run.create(tmp_path / "run", name="run"))
    write_report(Run.open(tmp_path / "run"), model, data)
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert f"PCA: {100 * model.metrics['explained_by_pca']:.0f} %" in page
    assert f"<dd>{100 * model.metrics['explained']:.0f} %</dd>" in page
