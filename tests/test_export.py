"""The exported graph says what the model says."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from narrow import as_a, sure
from sklearn.datasets import load_digits
from sklearn.utils import Bunch
from torch import nn

import lapae
from lapae import LaplacianAutoencoder
from lapae.calibrate.calibration import hidden_in_turn, in_blocks, mean_score
from lapae.errors import ConfigError
from lapae.export import OPSET, OUTPUTS, Codes, Pipeline, can_export
from lapae.posterior import LowRankPrecision
from lapae.predict.prediction import numpy
from lapae.space import Column
from lapae.space.columns import Spans
from lapae_runtime import Detector, InputError

onnx = pytest.importorskip("onnx", reason="exporting needs the extra lapae[export]")
pytest.importorskip("onnxscript", reason="exporting needs the extra lapae[export]")
if not can_export():
    pytest.skip("export needs a later release of torch", allow_module_level=True)
runtime = pytest.importorskip("onnxruntime", reason="running an exported graph needs onnxruntime")


def small_conv() -> tuple[nn.Module, nn.Module]:
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))
    decoder = nn.Sequential(
        *(nn.Linear(3, 64), nn.Tanh(), nn.Unflatten(1, (4, 4, 4)), nn.Upsample(scale_factor=2)),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1)),
    )
    return encoder, decoder


def frame(n: int = 400) -> pd.DataFrame:
    """Columns of every kind; in every other row values are missing."""
    rng = np.random.default_rng(0)
    t = rng.uniform(-1, 1, n)
    found = pd.DataFrame(
        {
            "sine": 100 + 10 * np.sin(2 * t) + 0.3 * rng.standard_normal(n),
            "shade": np.where(t < -0.4, "dark", np.where(t > 0.4, "light", "middling")),
            "cube": 7 + t**3 + 0.1 * rng.standard_normal(n),
            "up": t > 0,
            "calls": rng.poisson(20 + 10 * t),
            "day": pd.Timestamp("2024-02-01") + pd.to_timedelta((100 * t).round(), unit="D"),
            "size": pd.Categorical(np.where(t < 0, "s", "l")),
        }
    )
    hidden = (rng.random(found.shape) < 0.2) & (np.arange(n) % 2 == 1)[:, None]
    return found.astype({"up": object}).mask(hidden).astype({"up": "boolean", "calls": "Int64"})


KINDS = {"frame": (frame, None), "images": (lambda: as_a(Bunch, load_digits()).images[:400] / 16, small_conv)}


@pytest.fixture(scope="module", params=KINDS)
def exported(request, tmp_path_factory):
    """A model, new data, and the file."""
    data, network = KINDS[request.param]
    x = data()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = None if network is None else network()
    how = {"network": own, "predictive": "moments", "random_state": 0, "epochs": 4, "device": "cpu"}
    model = LaplacianAutoencoder(**how).fit(x[:300])
    file = tmp_path_factory.mktemp("exported") / "model.onnx"
    model.export(file)
    return model, x[300:], file


RATE, LEVEL = np.array(0.05, np.float32), np.array(0.9, np.float32)


def check_says(found: dict[str, np.ndarray], model: LaplacianAutoencoder, new: Any, *, lacking: bool = True) -> None:
    """Assert that the outputs of a graph are what the model says of new data.

    Of missing values and of their rows, what it says before it fills in and compares as it does complete rows; not
    `lacking`: their scores aside, which in a table of few different values turn on the last bit of a reconstruction.
    """
    coded = model.model_.space.code(new)
    observed = ~np.isnan(coded)
    whole = observed.reshape(len(coded), -1).all(1)
    low, high = model.model_.interval(new, 0.9)
    z, z_std = model.transform(new, return_std=True)
    expected = {"reconstruction": model.model_.reconstruct(new)[0], "low": low, "high": high}
    expected = {name: np.where(observed, value, found[name]) for name, value in expected.items()}
    for name, value in (expected | {"code": z, "code_deviation": z_std}).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4 * np.abs(value).max(), err_msg=name)
    x = model.model_.tensor(new)
    score = -model.score_samples(new)
    np.testing.assert_allclose(
        found["anomaly_score"][whole], score[whole], atol=1e-3 * np.abs(score[whole]).max(initial=0)
    )
    assert np.sum(np.abs(found["p_value"] - model.p_value(new))[whole] < 0.02) >= 0.98 * whole.sum()
    if lacking:
        known = sure(model.model_.calibration)
        _, masks, weights = known.reference.alike(torch.zeros(x[0].numel(), dtype=torch.bool))
        scores = in_blocks(known.rank(model.model_.predict), hidden_in_turn(x, masks))
        raw = numpy(mean_score(scores, weights))
        line = np.polyfit(raw[whole], score[whole], 1)  # complete rows tell what makes scores comparable
        np.testing.assert_allclose(found["anomaly_score"], np.polyval(line, raw), atol=2e-3 * np.abs(score).max())
    np.testing.assert_array_equal(found["flag"], found["p_value"] <= RATE)


def test_prices_of_32_bits_are_scored_as_those_of_64():
    rng = np.random.default_rng(0)
    size = rng.lognormal(0, 0.6, 400)
    x = np.stack([size, 10 * size * rng.lognormal(0, 0.1, 400)], 1).round(2)
    model = LaplacianAutoencoder(random_state=0, epochs=2, device="cpu").fit(x[:300])
    with torch.no_grad():
        score = Pipeline(model.model_).eval()(torch.from_numpy(x[300:]).float(), torch.tensor(0.05), torch.tensor(0.9))[
            6
        ]
    np.testing.assert_allclose(score, -model.score_samples(x[300:]), atol=1e-4)


def test_the_graph_says_what_the_model_says(exported):
    model, new, file = exported
    session = runtime.InferenceSession(file)
    coded = model.model_.space.code(new).astype(np.float32)
    inputs = {"x": coded, "rate": RATE, "level": LEVEL}
    found = dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))
    check_says(found, model, new)
    empty = np.concatenate([coded[:2], np.full_like(coded[:1], np.nan)])
    score, p, flag = session.run(["anomaly_score", "p_value", "flag"], inputs | {"x": empty})
    np.testing.assert_array_equal(np.isnan(score), [False, False, True])
    np.testing.assert_array_equal(np.isnan(p), [False, False, True])
    assert not flag[2]
    one = session.run(["anomaly_score"], inputs | {"x": coded[:1]})[0]
    np.testing.assert_allclose(one, found["anomaly_score"][:1], rtol=1e-3)  # any number of data
    graph = onnx.load(file)
    onnx.checker.check_model(graph, full_check=True)
    assert {entry.domain: entry.version for entry in graph.opset_import}[""] == OPSET
    about = json.loads({entry.key: entry.value for entry in graph.metadata_props}["lapae"])
    assert about["shape"] == list(coded.shape[1:])
    assert about["kind"] == model.model_.space.kind
    assert about["version"] == lapae.__version__
    if about["kind"] == "table":
        by_hand = codes_by_the_metadata(new, about)
        np.testing.assert_allclose(by_hand, model.model_.space.code(new), atol=1e-9)


def codes_by_the_metadata(new: pd.DataFrame, about: dict[str, Any]) -> np.ndarray:
    """Codes as docs/deploy.md has them made, without lapae."""
    columns = []
    for name, kind in zip(about["columns"], about["kinds"], strict=True):
        column: Any = new[name]
        if name in about["categories"]:
            codes = column.map({word: float(i) for i, word in enumerate(about["categories"][name])})
        elif kind == "date":
            codes = (column - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
        else:
            codes = column
        columns.append(codes.astype("Float64").to_numpy(float, na_value=np.nan))
    return np.stack(columns, 1)


COLUMNS = {
    "a table of numbers": frame()[["sine", "cube"]].to_numpy(float),
    "categories alone": frame()[["shade", "size"]],
    "one category": frame()[["shade"]],
    "many levels": frame()[["sine", "size"]].assign(street=[f"street {i % 30}" for i in range(400)]),
    "one column": frame()[["sine"]],
    "booleans": frame()[["up", "size"]],
    "dates": frame()[["day", "up"]],
    "30 % missing": frame().mask(np.random.default_rng(1).random((400, 7)) < 0.3)[["sine", "cube", "day", "calls"]],
    "mostly missing": frame().mask(np.random.default_rng(1).random((400, 7)) < 0.9)[["sine", "shade", "cube"]],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_any_table_goes_through_the_pipeline(name):
    """The graph is recorded from it, which takes seconds; the module itself says the same."""
    x = COLUMNS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what these tables lack
        model = LaplacianAutoencoder(random_state=0, epochs=1, device="cpu").fit(x[:300])
        pipeline = Pipeline(model.model_).eval()
        coded = torch.from_numpy(model.model_.space.code(x[300:]).astype(np.float32))
        with torch.no_grad():
            found = pipeline(coded, torch.from_numpy(RATE), torch.from_numpy(LEVEL))
        outputs = {name: value.numpy() for name, value in zip(OUTPUTS, found, strict=True)}
        known = ~coded.isnan().all(1).numpy()
        check_says({name: value[known] for name, value in outputs.items()}, model, x[300:][known], lacking=False)


def test_codes_of_all_kinds_of_columns():
    words = tuple("abcd")
    columns = (
        Column("carried", "category", words, carried=2),
        Column("number"),
        Column("category", "category", words),
        Column("ordered", "category", words, values=(0.5, -1.0, 0.0, 2.0)),
        Column("last", "category", words, carried=1),
    )
    spans, codes = Spans(columns), Codes(columns)
    rng = np.random.default_rng(0)
    x = np.where(rng.random((50, 5)) < 0.2, np.nan, rng.integers(0, 4, (50, 5)))
    np.testing.assert_array_equal(codes.expand(torch.from_numpy(x)), spans.expand(x))
    z = rng.normal(size=(50, 6))
    np.testing.assert_array_equal(codes.gather(torch.from_numpy(z)), spans.gather(z))
    np.testing.assert_allclose(codes.deviation(torch.from_numpy(z).abs()), spans.gather(np.abs(z), deviation=True))


ALONE = """
import sys
for name in ("torch", "lapae", "pandas", "sklearn", "scipy"):
    sys.modules[name] = None  # as on a machine that has none of these
{code}
"""
RUNTIME = """
import json
from lapae_runtime import Detector
found = Detector.load("model.onnx").score(json.load(open("rows.json")), reasons=2)
print(json.dumps(found.to_json()))
"""


def records(new: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as a client sends them."""
    return json.loads(sure(new.to_json(orient="records", date_format="iso")))


