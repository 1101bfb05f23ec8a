"""The same posterior and marginal likelihood as laplace-torch, on a network that both support.

Their conventions: `sigma_noise` is our `Gaussian(sigma)`; the loss is a sum of squared errors, which they halve; H is
the GGN of a unit Gaussian, divided by sigma² when it is used; `prior_precision` is δ. Their Kronecker factors are G and
A / N, weight and bias apart, as ours are. Theirs are exact (KFLR), so that ours are taken exactly too
(`n_samples=None`). The autoencoder is its own regression: the targets are the inputs.
"""

from __future__ import annotations

import copy

import pytest
import torch
from explicit import quadratic
from narrow import as_a, diagonal_of
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from lapae.config import MethodConfig
from lapae.curvature import ggn_kfac
from lapae.curvature.likelihoods import Gaussian
from lapae.methods.laplace import make_precision
from lapae.methods.posthoc import PostHoc
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder
from lapae.posterior import log_marginal_likelihood, maximise

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

laplace = pytest.importorskip("laplace", reason="laplace-torch is an optional oracle")
curvature = pytest.importorskip(
    "laplace.curvature.backpack", reason="laplace-torch is one of the peers that `make test` installs"
)

SIGMA, DELTA = 0.5, 0.8


@pytest.fixture(autouse=True)
def double_by_default():
    """laplace-torch makes its prior precision in the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def network() -> Autoencoder:
    torch.manual_seed(0)
    return Autoencoder(
        nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)),
        nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 5)),
    )


def data() -> Tensor:
    return torch.randn(11, 5, generator=torch.Generator().manual_seed(1))


def theirs(structure: str):
    """Fitted in three batches, one of them short."""
    halves = (as_a(nn.Sequential, half) for half in (network().encoder, network().decoder))
    flat = nn.Sequential(*(layer for half in halves for layer in half))  # BackPACK wants them in one
    flat.load_state_dict(dict(zip(flat.state_dict(), network().state_dict().values(), strict=True)))
    found = laplace.Laplace(
        copy.deepcopy(flat),
        "regression",
        subset_of_weights="all",
        hessian_structure=structure,
        sigma_noise=SIGMA,
        prior_precision=DELTA,
        backend=curvature.BackPackGGN,
    )
    found.fit(DataLoader(TensorDataset(data(), data()), batch_size=4))
    return found


def ours(hessian: str, optimize_prior: str = "none") -> tuple[PostHoc, dict[str, float]]:
    config = MethodConfig(method="posthoc", hessian=hessian, prior_precision=DELTA, optimize_prior=optimize_prior)
    method = PostHoc(network, Gaussian(SIGMA), config.options, 11)
    method.posterior.set_prior(DELTA)
    return method, method.finish(lambda: data().split(4), 11, StepContext())


def test_diagonal():
    found, (method, report) = theirs("diag"), ours("exact")
    assert_close(diagonal_of(method).diagonal(), found.posterior_precision)
    assert report["log_likelihood"] == pytest.approx(found.log_likelihood.item())
    assert report["log_marginal_likelihood"] == pytest.approx(found.log_marginal_likelihood().item())


def test_prior_by_marginal_likelihood():
    """They climb by gradient steps, and end near our maximum, not above it."""
    found, (method, report) = theirs("diag"), ours("exact", "scalar")
    found.optimize_prior_precision(method="marglik", n_steps=1000, lr=0.05)
    assert report["prior_precision"] == pytest.approx(found.prior_precision.item(), rel=1e-2)
    assert report["log_marginal_likelihood"] >= found.log_marginal_likelihood().item() - 1e-9
    at_ours = found.log_marginal_likelihood(prior_precision=method.posterior.prior[0])
    assert report["log_marginal_likelihood"] == pytest.approx(at_ours.item())


def test_kronecker_factors():
    found, module = theirs("kron"), network()
    precision = make_precision(module, "kfac", DELTA, 1.0)
    precision.set_prior(DELTA)
    for x in data().split(4):
        precision.update(1.0, 1.0, ggn_kfac(module, x, Gaussian(SIGMA), n_samples=None))
    mean = dict(module.named_parameters())
    assert_close(precision.log_det(), found.log_det_posterior_precision)
    log_likelihood = found.log_likelihood.item()
    expected = found.log_marginal_likelihood().item()
    assert log_marginal_likelihood(log_likelihood, mean, precision) == pytest.approx(expected)
    delta = torch.randn(precision.n_weights, generator=torch.Generator().manual_seed(2))
    assert_close(quadratic(precision, delta), found.square_norm(found.mean + delta))
    maximise(mean, precision)
    at_ours = found.log_marginal_likelihood(prior_precision=precision.prior[0])
    assert log_marginal_likelihood(log_likelihood, mean, precision) == pytest.approx(at_ours.item())
