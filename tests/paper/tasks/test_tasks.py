"""The paper's tasks by name, on a trained model and data; and a method defined here, through prediction and a task."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from bars import SHAPE, images, train, trained
from narrow import as_a, sure
from torch import nn
from trained import in_splits

from lapae.config import Config, MethodConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.data import Split
from lapae.errors import ConfigError
from lapae.evaluate import TASKS, run_task
from lapae.methods import METHODS, Method, Point, WeightDraws, build, register
from lapae.methods.weights import normal_draws
from lapae.model import Model
from lapae.networks import Autoencoder, mlp
from lapae.predict import predict
from lapae.space import Space
from lapae_paper.tasks.calibration import CalibrationResult
from lapae_paper.tasks.ood import OodOptions, detect

SPACE = Space("image", SHAPE, scale=255.0, name="bars")


def model_of(method, space=SPACE, **about):
    return Model(method, Config(), space, **about)


def split(n, seed, attributes=False):
    x, y = images(n, seed)
    labels = np.stack([y.numpy(), 1 - y.numpy()], 1) if attributes else y.numpy()
    return Split((255 * x).round().to(torch.uint8).numpy(), labels)


def data(**options):
    parts = [split(n, seed, **options) for n, seed in ((200, 1), (80, 2), (60, 3))]
    return in_splits(SPACE, *parts)


OPTIONS = {
    "ood": {"ood": ("other",), "n_samples": 5, "bootstrap": 10, "limit": 30, "train_limit": 50},
    "completion": {"mask": "lower", "limit": 20, "modes": 2, "average": 2},
    "classification": {"limit": 20, "modes": 2, "average": 2, "epochs": 1},
    "generation": {"n": 10, "steps": 2},
    "semi-supervised": {"labels": (1, 5), "n_embeddings": 5, "repetitions": 2},
    "calibration": {"n_samples": 5, "limit": 30},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("method", ["bbb", "ae"])
def test_every_task_by_name(name, method, monkeypatch, tmp_path):
    monkeypatch.setattr("lapae.data.load", lambda name, **options: data())
    model = model_of(trained(method), path=tmp_path)
    options = TASKS[name].load_options()(**OPTIONS[name])
    result = run_task(name, model, data(), options)
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.figures()
    again = run_task(name, model, data(), OPTIONS[name])
    assert again.to_dict() == result.to_dict()
    assert bool(list(tmp_path.glob("classifier-*.safetensors"))) == (name == "classification")


def test_options_have_defaults_for_the_command_line():
    assert set(OPTIONS) == set(TASKS) - {"coverage", "detection", "imputation"}
    for name in OPTIONS:
        TASKS[name].load_options()()


def test_the_scaling_is_that_of_the_model():
    seen = run_task("calibration", model_of(trained("ae")), data(), OPTIONS["calibration"])
    wrong = run_task("calibration", model_of(trained("ae"), replace(SPACE, scale=1.0)), data(), OPTIONS["calibration"])
    seen, wrong = as_a(CalibrationResult, seen), as_a(CalibrationResult, wrong)
    assert seen.bins["output"].error.max() < 1 < wrong.bins["output"].error.max()


def test_errors_of_the_table():
    model = model_of(trained("ae"))
    with pytest.raises(ConfigError, match="completion"):
        run_task("nonsense", model, data())
    with pytest.raises(TypeError, match="CompletionOptions"):
        run_task("completion", model, data(), TASKS["ood"].load_options()())
    with pytest.raises(ConfigError, match=r"\(1, 9, 9\)"):
        run_task("completion", model_of(trained("ae"), replace(SPACE, shape=(1, 9, 9))), data())
    with pytest.raises(ConfigError, match="at least one"):
        run_task("ood", model, data())
    unlabelled = in_splits(SPACE, *(Split(s.x, None) for s in (data().train,) * 3))
    with pytest.raises(ConfigError, match="no labels"):
        run_task("semi-supervised", model, unlabelled)
    with pytest.raises(ConfigError, match="one class per sample"):
        run_task("classification", model, data(attributes=True))


def test_attributes_by_name():
    result = run_task("semi-supervised", model_of(trained("ae")), data(attributes=True), {"repetitions": 1})
    assert result.to_dict()["n_labels"] == [10]
    assert set(result.to_dict()["attributes"]) == {"0", "1"}


def test_a_method_of_ones_own():
    """A Gaussian of fixed width around the weights: one class, no other line of the project knows it."""

    @register("jitter")
    class Jitter(Method):
        def __init__(self, network, likelihood, config, n_data):
            super().__init__(likelihood)
            self.network = network()

        def forward(self, x, step):
            return -self.likelihood.log_prob(self.network(x), x).mean()

        def draw(self, seeds):
            params = dict(self.network.named_parameters())
            noise = normal_draws(params, seeds)
            return WeightDraws(self.network, {name: params[name] + 0.02 * noise[name] for name in params})

        def draw_mean(self):
            return Point(self.network)

    try:
        torch.manual_seed(0)
        x = images(256)[0]
        method = build(MethodConfig("jitter"), lambda: mlp(SHAPE, 3, hidden=(32,)), Gaussian(0.1), len(x))
        train(method, x)
        assert sure(predict(method, x[:20], n_samples=10).x_var).min() > 0
        outside = {"inverted": 1 - images(40, 2)[0]}
        found = detect(model_of(method), data(), outside, OodOptions(n_samples=10, bootstrap=10))
        assert found.detections["inverted"]["log_likelihood"].auroc.value > 0.95
        run_task("completion", model_of(method), data(), OPTIONS["completion"])
    finally:
        del METHODS["jitter"]


@pytest.mark.parametrize("name", ["ood", "semi-supervised", "calibration"])
def test_codes_with_axes_of_their_own(name, monkeypatch):
    monkeypatch.setattr("lapae.data.load", lambda name, **options: data())
    encoder, decoder = nn.Conv2d(1, 2, 4, 4), nn.ConvTranspose2d(2, 1, 4, 4)
    method = build(MethodConfig("bbb"), lambda: Autoencoder(encoder, decoder), Gaussian(0.1), 200)
    assert model_of(method).code_shape == (2, 2, 2)
    json.dumps(run_task(name, model_of(method), data(), OPTIONS[name]).to_dict(), allow_nan=False)
