"""A model in a run folder: its calibration."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from narrow import sure

from lapae import LaplacianAutoencoder
from lapae.calibrate.calibration import from_file, to_file
from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.errors import RunError
from lapae.fit import fit
from lapae.model import Model
from lapae.runs import Run, tensor_file
from lapae.runs.files import write_whole
from lapae.storage import CALIBRATION, MODEL, digest, load_run, read_tensor_file


def trained(table, path) -> tuple[Run, Model]:
    train = TrainConfig(epochs=2, device="cpu", verbose=False)
    config = Config(model=ModelConfig(hidden=(8,)), method=MethodConfig("online"), train=train)
    run = Run.create(path)
    return run, fit(config, table, run=run)


def calibrated_by(run: Run, tensors: dict[str, torch.Tensor]) -> None:
    """Put another calibration into a run, with a digest that agrees."""
    weights, metadata = read_tensor_file(run / MODEL)
    write_whole(run / CALIBRATION, tensor_file(tensors, {}))
    write_whole(run / MODEL, tensor_file(weights, metadata | {"calibration": digest(tensors)}))


def test_a_calibration_made_in_single_precision_serves_in_double(table, tmp_path):
    """As of a table that was trained on a GPU, and is scored on a CPU."""
    run, model = trained(table, tmp_path / "run")
    assert model.calibration is not None
    calibrated_by(run, {name: tensor.float() for name, tensor in to_file(model.calibration).items()})
    for found, expected in zip(load_run(run.path).surprise(table.test.x), model.surprise(table.test.x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["rows", "spread.noise", "known", "seen"])
def test_a_calibration_of_other_data_is_refused(name, table, tmp_path):
    run, model = trained(table, tmp_path / "run")
    assert model.calibration is not None
    tensors = to_file(model.calibration)
    calibrated_by(run, tensors | {name: tensors[name][..., :3].clone()})
    with pytest.raises(RunError, match=r"calibration\.safetensors is of data of another shape"):
        load_run(run.path)


@pytest.mark.parametrize("method", ["posthoc", "vae"])
def test_the_estimator_of_a_trained_run_has_its_parameters(method, table, tmp_path):
    """Fitted again, it would train what the run has trained."""
    train = TrainConfig(epochs=2, learning_rate=0.02, seed=7, device="cpu", verbose=False)
    config = Config(model=ModelConfig(sigma=0.5, latent_dim=3), method=MethodConfig(method), train=train)
    run = Run.create(tmp_path / "run")
    model = fit(config, table, run=run)
    again = LaplacianAutoencoder.load(run.path)
    params = again.get_params()
    assert (params["method"], params["latent_dim"], params["epochs"], params["random_state"]) == (method, 3, 2, 7)
    assert (params["learning_rate"], params["likelihood"].sigma) == (0.02, 0.5)
    np.testing.assert_array_equal(again.p_value(table.test.x), model.surprise(table.test.x)[1])
    again.save(tmp_path / "copy")
    assert LaplacianAutoencoder.load(tmp_path / "copy").get_params() == params


def test_a_run_whose_p_values_do_not_hold_says_so():
    """lapae 0.2 predicted calibration rows of few data by the components of other folds, and new rows by all."""
    rng = np.random.default_rng(0)
    model = LaplacianAutoencoder(epochs=1, random_state=0).fit(rng.standard_normal((60, 3)))
    saved = to_file(sure(model.model_.calibration))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_file(saved | {"shift": torch.empty(0, 3)})
    with pytest.warns(UserWarning, match="Train it again"):
        from_file(saved | {"shift": torch.ones(19, 3)})