def test_the_runtime_says_what_the_model_says(exported):
    """Verdicts of complete rows, and reasons of all rows, are those of the model."""
    model, new, file = exported
    detector = Detector.load(file)
    if not detector.fields:
        found = detector.score(new)
        np.testing.assert_array_equal(found.outlier, model.predict(new) == -1)
        with pytest.raises(InputError, match="only tables have columns"):
            detector.score(new, reasons=1)
        with pytest.raises(InputError, match=r"expected numbers \(n, 8, 8\)"):
            detector.score(new[:, :4])
        return
    found = detector.score(records(new), reasons=7)
    whole = ~new.isna().any(axis=1).to_numpy()
    np.testing.assert_array_equal(found.outlier[whole], model.predict(new)[whole] == -1)
    np.testing.assert_allclose(found.p_value[whole], model.p_value(new)[whole], atol=1e-6)
    part = model.model_.explain(new)
    shares = np.zeros(part.shape)
    for i, reasons in enumerate(found.reasons):
        assert [reason.share for reason in reasons] == sorted((r.share for r in reasons), reverse=True)
        for reason in reasons:
            shares[i, list(new.columns).index(reason.column)] = reason.share
    expected = part / part.sum(1, keepdims=True).clip(1e-12)
    np.testing.assert_allclose(shares, expected, atol=2e-3)
    by_column = detector.score(new, reasons=7)  # a frame is the same rows
    assert by_column.reasons == found.reasons
    assert detector.score([]).to_json() == []
    for reasons in (-1, 1.5):
        with pytest.raises(InputError, match=r"reasons=.*: expected a whole number"):
            detector.score(new, reasons=reasons)  # pyright: ignore[reportArgumentType]
    nothing = detector.score([dict.fromkeys(new.columns)], reasons=1).to_json()
    assert nothing == [{"anomaly_score": None, "p_value": None, "outlier": None, "reasons": []}]
    assert detector.version == lapae.__version__


