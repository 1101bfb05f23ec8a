"""The marginal likelihood where it is known exactly, and the prior precision that maximises it."""

from __future__ import annotations

import math

import pytest
import torch
from explicit import HESSIANS, fitted, matrix
from torch import nn
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from lapae.curvature import ggn_blocks
from lapae.curvature.likelihoods import Gaussian
from lapae.methods.laplace import make_precision
from lapae.posterior import Precision, log_marginal_likelihood, maximise

every_form = pytest.mark.parametrize("form", sorted(HESSIANS))


def mean_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters())


def test_evidence_of_a_linear_model_is_exact():
    """One linear layer is linear in its weights: the Laplace approximation at the mode is the model itself.

    Its evidence is that of y ~ N(0, σ² I + Φ Φᵀ / δ), with Φ = [x, 1], output by output.
    """
    sigma, delta, n = 0.4, 1.7, 12
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, dtype=torch.float64, generator=generator)
    y = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    features = torch.cat([x, torch.ones(n, 1, dtype=torch.float64)], 1)
    mode = torch.linalg.solve(features.T @ features / sigma**2 + delta * torch.eye(4), features.T @ y / sigma**2)
    module = nn.Sequential(nn.Linear(3, 2)).double()
    module[0].weight.data, module[0].bias.data = mode[:3].T.contiguous(), mode[3].contiguous()

    likelihood = Gaussian(sigma)
    precision = make_precision(module, "block", 1.0, 1.0).double()
    precision.set_prior(delta)
    precision.update(0.0, 1.0, ggn_blocks(module, x, likelihood))
    log_likelihood = float(likelihood.log_prob(module(x), y).sum().detach())
    found = log_marginal_likelihood(log_likelihood, mean_of(module), precision)

    covariance = sigma**2 * torch.eye(n, dtype=torch.float64) + features @ features.T / delta
    exact = MultivariateNormal(torch.zeros(n, dtype=torch.float64), covariance).log_prob(y.T).sum()
    assert found == pytest.approx(float(exact), rel=1e-10)


@every_form
@pytest.mark.parametrize("prior", ["one", "many"])
def test_evidence_is_the_laplace_integral(form, prior):
    """log p(D | θ*) + log p(θ*) - log q(θ*), with both Gaussians normalised."""
    module, precision = fitted(form, prior)
    mean = mean_of(module)
    prior_of = torch.distributions.Normal(0.0, precision.flat_prior().rsqrt())
    log_prior = prior_of.log_prob(precision.join(mean)).sum()
    posterior = MultivariateNormal(precision.join(mean), precision_matrix=matrix(precision))
    expected = -12.5 + log_prior - posterior.log_prob(posterior.mean)
    assert log_marginal_likelihood(-12.5, mean, precision) == pytest.approx(float(expected), rel=1e-10)


def best_on_a_grid(mean, precision: Precision, members: list[int]) -> float:
    """log10 of the best δ of some parameters, the others left alone."""
    start = precision.prior.clone()

    def value(power: float) -> float:
        new = start.clone()
        new[members] = 10.0**power
        precision.set_prior(new)
        return log_marginal_likelihood(0.0, mean, precision)

    low, high = -8.0, 12.0
    for _ in range(6):  # finer and finer
        grid = torch.linspace(low, high, 21).tolist()
        i = max(range(21), key=lambda j: value(grid[j]))
        low, high = grid[max(i - 1, 0)], grid[min(i + 1, 20)]
    precision.set_prior(start)
    return 0.5 * (low + high)


@every_form
def test_scalar_prior_is_that_of_a_grid_search(form):
    module, precision = fitted(form)
    best = best_on_a_grid(mean_of(module), precision, list(range(len(precision.shapes))))
    maximise(mean_of(module), precision, "scalar")
    assert_close(precision.prior.log10(), torch.full_like(precision.prior, best), atol=1e-4, rtol=0)
    assert precision.uniform_prior() is not None


@every_form
def test_prior_a_layer_is_that_of_a_grid_search(form):
    module, precision = fitted(form)
    mean = mean_of(module)
    layers: dict[str, list[int]] = {}
    for i, name in enumerate(precision.shapes):
        layers.setdefault(name.rpartition(".")[0], []).append(i)
    best = {layer: best_on_a_grid(mean, precision, members) for layer, members in layers.items()}
    maximise(mean, precision, "scalar")
    one = log_marginal_likelihood(0.0, mean, precision)
    maximise(mean, precision, "layer")
    for layer, members in layers.items():
        for i in members:
            assert float(precision.prior[i].log10()) == pytest.approx(best[layer], abs=1e-4)
    assert log_marginal_likelihood(0.0, mean, precision) > one


@every_form
def test_extremes_stay_in_range(form):
    module, precision = fitted(form)
    zeros = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    maximise(zeros, precision)  # weights of zero want a prior as tight as it gets
    assert precision.prior.log10().tolist() == pytest.approx([12.0] * len(precision.shapes))
    precision.reset(0.0)
    maximise(mean_of(module), precision)  # data that say nothing want none
    assert precision.prior.log10().tolist() == pytest.approx([-8.0] * len(precision.shapes))


def test_what_cannot_be():
    module, precision = fitted("diagonal")
    with pytest.raises(ValueError, match="prior precision by 'weight': expected scalar or layer"):
        maximise(mean_of(module), precision, "weight")  # pyright: ignore[reportArgumentType]
    _, warm = fitted("diagonal", temperature=2.0)
    with pytest.raises(ValueError, match="temperature 1, got 2"):
        log_marginal_likelihood(0.0, mean_of(module), warm)
    assert math.isfinite(log_marginal_likelihood(0.0, mean_of(module), precision))
