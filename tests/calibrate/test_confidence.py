"""Confidence of verdicts against networks that are moved by hand, and intervals that widen where the data end."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from narrow import as_a, sure
from torch import nn

from lapae import LaplacianAutoencoder
from lapae.calibrate.conformal import p_values
from lapae.methods.laplace import Laplace
from lapae.predict.linearized_lowrank import draws

QUICK = {"random_state": 0, "device": "cpu", "epochs": 20}


def arc(n: int, low: float, high: float, seed: int) -> np.ndarray:
    """Rows on a curve, between two places along it, with noise that hides none of its bends."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(low, high, n)
    x = np.stack([t, t**2, np.sin(2 * t), np.cos(3 * t), t * np.abs(t)], 1)
    return x + 0.05 * rng.standard_normal(x.shape)


@pytest.fixture(scope="module")
def model():
    return LaplacianAutoencoder(method="posthoc", hessian="lowrank", latent_dim=1, **QUICK).fit(arc(200, -1, 1, 0))


@pytest.mark.parametrize("hessian", ["lowrank", "sketch"])
def test_it_is_the_share_of_networks_that_agree(hessian, model):
    """Networks are moved a little along each draw, by hand, and what changes is scaled up: a derivative."""
    if hessian != "lowrank":
        model = LaplacianAutoencoder(method="posthoc", hessian=hessian, latent_dim=1, temperature=1.0, **QUICK)
        model.fit(arc(200, -1, 1, 0))
    inner = model.model_
    new = np.concatenate([arc(40, -1, 1, 1), arc(20, 1, 1.3, 2)])
    method, calibration = as_a(Laplace, inner.method), sure(inner.calibration)
    reference, n = calibration.reference, len(new)
    x = torch.cat([inner.tensor(new), reference.rows])
    own = torch.cat([torch.full((n,), -1), reference.own])
    step, found = 1e-5, inner.predict(x)
    deltas = torch.cat(list(draws(method.posterior, range(100))))

    def at(delta: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        network = copy.deepcopy(method.network)
        with torch.no_grad():
            for name, p in network.named_parameters():
                p += delta[name]
            z = network.encode(x)
            return z, method.likelihood.mean(network.decode(z))

    zero = at({name: torch.zeros_like(p) for name, p in method.network.named_parameters()})
    flagged = []
    for delta in deltas:
        z, y = at(method.posterior.split(step * delta))
        moved = found.replace(z_mean=found.z_mean + (z - zero[0]) / step, x_mean=found.x_mean + (y - zero[1]) / step)
        shift = calibration.score(moved, x, own) - calibration.score(found, x, own)
        scores = calibration.score(found, x, own) + shift
        flagged.append(p_values(scores[:n].numpy(), scores[n:].numpy()) <= 0.05)
    expected = (np.array(flagged) == (model.p_value(new) <= 0.05)).mean(0)
    confidence = model.predict_confidence(new)
    assert np.mean(np.abs(confidence - expected) <= 0.011) > 0.95  # a verdict on the edge may turn by rounding
    assert confidence.min() >= 0
    assert confidence.max() <= 1


def test_verdicts_are_less_sure_at_the_threshold(model):
    x = np.concatenate([arc(200, -1, 1, 3), arc(100, 1, 1.5, 4)])
    p, confidence = model.p_value(x), model.predict_confidence(x)
    edge = np.abs(np.log(p / 0.05)) < 0.7
    assert edge.sum() > 3
    assert confidence[edge].mean() < confidence[p > 0.3].mean()


@pytest.mark.parametrize("kind", ["dice", "copies"])
def test_what_moves_all_rows_alike_changes_no_verdict(kind):
    """Where the data leave codes and residuals open, all scores move with a draw, those of calibration rows too."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((400, 3))
    x = rng.integers(1, 7, (400, 6)) if kind == "dice" else np.hstack([z, z, 2 * z])
    model = LaplacianAutoencoder(random_state=0, device="cpu").fit(x[:300])
    usual = model.p_value(x[300:]) > 0.2
    assert model.predict_confidence(x[300:])[usual].mean() > 0.9


class Half(nn.Module):
    """A layer with a `forward` of its own: a network that cannot be walked layer by layer."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.layer = nn.Linear(n_in, n_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x.mean(1, keepdim=True)


@pytest.mark.parametrize("kind", ["any module", "no weights before the code"])
@pytest.mark.parametrize("hessian", ["lowrank", "sketch"])
def test_verdicts_of_networks_of_other_people(hessian, kind):
    """Their weights are frozen once trained; those of the encoder may be none at all."""
    network = (Half(5, 2), Half(2, 5)) if kind == "any module" else (nn.Identity(), nn.Linear(5, 5))
    x = arc(120, -1, 1, 0)
    model = LaplacianAutoencoder.from_trained(*network, hessian=hessian, random_state=0, device="cpu").fit(x)
    confidence = model.predict_confidence(x[:20])
    assert ((confidence >= 0) & (confidence <= 1)).all()


def test_many_calibration_rows_move_as_the_next_in_rank(model, monkeypatch):
    new = np.concatenate([arc(100, -1, 1, 8), arc(30, 1, 1.3, 9)])
    every = model.predict_confidence(new)
    n = len(model.model_.calibration.reference.rows)
    monkeypatch.setattr("lapae.calibrate.confidence.MOST_MOVED", n * 2 // 3)
    assert np.abs(model.predict_confidence(new) - every).mean() < 0.05


def test_nothing_observed_has_no_confidence_and_no_posterior_is_an_error(model):
    with pytest.warns(UserWarning, match="nothing observed"):
        model.p_value(np.full((1, 5), np.nan))
    assert np.isnan(model.predict_confidence(np.full((1, 5), np.nan))).all()
    lacking = arc(5, -1, 1, 5)
    lacking[:, 1] = np.nan
    assert np.isfinite(model.predict_confidence(lacking)).all()
    plain = LaplacianAutoencoder(method="ae", random_state=0, device="cpu", epochs=1).fit(arc(60, -1, 1, 0))
    with pytest.raises(ValueError, match="posterior"):
        plain.predict_confidence(lacking)


def coverage(model: LaplacianAutoencoder, x: np.ndarray) -> float:
    low, high = model.predict_interval(x, level=0.9)
    return float(((low <= x) & (x <= high)).mean())


def test_intervals_hold_more_where_the_data_end(model):
    """Beyond the training rows the posterior makes intervals wider; a plain autoencoder has nothing to do it with."""
    new, beyond = arc(300, -1, 1, 6), arc(200, 1, 1.6, 7)
    plain = LaplacianAutoencoder(method="ae", latent_dim=1, **QUICK).fit(arc(200, -1, 1, 0))
    assert coverage(model, new) == pytest.approx(0.9, abs=0.04)
    assert coverage(model, beyond) > coverage(plain, beyond) + 0.05
    sure_of_itself = copy.copy(model)
    sure_of_itself.model_ = copy.copy(model.model_)
    method = copy.deepcopy(model.model_.method)
    method.temperature = 1e-9
    object.__setattr__(sure_of_itself.model_, "method", method)
    assert coverage(sure_of_itself, beyond) < coverage(model, beyond) - 0.05


def test_intervals_of_windows_hold_more_where_a_sensor_drifts():
    def windows(n: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        t = rng.uniform(0, 6, (n, 1)) + np.arange(16) / 3
        sources = np.stack([np.sin(t), np.cos(1.7 * t + 1)], 2)
        return sources @ [[1, 0.5, 0, 1], [0, 1, 1, -1]] + 0.1 * rng.standard_normal((n, 16, 4))

    known, new = windows(200, 0), windows(200, 1)
    drifting = new + np.linspace(0, 3, 16)[:, None] * np.eye(4)[1]
    held = {}
    for method in ("online", "ae"):
        model = LaplacianAutoencoder(method=method, **QUICK).fit(known)
        assert coverage(model, new) == pytest.approx(0.9, abs=0.04)
        held[method] = coverage(model, drifting)
    assert held["online"] > held["ae"] + 0.05


@pytest.mark.parametrize("kind", ["one column", "copies", "rank two"])
def test_a_table_that_is_learned_exactly_has_intervals_that_hold(kind):
    rng = np.random.default_rng(0)
    z = rng.standard_normal((500, 2))
    x = {"one column": z[:, :1], "copies": np.hstack([z, z, 2 * z]), "rank two": z @ rng.standard_normal((2, 6))}[kind]
    model = LaplacianAutoencoder(random_state=0, device="cpu").fit(x[:300])
    low, high = model.predict_interval(x[300:])
    assert ((low <= x[300:]) & (x[300:] <= high)).mean() > 0.85
    assert (high - low).max() < 0.01
    codes, deviation = model.transform(x[300:], return_std=True)
    assert deviation.max() < 1000 * codes.std()  # codes may be scaled, and decoders scaled back, but for the prior


def test_rows_that_are_off_as_a_whole_have_wider_intervals():
    """Recipes far from those learned are reconstructed badly; the variance alone says so too little."""
    rng = np.random.default_rng(0)
    parts = rng.gamma(0.8, size=(300, 7)) * (rng.random((300, 7)) < 0.7)
    parts /= parts.sum(1, keepdims=True).clip(1e-9)
    strength = 8 * parts[:, 0] * parts[:, 1] + np.sqrt(parts[:, 2]) + 0.05 * rng.standard_normal(300)
    x = np.column_stack([parts, strength])
    x = (x - x.mean(0)) / x.std(0)
    order = np.argsort(np.linalg.svd(x, full_matrices=False)[0][:, 1])
    model = LaplacianAutoencoder(random_state=0, device="cpu").fit(x[order[:225]])
    assert coverage(model, x[order[225:]]) > 0.84