def test_the_runtime_needs_numpy_and_onnxruntime_alone(exported):
    model, new, file = exported
    if model.model_.space.kind != "table":
        pytest.skip("rows of a table")
    (file.parent / "rows.json").write_text(json.dumps(records(new)))
    (file.parent / "serve.py").write_text(ALONE.format(code=RUNTIME))
    done = subprocess.run([sys.executable, "serve.py"], cwd=file.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == Detector.load(file).score(records(new), reasons=2).to_json()


def test_the_documented_runtime_needs_neither_torch_nor_lapae(exported):
    """The code of docs/deploy.md, on a machine that has onnxruntime and numpy alone."""
    model, new, file = exported
    page = (Path(__file__).parents[1] / "docs/deploy.md").read_text(encoding="utf-8")
    code = page.partition("## Run it")[2].partition("```python\n")[2].partition("```")[0]
    coded = model.model_.space.code(new)
    whole = ~np.isnan(coded).reshape(len(coded), -1).any(1)
    new = new[whole]
    np.save(file.parent / "new.npy", coded[whole])
    (file.parent / "run.py").write_text(ALONE.format(code=code))
    done = subprocess.run([sys.executable, "run.py"], cwd=file.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    flagged = sorted(int(word) for word in re.findall(r"^row (\d+)", done.stdout, re.M))
    assert flagged == np.flatnonzero(model.p_value(new) <= 0.05).tolist()


def test_windows_of_series_go_through_the_graph_in_any_number(tmp_path, recwarn, caplog):
    t, rng = np.arange(1600)[:, None] / [7, 11, 5], np.random.default_rng(0)
    x = (np.sin(t) + 0.1 * rng.standard_normal(t.shape)).astype(np.float32).reshape(100, 16, 3)
    model = LaplacianAutoencoder(epochs=1, random_state=0, device="cpu").fit(x)
    model.export(tmp_path / "model.onnx")
    # what torch remarks about its own code is not for our users
    assert not [one for one in recwarn if one.category in (FutureWarning, DeprecationWarning)]
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    x[:, 5:, 1] = 0.0
    for n in (1, 7, 100):
        score = session.run(["anomaly_score"], {"x": x[:n], "rate": RATE, "level": LEVEL})[0]
        np.testing.assert_allclose(score, -model.score_samples(x[:n]), rtol=1e-3)


def test_windows_are_exported_with_covariances(tmp_path):
    x = np.random.default_rng(0).standard_normal((140, 12, 3)).cumsum(1)
    model = LaplacianAutoencoder(random_state=0, epochs=3, device="cpu").fit(x[:100])
    assert isinstance(model.model_.method.posterior, LowRankPrecision)
    model.export(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    found = session.run(None, {"x": x[100:].astype(np.float32), "rate": RATE, "level": LEVEL})
    check_says(dict(zip(OUTPUTS, found, strict=True)), model, x[100:])


def test_what_cannot_be_exported_is_said(tmp_path):
    x = np.random.default_rng(0).standard_normal((40, 3))
    model = LaplacianAutoencoder(method="ae", random_state=0, epochs=1, device="cpu").fit(x)
    with pytest.raises(ConfigError, match="moments"):
        model.export(tmp_path / "model.onnx")


def test_an_earlier_torch_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    model = LaplacianAutoencoder(epochs=1, random_state=0).fit(np.random.default_rng(0).normal(size=(60, 4)))
    with pytest.raises(ConfigError, match=r"torch 2\.13 or later, this is 2\.9\.1"):
        model.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
