"""The size of a posterior by the predictive likelihood of held-out data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from narrow import as_a

from lapae import LaplacianAutoencoder
from lapae.calibrate.temperature import fit_drawn, fit_temperature
from lapae.curvature.likelihoods import Gaussian
from lapae.methods.laplace import Laplace
from lapae.posterior import DiagonalPrecision, LowRankPrecision
from lapae.predict.prediction import Prediction

QUICK = {"epochs": 30, "latent_dim": 2, "device": "cpu", "random_state": 0}


def plane(n: int, seed: int) -> np.ndarray:
    """A plane in five dimensions, with noise."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)) @ np.eye(2, 5) + 0.2 * rng.standard_normal((n, 5))


@pytest.fixture(scope="module")
def posthoc():
    return LaplacianAutoencoder(method="posthoc", hessian="sketch", **QUICK).fit(plane(300, 0))


def error_of_networks(model, x: np.ndarray) -> float:
    """Squared error of a reconstruction, a mean over networks."""
    method = model.model_.method
    with torch.no_grad():
        draws = method.draw(list(range(20)))
        inputs = model.model_.tensor(x)
        found = draws.decode(draws.encode(inputs[None])).loc
    return float((found - inputs).square().sum(-1).mean())


def test_a_posterior_that_is_too_wide_is_narrowed(posthoc):
    """The post-hoc posterior of a network knows nothing of how its weights act together."""
    fixed = LaplacianAutoencoder(method="posthoc", hessian="sketch", temperature=1.0, **QUICK).fit(plane(300, 0))
    assert fixed.model_.config.method.temperature == 1
    found = posthoc.model_.config.method.temperature
    assert found == posthoc.model_.method.posterior.temperature < 1
    assert error_of_networks(posthoc, plane(200, 1)) < 0.8 * error_of_networks(fixed, plane(200, 1))


def test_it_is_found_again_from_anywhere(posthoc):
    method, x = posthoc.model_.method, posthoc.model_.tensor(plane(200, 2))
    right = method.posterior.temperature
    for start in (100 * right, right):
        method.posterior.temperature = start
        assert right / 11 < fit_temperature(method, x) < 11 * right  # within a step of the search
    method.posterior.temperature = right


@pytest.mark.parametrize("start", [100.0, 1.0, 0.01])
def test_it_is_that_of_the_variances_where_these_are_known(start, monkeypatch):
    """Residuals have the variance of the networks at temperature 1, another for each row, and a little noise."""
    rng = np.random.default_rng(0)
    variance = torch.from_numpy(np.exp(1.5 * rng.standard_normal((200, 1))) * np.ones((200, 10)))
    residual = (variance + 0.01).sqrt() * torch.from_numpy(rng.standard_normal((200, 10)))

    def known(method: Any, x: torch.Tensor, **options: Any) -> Prediction:
        return Prediction(1, {"x_mean": x - residual, "x_var": method.temperature * variance})

    monkeypatch.setattr("lapae.calibrate.temperature.predict", known)
    method: Any = SimpleNamespace(temperature=start, likelihood=Gaussian())
    assert fit_temperature(method, torch.zeros(200, 10).double()) == pytest.approx(1.0)
    assert method.temperature == pytest.approx(1.0)


def test_data_of_many_values_still_tell(posthoc, monkeypatch):
    """Of large images few are taken, and not just one."""
    monkeypatch.setattr("lapae.calibrate.temperature.VALUES", 5)
    method, x = posthoc.model_.method, posthoc.model_.tensor(plane(200, 2))
    right = method.posterior.temperature
    method.posterior.temperature = 100 * right
    assert fit_temperature(method, x) <= 10 * right
    method.posterior.temperature = right
    assert fit_temperature(method, x[:1]) == right


def test_it_is_saved(posthoc, tmp_path):
    posthoc.save(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run")
    assert as_a(Laplace, again.model_.method).posterior.temperature == posthoc.model_.method.posterior.temperature
    np.testing.assert_array_equal(again.transform(plane(5, 3), True)[1], posthoc.transform(plane(5, 3), True)[1])


def test_linearised_networks_find_their_own_size_and_warn_where_it_is_far_from_natural():
    model = LaplacianAutoencoder(method="posthoc", hessian="exact", predictive="linearized", **QUICK)
    model.fit(plane(300, 0))
    method, x = as_a(Laplace, model.model_.method), model.model_.tensor(plane(200, 2))
    natural = fit_temperature(method, x, linearized=True)
    assert natural >= 0.1
    posterior = as_a(DiagonalPrecision, method.posterior)
    posterior.h.mul_(1e-4)
    posterior.set_prior(1e-4 * posterior.prior)
    with pytest.warns(UserWarning, match="hessian='lowrank'"):
        found = fit_temperature(method, x, linearized=True)
    assert natural / 11e4 < found < 11 * natural / 1e4


def test_networks_drawn_from_a_low_rank_posterior_are_as_good_as_their_mean_but_a_fifth(tmp_path):
    """Their temperature belongs to them alone: linearised variances keep their own."""
    model = LaplacianAutoencoder(method="posthoc", hessian="lowrank", **QUICK).fit(plane(300, 0))
    method, x = as_a(Laplace, model.model_.method), plane(200, 1)
    precision = as_a(LowRankPrecision, method.posterior)
    rows = model.model_.tensor(x)
    mean = float((method.network(rows) - rows).square().sum(-1).mean().detach())
    narrow = float(precision.drawn)
    assert method.temperature == 1
    assert narrow < 1
    assert error_of_networks(model, x) < 1.4 * mean  # 1.2 on the rows that it was found on
    precision.drawn.fill_(1.0)
    assert error_of_networks(model, x) > 2 * mean
    before = model.transform(x, return_std=True)[1]
    assert fit_drawn(method, model.model_.tensor(plane(300, 0))) == pytest.approx(narrow, rel=0.9)
    assert np.array_equal(before, model.transform(x, return_std=True)[1])
    model.save(tmp_path / "run")
    loaded = as_a(Laplace, LaplacianAutoencoder.load(tmp_path / "run").model_.method)
    assert float(as_a(LowRankPrecision, loaded.posterior).drawn) == float(precision.drawn)
