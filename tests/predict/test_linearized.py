"""The linearised predictive against J Σ Jᵀ by brute force: Jacobians from torch.func, Σ an explicit matrix."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from explicit import EVERY, matrix, whole_root
from narrow import sure
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.testing import assert_close

from lapae.config.methods import PostHocOptions
from lapae.curvature import Residual
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from lapae.methods.posthoc import PostHoc
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder
from lapae.posterior import LowRankPrecision
from lapae.posterior.lowrank import WEAK
from lapae.predict import linearized
from lapae.predict.linearized_lowrank import variance_of_values

N_DATA = 4
LIKELIHOODS = {"gaussian": Gaussian(0.7), "bernoulli": Bernoulli(), "categorical": Categorical()}


@pytest.fixture(autouse=True)
def every_direction(monkeypatch):
    """Have the variance of a low-rank posterior from a root of its covariance: exact, where draws are unbiased."""
    monkeypatch.setattr("lapae.predict.linearized_lowrank.draws", whole_root)
    monkeypatch.setattr("lapae.predict.linearized_lowrank.NEGLIGIBLE", -1.0)  # never in single precision


def dense() -> Autoencoder:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    return Autoencoder(
        encoder, nn.Sequential(nn.Linear(2, 5), nn.ELU(), nn.Linear(5, 6, bias=False), nn.Unflatten(1, (3, 2)))
    )


def bare() -> Autoencoder:
    """One layer each, not in a Sequential."""
    return Autoencoder(nn.Linear(2, 3), nn.Linear(3, 2))


def convolutional() -> Autoencoder:
    encoder = nn.Sequential(
        nn.Conv2d(3, 2, 2), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3), nn.BatchNorm1d(3)
    )
    decoder = nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), nn.Unflatten(1, (1, 2, 2)), nn.ConvTranspose2d(1, 2, 2), nn.Tanh(),
        nn.Conv2d(2, 3, 1),
    )  # fmt: skip
    return Autoencoder(encoder, decoder)


def residual() -> Autoencoder:
    encoder = nn.Sequential(nn.Flatten(), Residual(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 6)), nn.Linear(6, 2))
    decoder = nn.Sequential(nn.Linear(2, 6), Residual(Residual(nn.Linear(6, 6)), nn.Tanh()), nn.Unflatten(1, (3, 2)))
    return Autoencoder(encoder, decoder)


NETWORKS: dict[str, tuple[Callable[[], Autoencoder], tuple[int, ...]]] = {
    "dense": (dense, (3, 2)),
    "convolutional": (convolutional, (3, 3, 3)),
    "residual": (residual, (3, 2)),
}


def method_of(network, shape, likelihood: Likelihood, form: str = "diagonal", temperature: float = 1.3):
    """Fitted post hoc to random data, with a δ of its own for every layer."""
    torch.manual_seed(0)
    x = torch.rand(N_DATA, *shape, dtype=torch.float64)
    options = PostHocOptions(hessian=EVERY[form], prior_precision=0.8, optimize_prior="none", temperature=temperature)
    method = PostHoc(network, likelihood, options, N_DATA).double().eval()
    method.finish(lambda: x.split(3), N_DATA, StepContext())
    method.posterior.set_prior(torch.linspace(0.5, 2.0, len(method.posterior.shapes), dtype=torch.float64))
    return method, x


def brute_force(method: PostHoc, x: Tensor) -> tuple[Tensor, Tensor]:
    """Covariance of codes (B, K, K), given the decoder, and variance of the expected data (B, *shape)."""
    precision = method.posterior
    covariance = of_codes = torch.linalg.inv(matrix(precision))
    if isinstance(precision, LowRankPrecision):  # vectors alone and a weak prior
        free = torch.tensor([name.startswith("encoder") for name in precision.shapes])
        free = free.repeat_interleave(torch.tensor(precision.sizes))
        given = precision.u.T @ precision.u + WEAK * 0.8 * torch.eye(precision.n_weights, dtype=x.dtype)
        of_codes = torch.zeros_like(covariance)
        of_codes[free[:, None] & free] = torch.linalg.inv(given[free][:, free] / precision.temperature).flatten()
    params = {name: p.detach() for name, p in method.network.named_parameters()}

    def codes(params, x):
        own = {k.removeprefix("encoder."): v for k, v in params.items() if k.startswith("encoder.")}
        return functional_call(method.network.encoder, own, (x[None],))[0]

    def expected(params, x):
        return method.likelihood.mean(functional_call(method.network, params, (x[None],)))[0]

    def jacobian(function):
        parts = vmap(jacrev(function), in_dims=(None, 0))(params, x)
        n_out = parts[next(iter(params))].ndim - params[next(iter(params))].ndim
        return torch.cat([parts[name].flatten(n_out) for name in params], dim=-1)

    j_z, j_x = jacobian(codes), jacobian(expected)
    return (
        torch.einsum("bkp,pq,blq->bkl", j_z.flatten(1, -2), of_codes, j_z.flatten(1, -2)),
        torch.einsum("b...p,pq,b...q->b...", j_x, covariance, j_x),
    )


@pytest.mark.parametrize("form", sorted(EVERY))
@pytest.mark.parametrize("likelihood", sorted(LIKELIHOODS))
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_variances_are_those_of_the_definition(network, likelihood, form):
    method, x = method_of(*NETWORKS[network], LIKELIHOODS[likelihood], form)
    with torch.no_grad():
        found = linearized(method, x)
        z, output = method.network.encode(x), method.network(x)
    z_cov, x_var = brute_force(method, x)
    assert_close(found.z_mean, z)
    assert_close(found.output, output)
    assert_close(found.z_cov, z_cov)
    assert_close(found.output_var, x_var)


@pytest.mark.parametrize("form", sorted(EVERY))
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_some_rows_at_a_time(network, form):
    method, x = method_of(*NETWORKS[network], Categorical(), form)
    with torch.no_grad():
        whole = linearized(method, x)
        for budget in (1, 20_000):
            assert_close(linearized(method, x, memory_budget=budget).output_var, whole.output_var)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_a_small_budget_means_a_sample_and_a_row_at_a_time(network, monkeypatch):
    """All rows of a code go together: they have a covariance."""
    seen = set()
    module = sys.modules["lapae.predict.linearized"]  # the package holds the function under this name
    pull = module.pull_rows

    def watching(nodes, rows, *rest, **options):
        seen.add((nodes[0].name.partition(".")[0], *rows.v.shape[:2]))
        return pull(nodes, rows, *rest, **options)

    monkeypatch.setattr(module, "pull_rows", watching)
    method, x = method_of(*NETWORKS[network], Gaussian())
    n_codes = method.network.encode(x).shape[1]
    with torch.no_grad():
        module.linearized(method, x, memory_budget=1)
        assert seen == {("encoder", n_codes, 1), ("decoder", 1, 1)}
        seen.clear()
        module.linearized(method, x)
        assert seen == {("encoder", n_codes, N_DATA), ("decoder", x[0].numel(), N_DATA)}


def test_codes_alone():
    method, x = method_of(*NETWORKS["dense"], Gaussian())
    with torch.no_grad():
        found, whole = linearized(method, x, outputs=False), linearized(method, x)
    assert found.output_var is None
    assert_close(found.z_cov, whole.z_cov)


def test_covariance_is_a_covariance():
    method, x = method_of(*NETWORKS["convolutional"], Gaussian(), "block")
    with torch.no_grad():
        z_cov = sure(linearized(method, x).z_cov)
    assert_close(z_cov, z_cov.mT)
    assert (torch.linalg.eigvalsh(z_cov) > 0).all()
    assert z_cov[:, 0, 1].abs().min() > 1e-6  # correlated: more than a diagonal


def test_temperature_scales_the_variance():
    found = {}
    for temperature in (1.0, 4.0):
        method, x = method_of(*NETWORKS["dense"], Gaussian(), temperature=temperature)
        with torch.no_grad():
            found[temperature] = linearized(method, x)
    assert_close(found[4.0].z_cov, 4 * found[1.0].z_cov)
    assert_close(found[4.0].output_var, 4 * found[1.0].output_var)


@pytest.mark.parametrize("form", sorted(EVERY))
def test_layers_that_are_no_sequence(form):
    method, x = method_of(bare, (2,), Gaussian(), form)
    with torch.no_grad():
        found = linearized(method, x)
    z_cov, x_var = brute_force(method, x)
    assert_close(found.z_cov, z_cov)
    assert_close(found.output_var, x_var)


@pytest.mark.parametrize("likelihood", sorted(LIKELIHOODS))
@pytest.mark.parametrize("network", ["dense", "residual"])
def test_single_precision_where_it_changes_next_to_nothing(network, likelihood, monkeypatch):
    found = {}
    for negligible in (-1.0, 1e-5, 1e-12):
        monkeypatch.setattr("lapae.predict.linearized_lowrank.NEGLIGIBLE", negligible)
        method, x = method_of(*NETWORKS[network], LIKELIHOODS[likelihood], "lowrank")
        with torch.no_grad():
            found[negligible] = linearized(method, x)
    double, single, strict = found.values()
    assert_close(single.z_var, double.z_var, rtol=1e-5, atol=0.0)
    assert_close(single.output_var, double.output_var, rtol=1e-5, atol=1e-12)
    assert not torch.equal(single.output_var, double.output_var)
    assert torch.equal(strict.output_var, double.output_var)
    assert torch.equal(single.output, double.output)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize(("first", "n"), [(0, 1), (0, 2), (1, 1)])
def test_the_variance_of_one_value_of_each_row_is_that_of_all_of_them(first, n, likelihood):
    method, x = method_of(bare, (2,), LIKELIHOODS[likelihood], "lowrank")
    with torch.no_grad():
        every = sure(linearized(method, x).output_var)
    at = first + torch.arange(len(x)) % n  # units of other values have no gradient
    assert_close(variance_of_values(method, x, at), every.gather(1, at[:, None])[:, 0])


def test_the_variance_of_one_value_of_networks_with_other_layers():
    method, x = method_of(*NETWORKS["convolutional"], Gaussian(), "lowrank")
    with torch.no_grad():
        every = sure(linearized(method, x).output_var).flatten(1)
    at = torch.arange(len(x))
    assert_close(variance_of_values(method, x, at), every.gather(1, at[:, None])[:, 0])
