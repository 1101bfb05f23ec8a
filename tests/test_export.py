"""The exported graph says what the model says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from narrow import as_a
from sklearn.datasets import load_digits
from sklearn.utils import Bunch
from torch import nn

import lapae
from lapae import LaplacianAutoencoder
from lapae.errors import ConfigError
from lapae.predict.export import OPSET, can_export

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


def table() -> np.ndarray:
    rng = np.random.default_rng(0)
    t = rng.uniform(-1, 1, (400, 1))
    return 100 + 10 * np.concatenate([np.sin(2 * t), np.cos(2 * t), t, t**3], 1) + 0.3 * rng.standard_normal((400, 4))


KINDS = {"table": (table, None), "images": (lambda: as_a(Bunch, load_digits()).images[:400] / 16, small_conv)}


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
    return model, x[300:].astype(np.float32), file


def test_the_graph_says_what_the_model_says(exported):
    model, new, file = exported
    session = runtime.InferenceSession(file)
    inputs = {"x": new, "rate": np.array(0.05, np.float32), "level": np.array(0.9, np.float32)}
    found = dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))
    low, high = model.predict_interval(new, 0.9)
    z, z_std = model.transform(new, return_std=True)
    expected = {"reconstruction": model.reconstruct(new), "low": low, "high": high, "code": z, "code_deviation": z_std}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4 * np.abs(value).max(), err_msg=name)
    score = model.score_samples(new)
    np.testing.assert_allclose(found["score"], score, atol=1e-3 * np.abs(score).max())
    assert np.mean(np.abs(found["p_value"] - model.p_value(new)) < 0.02) > 0.98
    np.testing.assert_array_equal(found["flag"], found["p_value"] <= np.float32(0.05))
    one = session.run(["score"], inputs | {"x": new[:1]})[0]
    np.testing.assert_allclose(one, found["score"][:1], rtol=1e-3)  # any number of data
    graph = onnx.load(file)
    onnx.checker.check_model(graph, full_check=True)
    assert {entry.domain: entry.version for entry in graph.opset_import}[""] == OPSET
    about = json.loads({entry.key: entry.value for entry in graph.metadata_props}["lapae"])
    assert about["shape"] == list(new.shape[1:])
    assert about["kind"] == model.model_.space.kind
    assert about["version"] == lapae.__version__


ALONE = """
import sys
sys.modules["torch"] = sys.modules["lapae"] = None  # as on a machine that has neither
{code}
"""


def test_the_documented_runtime_needs_neither_torch_nor_lapae(exported):
    """The code of docs/export.md, on a machine that has onnxruntime and numpy alone."""
    model, new, file = exported
    page = (Path(__file__).parents[1] / "docs/export.md").read_text(encoding="utf-8")
    code = page.partition("## Run it")[2].partition("```python\n")[2].partition("```")[0]
    np.save(file.parent / "new.npy", new)
    (file.parent / "run.py").write_text(ALONE.format(code=code))
    done = subprocess.run([sys.executable, "run.py"], cwd=file.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    flagged = sorted(int(word) for word in re.findall(r"^row (\d+)", done.stdout, re.M))
    assert flagged == np.flatnonzero(model.p_value(new) <= 0.05).tolist()


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
