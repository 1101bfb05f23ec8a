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
from lapae.calibrate.conformal import discoveries
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
    several = model.impute(holes, n_samples=20)
    assert several.shape == (20, *x.shape)
    assert (several[:, np.isnan(holes)].std(0) > 0).all()
    assert (np.ptp(several[:, ~np.isnan(holes)], axis=0) == 0).all()
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
    model = LaplacianAutoencoder(method="posthoc", hessian="sketch", **QUICK).fit(x)
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
    np.testing.assert_array_equal(again.transform(frame[["b", "a", "c", "d", "e"]]), model.transform(frame))
    with pytest.raises(ValueError, match="has no column 'b'"):
        again.transform(frame.drop(columns="b"))
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
        ({"false_alarm_rate": 1.0}, curve(30), "false_alarm_rate"),
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
        ({"false_alarm_rate": "auto"}, "false_alarm_rate = 'auto': expected a number"),
        ({"false_alarm_rate": 0}, "false_alarm_rate = 0: expected a probability between 0 and 1"),
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
        (((5, 2), (2, 6)), r"the encoder does not take its input, of shape \(3, 6\)"),
        (((6, 2), (3, 6)), r"the decoder does not take its input, of shape \(3, 2\)"),
        (((6, 2), (2, 5)), r"the decoder returns \(3, 5\) for 3 samples, expected .* \(3, 6\)"),
    ],
)
def test_modules_that_do_not_fit_the_data_are_named(widths, message):
    network = tuple(nn.Linear(*width) for width in widths)
    with pytest.raises(ValueError, match=message):
        LaplacianAutoencoder(network=network, **QUICK).fit(np.random.default_rng(0).random((30, 6)))


def test_rate_and_predictive_take_effect_on_a_fitted_estimator(fitted):
    new, before = curve(1000, seed=5), fitted.score_samples(curve(5))
    for rate in (0.2, 0.05):
        assert (fitted.set_params(false_alarm_rate=rate).predict(new) == -1).mean() == pytest.approx(rate, abs=0.08)
    fitted.set_params(predictive="mc", n_samples=5)
    assert (fitted.score_samples(curve(5)) != before).all()
    assert (fitted.p_value(new) <= 0.1).mean() == pytest.approx(0.1, abs=0.06)
    with pytest.raises(ValueError, match="unknown predictive"):
        fitted.set_params(predictive="magic")
    fitted.set_params(predictive="moments", n_samples=20)
    np.testing.assert_array_equal(fitted.score_samples(curve(5)), before)


def unusual(n: int = 28, columns: int = 5) -> np.ndarray:
    """Rows from ordinary to unusual, complete and with values missing in several ways; the last has none."""
    x = np.resize(curve(n), (n, 5))[:, :columns]
    x += np.linspace(0, 8, n)[:, None] * np.random.default_rng(0).choice([-1, 1], x.shape)
    x = np.concatenate([x, np.where(np.random.default_rng(1).random(x.shape) < 0.3, np.nan, x), x[:1] * np.nan])
    return x[~np.isnan(x).all(1) | (np.arange(len(x)) == len(x) - 1)]


@pytest.mark.filterwarnings("ignore:nothing observed")
@pytest.mark.parametrize("kind", ["curve", "dice"])
def test_one_verdict(kind):
    """A row is flagged if and only if its p-value is at most the rate, by every method and at any rate."""
    dice = np.random.default_rng(3).integers(1, 7, (120, 5)).astype(float)
    x, new = (curve(), unusual()) if kind == "curve" else (dice, np.where(np.isnan(unusual()), np.nan, dice[:1]))
    new[28:40] = np.where(np.isnan(new[28:40]), np.nan, x[:12])
    model = LaplacianAutoencoder(**QUICK).fit(x)
    p, score, n = model.p_value(new), model.score_samples(new), len(model.reference_)
    assert np.isnan(p[-1])
    for rate in (0.05, 0.1, 0.29, *(np.arange(1, n + 1, 8) / (n + 1))):
        decision = model.set_params(false_alarm_rate=float(rate)).decision_function(new)
        np.testing.assert_array_equal(decision < 0, p <= rate)
        np.testing.assert_array_equal(model.predict(new), np.where(p > rate, 1, -1))
        complete = ~np.isnan(new).any(1)
        np.testing.assert_array_equal(decision[complete], (score - model.offset_)[complete])
    assert np.isnan(decision[-1])
    assert model.predict(new)[-1] == -1
    assert model.discoveries(new, 0.2).dtype == bool
    assert not model.discoveries(new, 0.9)[-1]
    np.testing.assert_array_equal(model.discoveries(new, 0.2), discoveries(p, 0.2))
    with pytest.raises(ValueError, match="rate=2: expected a number between 0 and 1"):
        model.discoveries(new, 2)
    with pytest.raises(ValueError, match="false_alarm_rate = 5"):
        model.set_params(false_alarm_rate=5)


