"""A model in a run folder: its calibration."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from lapae import LaplacianAutoencoder
from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.errors import RunError
from lapae.fit import fit
from lapae.model import Model
from lapae.runs import Run, tensor_file
from lapae.runs.files import write_whole
from lapae.runs.parts import under
from lapae.storage import CALIBRATION, IMPUTER, MODEL, digest, load_run, read_tensor_file


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
    saved, _ = read_tensor_file(run / CALIBRATION)
    calibrated_by(run, {name: t.float() if t.is_floating_point() else t for name, t in saved.items()})
    for found, expected in zip(
        load_run(run.path).anomaly_score(table.test.x), model.anomaly_score(table.test.x), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


OTHERS = ["calibration.reference.rows", "calibration.deviation.noise", "rows.train", "rows.valid"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_calibration_of_other_data_is_refused(name, table, tmp_path):
    run, _ = trained(table, tmp_path / "run")
    tensors, _ = read_tensor_file(run / CALIBRATION)
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
    np.testing.assert_array_equal(again.p_value(table.test.x), model.anomaly_score(table.test.x)[1])
    again.save(tmp_path / "copy")
    assert LaplacianAutoencoder.load(tmp_path / "copy").get_params() == params


def as_before(run: Run, **more: torch.Tensor) -> None:
    """Give the files of a run the names that lapae 0.2 gave them."""
    saved, _ = read_tensor_file(run / CALIBRATION)
    weights, metadata = read_tensor_file(run / MODEL)
    old = {f"spread.{name}": t for name, t in under("calibration.deviation", saved).items()}
    score = under("calibration.score", saved).items()
    old |= {f"surprise.{name.replace('rarities', 'surprise').replace('image_parts', 'field')}": t for name, t in score}
    moved = {"reference": "reference.scores", "rows": "reference.rows", "own": "reference.own"}
    moved |= {"more": "intervals.more", "radius": "intervals.radius.table", "images": "tiles.scores"}
    old |= {name: saved[f"calibration.{now}"] for name, now in moved.items()}
    old |= {"memory.codes": saved["codes.codes"], "memory.scale": saved["codes.scale"]}
    old |= {"memory.unseen": saved["codes.codes"][:0]}
    old |= {"filling.train": saved["rows.train"], "filling.valid": saved["rows.valid"]}
    old |= {"known": saved["rows.train"][:0], "seen": saved["rows.train"][:0], "scarce": saved["rows.scarce"].float()}
    old |= more
    write_whole(run / CALIBRATION, tensor_file(old, {}))
    metadata |= {"calibration": digest(old), "format": "lapae model 5"}
    write_whole(run / MODEL, tensor_file(weights, metadata))


def test_a_run_of_the_former_format_is_read(table, tmp_path):
    run, model = trained(table, tmp_path / "run")
    as_before(run)
    again = load_run(run.path)
    np.testing.assert_array_equal(again.anomaly_score(table.test.x)[1], model.anomaly_score(table.test.x)[1])
    lacking = np.where(np.arange(table.test.x.shape[1]) == 0, np.nan, table.test.x)
    np.testing.assert_allclose(again.impute(lacking), model.impute(lacking), rtol=1e-5)


def test_a_run_whose_p_values_do_not_hold_says_so(table, tmp_path):
    """lapae 0.2 predicted calibration rows of few data by the components of other folds, and new rows by all."""
    run, _ = trained(table, tmp_path / "run")
    as_before(run, shift=torch.empty(0, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_run(run.path)
    as_before_again = trained(table, tmp_path / "other")[0]
    as_before(as_before_again, shift=torch.ones(19, 3))
    with pytest.warns(UserWarning, match="Train it again"):
        load_run(as_before_again.path)


def test_an_imputer_is_fitted_once_and_kept_in_the_run(table, tmp_path):
    """Whoever asks first; one of another training, or a damaged one, is fitted again."""
    run, _ = trained(table, tmp_path / "run")
    lacking = np.where(np.arange(table.test.x.shape[1]) == 0, np.nan, table.test.x)
    first = load_run(run.path)
    assert first.imputer is None
    expected = first.impute(lacking), *first.impute_interval(lacking)
    again = load_run(run.path)
    assert again.imputer is not None
    for a, b in zip(expected, (again.impute(lacking), *again.impute_interval(lacking)), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first.impute(lacking, 3), again.impute(lacking, 3))
    content = (run / IMPUTER).read_bytes()
    write_whole(run / IMPUTER, content[: len(content) // 2])
    with pytest.warns(UserWarning, match="is fitted again"):
        assert load_run(run.path).imputer is None
    write_whole(run / IMPUTER, content)
    tensors, about = read_tensor_file(run / IMPUTER)
    write_whole(run / IMPUTER, tensor_file(tensors, about | {"format": "lapae model 6"}))  # of an earlier version
    assert load_run(run.path).imputer is None
    other, _ = trained(table, tmp_path / "other")
    weights, metadata = read_tensor_file(other / MODEL)
    write_whole(other / MODEL, tensor_file(weights, metadata | {"config": metadata["config"]}))
    write_whole(run / IMPUTER, content)
    write_whole(other / IMPUTER, tensor_file(*_of_another(content, run)))
    assert load_run(other.path).imputer is None


def _of_another(content: bytes, run: Run) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    tensors, about = read_tensor_file(run / IMPUTER)
    return tensors, about | {"of": "another"}


def test_an_imputer_is_fitted_with_the_model_where_training_rows_lack_values():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 3))
    model = LaplacianAutoencoder(epochs=1, random_state=0).fit(np.where(rng.random(x.shape) < 0.1, np.nan, x))
    assert model.model_.imputer is not None
    assert LaplacianAutoencoder(epochs=1, random_state=0).fit(x).model_.imputer is None


def test_a_model_is_a_value(table, tmp_path):
    _, model = trained(table, tmp_path / "run")
    lacking = np.where(np.arange(table.test.x.shape[1]) == 0, np.nan, table.test.x)
    before = model.anomaly_score(table.test.x)[0]
    other = model.predicting(predictive="mc", n_samples=3)
    model.impute(lacking)
    other.impute(lacking)
    assert other is not model
    np.testing.assert_array_equal(model.anomaly_score(table.test.x)[0], before)
    with pytest.raises(AttributeError):
        model.calibration = None  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("shape", [(6, 6), (8, 2)])
def test_imputers_of_images_and_series_are_kept_too(shape, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.random((60, 1, 1)) * np.linspace(0, 1, 6)[None, :, None] + 0.1 * rng.random((60, 6, 6))
    x = x if shape == (6, 6) else 3 * rng.standard_normal((60, *shape))
    LaplacianAutoencoder(epochs=1, random_state=0, latent_dim=2).fit(x).save(tmp_path / "run")
    lacking = x[:3].copy()
    lacking[:, 1, 1] = np.nan
    first = LaplacianAutoencoder.load(tmp_path / "run")
    expected = first.impute(lacking)
    again = LaplacianAutoencoder.load(tmp_path / "run")
    assert again.model_.imputer is not None
    np.testing.assert_array_equal(again.impute(lacking), expected)
    np.testing.assert_array_equal(again.impute_interval(lacking), first.impute_interval(lacking))
