"""The estimator: every kind of data and every method; missing values; saving; scikit-learn's tools."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from narrow import as_a
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from lapae import Bernoulli, Categorical, Gaussian, LaplacianAutoencoder
from lapae.errors import RunError
from lapae.methods.laplace import Laplace
from lapae.runs import Run

QUICK = {"epochs": 3, "n_samples": 4, "device": "cpu", "random_state": 0}
rng = np.random.default_rng(0)


def curve(n: int = 120, seed: int = 1) -> np.ndarray:
    """Data on a curve in five dimensions, in units that differ."""
    t = np.random.default_rng(seed).uniform(-1, 1, (n, 1))
    x = np.concatenate([np.sin(2 * t), np.cos(2 * t), t, t**2, t**3], 1)
    return 100 + 10 * (x + 0.05 * np.random.default_rng(seed + 1).standard_normal(x.shape))


@pytest.fixture(scope="module")
def fitted() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(epochs=60, n_samples=20, device="cpu", random_state=0).fit(curve(600))


DATA = {
    "table": curve(60),
    "gray": rng.integers(0, 256, (30, 8, 8), dtype=np.uint8),
    "channels first": rng.random((30, 3, 8, 8)),
    "channels last": rng.random((30, 8, 6, 3)).astype(np.float32),
    "windows": 5 + 3 * rng.standard_normal((30, 12, 2)),
}


@pytest.mark.parametrize("kind", DATA)
def test_shapes_and_units_of_every_kind_of_data(kind):
    x = DATA[kind]
    model = LaplacianAutoencoder(latent_dim=3, **QUICK).fit(x)
    z, z_std = model.transform(x, return_std=True)
    assert z.shape == z_std.shape == (len(x), 3)
    assert (z_std > 0).all()
    back, back_std = model.reconstruct(x, return_std=True)
    assert back.shape == back_std.shape == model.inverse_transform(z).shape == x.shape
    assert abs(back.mean() - x.mean()) < 3 * x.std()  # in the units of x
    assert model.score_samples(x).shape == (len(x),)
    assert model.sample(7).shape == (7, *x.shape[1:])
    assert set(np.unique(model.predict(x))) <= {-1, 1}


@pytest.mark.parametrize("method", ["online", "posthoc", "ae", "ae-var", "vae", "dropout", "ensemble", "bbb"])
def test_every_method_with_missing_values(method):
    x = curve(50)
    holes = np.where(np.random.default_rng(0).random(x.shape) < 0.2, np.nan, x)
    model = LaplacianAutoencoder(method=method, **QUICK).fit(holes)
    assert all(torch.isfinite(p).all() for p in model.model_.method.parameters())
    assert np.isfinite(model.score_samples(holes)).all()
    assert np.isfinite(model.transform(holes)).all()
    filled = model.impute(holes)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~np.isnan(holes)], holes[~np.isnan(holes)])
    several = model.impute(holes, n_samples=4)
    assert several.shape == (4, *x.shape)
    assert (several[:, np.isnan(holes)].std(0) > 0).all()
    assert (several[:, ~np.isnan(holes)].std(0) == 0).all()
    assert np.isfinite(model.sample(2)).all()


@pytest.mark.parametrize("hessian", ["approx", "exact", "mixed", "mc", "sketch", "bottleneck", "block", "kfac"])
def test_every_hessian_takes_missing_values(hessian):
    x = curve(40)
    x[::3, 2] = np.nan
    model = LaplacianAutoencoder(hessian=hessian, **QUICK).fit(x)
    assert np.isfinite(model.transform(x, return_std=True)[1]).all()


def test_a_likelihood_that_takes_no_missing_values():
    x = np.random.default_rng(0).random((30, 3, 8, 8))
    model = LaplacianAutoencoder(likelihood="categorical", **QUICK).fit(x)  # one softmax over the channels
    assert np.isfinite(model.score_samples(x)).all()
    x[0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="missing values need"):
        LaplacianAutoencoder(likelihood="categorical", **QUICK).fit(x)


@pytest.mark.parametrize("predictive", ["mc", "linearized", "moments"])
def test_predictives(predictive):
    model = LaplacianAutoencoder(predictive=predictive, **QUICK).fit(curve(40))
    assert np.isfinite(model.reconstruct(curve(40), return_std=True)[1]).all()
    holes = curve(40)
    holes[:, 1] = np.nan
    assert np.isfinite(model.score_samples(holes)).all()


def test_it_learns_and_tells_outliers(fitted):
    x = curve()
    error = ((fitted.reconstruct(x) - x) / x.std(0)) ** 2
    assert error.mean() < 0.2
    strange = x[np.random.default_rng(0).permuted(np.arange(len(x)))] * np.array([1, -1, 1, 1, 1])
    scores = np.concatenate([fitted.score_samples(x), fitted.score_samples(strange)])
    assert roc_auc_score([1] * len(x) + [0] * len(x), scores) > 0.99
    assert (fitted.predict(strange) == -1).all()
    new = curve(1000, seed=3)
    assert (fitted.predict(new) == -1).mean() == pytest.approx(0.05, abs=0.04)  # 200 calibrate: deviation 0.015
    np.testing.assert_allclose(fitted.decision_function(x), fitted.score_samples(x) - fitted.offset_)


def test_imputation_beats_the_mean_and_its_intervals_hold(fitted):
    t = np.random.default_rng(7).uniform(-1, 1, (200, 1))
    x = 100 + 10 * np.concatenate([np.sin(2 * t), np.cos(2 * t), t, t**2, t**3], 1)
    hidden = np.random.default_rng(8).random(x.shape) < 0.2
    holes = np.where(hidden, np.nan, x)
    gap, naive = fitted.impute(holes) - x, x - curve().mean(0)
    assert np.square(gap[hidden]).mean() < 0.5 * np.square(naive[hidden]).mean()
    low, high = np.quantile(fitted.impute(holes, n_samples=100), [0.05, 0.95], axis=0)
    assert 0.8 < ((low <= x) & (x <= high))[hidden].mean() <= 1


def test_a_missing_value_has_no_say():
    """Neither in the loss nor in the curvature."""
    x = curve(40)
    x[::3, 2] = np.nan
    model = LaplacianAutoencoder(method="posthoc", **QUICK).fit(x)
    method = as_a(Laplace, model.model_.method)
    one = model.model_.tensor(x)[:1]
    assert one.isnan().any()
    h = method.curvature(method.run_at_mean(one))
    bias = [h[name] for name in h if name.startswith("decoder") and name.endswith("bias")][-1]
    assert bias[2] == 0  # the bias of a missing output
    assert (bias[[0, 1, 3, 4]] > 0).all()


def test_save_and_load_predict_the_same(tmp_path, fitted):
    fitted.save(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run")
    x = curve(30)
    np.testing.assert_array_equal(again.score_samples(x), fitted.score_samples(x))
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    holes = np.where(np.random.default_rng(0).random(x.shape) < 0.2, np.nan, x)
    np.testing.assert_array_equal(again.impute(holes, 3), fitted.impute(holes, 3))
    np.testing.assert_array_equal(again.sample(3), fitted.sample(3))
    assert again.get_params() == fitted.get_params()
    assert again.history_ == fitted.history_
    with pytest.raises(RunError, match="overwrite=True"):
        fitted.save(tmp_path / "run")
    fitted.save(tmp_path / "run", overwrite=True)
    np.testing.assert_array_equal(LaplacianAutoencoder.load(tmp_path / "run").score_samples(x), again.score_samples(x))
    assert not list((tmp_path / "run").glob("*.pkl"))


def test_save_and_load_of_images_and_pandas(tmp_path):
    frame = pd.DataFrame(curve(40), columns=list("abcde"))
    model = LaplacianAutoencoder(likelihood=Gaussian(0.5), **QUICK).fit(frame)
    model.save(tmp_path / "table")
    again = LaplacianAutoencoder.load(tmp_path / "table")
    np.testing.assert_array_equal(again.transform(frame), model.transform(frame))
    assert again.likelihood == Gaussian(0.5)
    names = again.feature_names_in_  # pyright: ignore[reportAttributeAccessIssue]  # only tables with names have it
    assert list(names) == list("abcde")
    with pytest.raises(ValueError, match="feature names"):
        again.transform(frame[["b", "a", "c", "d", "e"]])
    images = DATA["channels last"]
    LaplacianAutoencoder(likelihood=Bernoulli(), **QUICK).fit(images).save(tmp_path / "images")
    assert LaplacianAutoencoder.load(tmp_path / "images").reconstruct(images).shape == images.shape


def test_load_says_what_is_wrong(tmp_path, fitted):
    with pytest.raises(RunError, match="no such folder"):
        LaplacianAutoencoder.load(tmp_path / "nowhere")
    fitted.save(tmp_path / "run")
    Run(tmp_path / "run").write_json("estimator.json", {"format": "other"})
    with pytest.raises(RunError, match=r"estimator\.json is damaged: it has no parameters"):
        LaplacianAutoencoder.load(tmp_path / "run")
    (tmp_path / "run" / "estimator.json").unlink()  # as lapae train leaves it
    again = LaplacianAutoencoder.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict(curve()), fitted.predict(curve()))
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(RunError, match="has no model yet"):
        LaplacianAutoencoder.load(tmp_path / "run")


def test_own_modules(tmp_path):
    own = (
        nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5)),
    )
    before = as_a(nn.Linear, own[0][0]).weight.detach().clone()
    model = LaplacianAutoencoder(network=own, **QUICK).fit(curve(40))
    assert model.transform(curve(40)).shape == (40, 3)
    assert torch.equal(as_a(nn.Linear, own[0][0]).weight, before)  # fit leaves what it was given alone
    model.save(tmp_path / "own")
    with pytest.raises(RunError, match="network"):
        LaplacianAutoencoder.load(tmp_path / "own")
    again = LaplacianAutoencoder.load(tmp_path / "own", network=own)
    np.testing.assert_array_equal(again.transform(curve(40)), model.transform(curve(40)))
    assert as_a(LaplacianAutoencoder, clone(model)).fit(curve(40)).transform(curve(40)).shape == (40, 3)


def test_pickle(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.score_samples(curve(10)), fitted.score_samples(curve(10)))


def test_pandas_in_and_out():
    frame = pd.DataFrame(curve(40), columns=list("abcde"), index=[f"row {i}" for i in range(40)])
    model = LaplacianAutoencoder(**QUICK).set_output(transform="pandas")
    codes = model.fit_transform(frame)
    assert list(codes.columns) == ["laplacianautoencoder0", "laplacianautoencoder1"]
    assert list(codes.index) == list(frame.index)


def test_pipeline_grid_search_and_cross_validation():
    x = curve(60)
    search = GridSearchCV(LaplacianAutoencoder(**QUICK), {"latent_dim": [1, 2]}, cv=2).fit(x)
    assert search.best_params_["latent_dim"] in (1, 2)
    assert np.isfinite(cross_val_score(LaplacianAutoencoder(**QUICK), x, cv=2)).all()
    pipe = make_pipeline(StandardScaler(), LaplacianAutoencoder(**QUICK)).fit(x)
    assert pipe.transform(x).shape == (60, 2)
    assert pipe.predict(x).shape == (60,)


def test_the_same_seed_gives_the_same_model_and_the_global_generators_are_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    a, b = (LaplacianAutoencoder(**QUICK).fit(curve(30)).transform(curve(30)) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert torch.equal(torch.get_rng_state(), before)


def test_fit_is_quiet(capfd):
    LaplacianAutoencoder(**QUICK).fit(curve(30))
    out = capfd.readouterr()
    assert out.out == "" and out.err == ""  # noqa: PT018


@pytest.mark.parametrize(
    ("arguments", "x", "message"),
    [
        ({"contamination": 0.7}, curve(30), "contamination"),
        ({"validation_fraction": 1.0}, curve(30), "validation_fraction"),
        ({"method": "nope"}, curve(30), "unknown method 'nope'"),
        ({"network": "conv"}, curve(30), "images"),
        ({}, np.full((30, 2), np.nan), "no value at all"),
        ({}, np.full((30, 2), np.inf), "infinity"),
    ],
)
def test_mistakes_are_named(arguments, x, message):
    with pytest.raises(ValueError, match=message):
        LaplacianAutoencoder(**{**QUICK, **arguments}).fit(x)


def test_other_data_are_refused(fitted):
    with pytest.raises(ValueError, match="features"):
        fitted.transform(curve(10)[:, :3])
    with pytest.raises(ValueError, match="codes"):
        fitted.inverse_transform(np.zeros((3, 5)))
    images = LaplacianAutoencoder(**QUICK).fit(DATA["gray"])
    with pytest.raises(ValueError, match="shape"):
        images.transform(DATA["gray"][:, :4])
    with pytest.raises(ValueError, match="values from"):
        images.transform(DATA["gray"].astype(float) * 2)


@pytest.mark.slow
@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_defaults_on_small_tables(load):
    x = load().data
    model = LaplacianAutoencoder(random_state=0).fit(x)
    error = ((model.reconstruct(x) - x) / x.std(0)) ** 2
    assert error.mean() < 0.6  # two principal components leave 0.45 and 0.37


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device = 'tpu': expected one of auto, cpu, cuda"),
        ({"precision": "64"}, "precision = '64': expected one of 32, tf32, bf16"),
        ({"batch_size": 0}, "batch_size = 0: expected at least 1"),
        ({"learning_rate": 0}, "learning_rate = 0: expected a finite number above 0"),
        ({"contamination": "some"}, "contamination='some': expected a number above 0"),
        ({"likelihood": "bernoulli"}, "bernoulli likelihood takes values from 0 to 1"),
        ({"likelihood": Categorical()}, "categorical likelihood takes values from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LaplacianAutoencoder(**{**QUICK, **options}).fit(curve(40))


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        (((5, 2), (2, 6)), r"the encoder does not take what it is given, of shape \(2, 6\)"),
        (((6, 2), (3, 6)), r"the decoder does not take what it is given, of shape \(2, 2\)"),
        (((6, 2), (2, 5)), r"the decoder gives \(2, 5\) for 2 data, expected .* \(2, 6\)"),
    ],
)
def test_modules_that_do_not_fit_the_data_are_named(widths, message):
    network = tuple(nn.Linear(*width) for width in widths)
    with pytest.raises(ValueError, match=message):
        LaplacianAutoencoder(network=network, **QUICK).fit(np.random.default_rng(0).random((30, 6)))


def test_rate_and_predictive_take_effect_on_a_fitted_estimator(fitted):
    new, before = curve(1000, seed=5), fitted.score_samples(curve(5))
    for rate in (0.2, 0.05):
        assert (fitted.set_params(contamination=rate).predict(new) == -1).mean() == pytest.approx(rate, abs=0.08)
    fitted.set_params(predictive="mc", n_samples=5)
    assert (fitted.score_samples(curve(5)) != before).all()
    assert (fitted.p_value(new) <= 0.1).mean() == pytest.approx(0.1, abs=0.06)
    with pytest.raises(ValueError, match="unknown predictive"):
        fitted.set_params(predictive="magic")
    fitted.set_params(predictive="moments", n_samples=20)
    np.testing.assert_array_equal(fitted.score_samples(curve(5)), before)


def test_intervals_of_images_hold_what_the_eye_sees_as_black():
    """At 50 % an interval of a black pixel holds half of the black ones, not all of them because it ends at 0."""
    x = np.random.default_rng(0).random((400, 8, 8))
    x = np.where(x > 0.7, x, 0.0) * np.linspace(0.2, 1, 8)
    model = LaplacianAutoencoder(**QUICK).fit(x[:300])
    low, high = model.predict_interval(x[300:], 0.5)
    assert ((low <= x[300:]) & (x[300:] <= high)).mean() == pytest.approx(0.5, abs=0.05)
    holes = np.where(np.random.default_rng(1).random(x[300:].shape) < 0.3, np.nan, x[300:])
    low, high = model.impute_interval(holes, 0.5)
    full = model.impute(holes)
    assert ((low <= full) & (full <= high)).all()
    assert low.min() >= 0
    assert high.max() <= 1
