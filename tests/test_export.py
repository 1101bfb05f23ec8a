"""The exported graph says what the model says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from lapae import LaplacianAutoencoder
from lapae.errors import ConfigError

onnx = pytest.importorskip("onnx", reason="exporting needs the extra lapae[export]")
pytest.importorskip("onnxscript", reason="exporting needs the extra lapae[export]")
if torch.__version__ < "2.13":
    pytest.skip("torch.export of earlier versions cannot record the one-pass deviation", allow_module_level=True)
runtime = pytest.importorskip("onnxruntime", reason="running an exported graph needs onnxruntime")


def test_a_table_in_onnx(tmp_path):
    rng = np.random.default_rng(0)
    t = rng.uniform(-1, 1, (400, 1))
    x = 100 + 10 * np.concatenate([np.sin(2 * t), np.cos(2 * t), t, t**3], 1) + 0.3 * rng.standard_normal((400, 4))
    model = LaplacianAutoencoder(random_state=0, epochs=4, device="cpu").fit(x[:300])
    model.export(tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx")
    about = json.loads({entry.key: entry.value for entry in graph.metadata_props}["lapae"])
    assert about["shape"] == [4]
    new = x[300:].astype(np.float32)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    inputs = {"x": new, "rate": np.array(0.05, np.float32), "level": np.array(0.9, np.float32)}
    found = dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))
    mean, _ = model.reconstruct(new, return_std=True)
    low, high = model.predict_interval(new, 0.9)
    np.testing.assert_allclose(found["reconstruction"], mean, rtol=1e-4)
    np.testing.assert_allclose(found["low"], low, rtol=1e-4)
    np.testing.assert_allclose(found["high"], high, rtol=1e-4)
    score = model.score_samples(new)
    np.testing.assert_allclose(found["score"], score, atol=1e-3 * np.abs(score).max())
    assert np.mean(np.abs(found["p_value"] - model.p_value(new)) < 0.02) > 0.98
    np.testing.assert_array_equal(found["flag"], found["p_value"] <= np.float32(0.05))


def test_what_cannot_be_exported_is_said(tmp_path):
    x = np.random.default_rng(0).standard_normal((40, 3))
    model = LaplacianAutoencoder(method="ae", random_state=0, epochs=1, device="cpu").fit(x)
    with pytest.raises(ConfigError, match="moments"):
        model.export(tmp_path / "model.onnx")