def test_a_rate_that_few_rows_cannot_meet_flags_nothing_and_says_so():
    x, far = curve(40), curve(40) + np.arange(40)[:, None] ** 3
    with pytest.warns(
        UserWarning, match="0.05 cannot be met with 13 held-out rows.* at least 19 held-out rows"
    ) as told:
        model = LaplacianAutoencoder(**QUICK).fit(x)
    assert sum("cannot be met" in str(warning.message) for warning in told) == 1
    for judge in (model.predict, lambda x: np.sign(model.decision_function(x))):
        with pytest.warns(UserWarning, match="so nothing is flagged") as told:
            np.testing.assert_array_equal(judge(far), 1)
        assert len(told) == 1
    assert model.offset_ == -np.inf
    with pytest.warns(UserWarning, match="so nothing is flagged"):
        decision = model.decision_function(far)  # still a ranking
    np.testing.assert_array_equal(np.argsort(decision), np.argsort(model.score_samples(far)))
    assert (model.set_params(false_alarm_rate=0.1).predict(far) == -1).any()


@pytest.mark.parametrize("n", [1, 2, 9])
def test_too_few_rows_are_refused(n):
    with pytest.raises(ValueError, match=f"n_samples={n}, expected at least 10"):
        LaplacianAutoencoder(**QUICK).fit(curve(n))
    with pytest.raises(ValueError, match=f"n_samples={n}, expected at least 10"):
        LaplacianAutoencoder(**QUICK).fit(
            pd.DataFrame({"a": curve(n)[:, 0], "b": ["x", "y"] * (n // 2) + ["x"] * (n % 2)})
        )
    with pytest.raises(ValueError, match=f"n_samples={n}, expected at least 10"):
        LaplacianAutoencoder(**QUICK).partial_fit(curve(n))
    empty = np.full((40, curve(1).shape[1]), np.nan)
    with pytest.warns(UserWarning, match="nothing observed in 40"), pytest.raises(ValueError, match=f"n_samples={n}, "):
        LaplacianAutoencoder(**QUICK).fit(np.concatenate([empty, curve(n)]))


OLD = {
    **{"batch_size": None, "contamination": 0.2, "device": "cpu", "epochs": 3, "forgetting": None, "hessian": None},
    **{"latent_dim": None, "learning_rate": None, "likelihood": "gaussian", "method": "online", "n_samples": None},
    **{"network": None, "optimize_prior": "scalar", "precision": "32", "predictive": None, "prior_precision": None},
    **{"random_state": 0, "temperature": None, "uncertain": "all", "update": "laplacian", "validation_fraction": None},
    "verbose": False,
}
"""Parameters in estimator.json as version 0.2 wrote them."""


def test_estimators_saved_with_contamination_are_loaded(tmp_path):
    model = LaplacianAutoencoder(**QUICK).fit(curve())
    model.save(tmp_path / "run")
    run = Run(tmp_path / "run")
    lines = (run / "config.toml").read_text("utf-8").splitlines(keepends=True)
    (run / "config.toml").write_text("".join(line for line in lines if "false_alarm_rate" not in line), "utf-8")
    run.write_json("estimator.json", {"params": OLD})
    old = LaplacianAutoencoder.load(tmp_path / "run")
    assert old.false_alarm_rate == old.model_.config.train.false_alarm_rate == 0.2
    new = curve(200, seed=7)
    np.testing.assert_array_equal(old.predict(new) == -1, model.p_value(new) <= 0.2)
    run.write_json("estimator.json", {"params": OLD | {"contamination": "auto"}})
    with pytest.warns(UserWarning, match=r"contamination='auto' is now a method, discoveries\(X\)"):
        assert LaplacianAutoencoder.load(tmp_path / "run").false_alarm_rate == 0.05
    old.save(tmp_path / "again")
    assert LaplacianAutoencoder.load(tmp_path / "again").false_alarm_rate == 0.2


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


def test_intervals_of_missing_values_do_not_depend_on_other_rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 2)) @ rng.standard_normal((2, 7)) + 0.2 * rng.standard_normal((300, 7))
    model = LaplacianAutoencoder(epochs=3, random_state=0, device="cpu").fit(x[:200])
    new = np.where(rng.random((100, 7)) < 0.4, np.nan, x[200:])
    low, high = model.impute_interval(new)
    p = model.p_value(new)
    for i in (0, 13, 57):
        alone = model.impute_interval(new[i : i + 1])
        np.testing.assert_allclose(alone[0][0], low[i], rtol=1e-6)
        np.testing.assert_allclose(alone[1][0], high[i], rtol=1e-6)
        assert model.p_value(new[i : i + 1])[0] == p[i]
