"""Moments against the layer formulas by brute force, closed forms, and sampled networks."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Case, seeded
from narrow import as_a, h_of, sure
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.testing import assert_close

from lapae.config.methods import PostHocOptions
from lapae.curvature import Residual, Sum, record
from lapae.curvature.forward import Forward
from lapae.curvature.likelihoods import Gaussian
from lapae.methods.posthoc import PostHoc
from lapae.networks import Autoencoder
from lapae.predict import linearized, moments, predict
from lapae.predict.moments import push

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:Using padding=.same.")

AFFINE = (nn.Linear, nn.modules.conv._ConvNd)


def by_hand(module: nn.Module, name: str, x: Tensor, v: Tensor, var: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Output and its variance, layer by layer with explicit Jacobians: (B, *in) twice -> (B, *out) twice."""
    prefix = f"{name}." if name else ""
    if isinstance(module, nn.Sequential):
        for child, layer in module.named_children():
            x, v = by_hand(layer, prefix + child, x, v, var)
        return x, v
    if isinstance(module, Residual):
        y, inner = by_hand(module.branch, f"{prefix}branch", x, v, var)
        return x + y, v + inner
    if isinstance(module, Sum):
        first, second = (by_hand(way, prefix + key, x, v, var) for key, way in module.named_children())
        return first[0] + second[0], first[1] + second[1]
    params = {key: p.detach() for key, p in module.named_parameters()}

    def of_datum(params, x):
        return functional_call(module, params, (x[None].clone(),))[0]

    y = module(x.clone())
    to_input = vmap(jacrev(of_datum, 1), in_dims=(None, 0))(params, x)
    flat = to_input.reshape(len(x), y[0].numel(), x[0].numel())
    total = torch.einsum("boi,bi->bo", flat.square(), v.flatten(1)).reshape(y.shape)
    if params:
        to_weights = vmap(jacrev(of_datum), in_dims=(None, 0))(params, x)
        for key, jacobian in to_weights.items():
            spread = jacobian.reshape(*y.shape, -1).square() @ var[prefix + key].reshape(-1)
            total = total + spread
    if isinstance(module, AFFINE):  # the product of a weight's and an input's deviation
        products = {key: torch.zeros_like(p) for key, p in params.items()} | {"weight": var[f"{prefix}weight"]}
        total = total + functional_call(module, products, (v,))
    return y, total


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_layer_has_its_formula(case: Case):
    module, x = case.module().requires_grad_(True), case.x(2)
    var = {name: torch.rand(p.shape, dtype=p.dtype, generator=seeded(2)) for name, p in module.named_parameters()}
    v = torch.rand(x.shape, dtype=x.dtype, generator=seeded(3))
    with torch.no_grad():
        tape = as_a(Forward, record(module, x))
        for start in (v, torch.zeros_like(v)):
            y, expected = by_hand(module, "", x, start, var)
            found = push(tape.nodes, start if start is v else None, var)
            assert_close(tape.output, y)
            assert_close(found, expected)


def method_of(encoder: nn.Module, decoder: nn.Module, variance: float, shape: tuple[int, ...] = (5,)):
    """A posterior whose weights have variances around `variance`."""
    torch.manual_seed(0)
    network = Autoencoder(encoder, decoder)
    method = PostHoc(lambda: network, Gaussian(0.5), PostHocOptions(prior_precision=0.5 / variance), 9).double().eval()
    method.posterior.set_prior(0.5 / variance)
    h_of(method).uniform_(0.0, 1.0 / variance, generator=seeded(4))
    x = torch.randn(6, *shape, dtype=torch.float64, generator=seeded(5))
    return method, x


def variances(method: PostHoc) -> dict[str, Tensor]:
    return method.posterior.split(1 / (h_of(method) + method.posterior.prior[0]))


def test_one_layer_each_is_exact():
    """Codes are independent given the input, so that the formulas have no error, however wide the posterior."""
    method, x = method_of(nn.Linear(5, 2), nn.Linear(2, 5), 0.7)
    var = variances(method)
    with torch.no_grad():
        found = moments(method, x)
        w = dict(method.network.named_parameters())
        z = method.network.encode(x)
        z_var = x.square() @ var["encoder.weight"].T + var["encoder.bias"]
        x_var = (
            z_var @ w["decoder.weight"].square().T
            + (z.square() + z_var) @ var["decoder.weight"].T
            + var["decoder.bias"]
        )
    assert_close(found.z_mean, z)
    assert_close(found.z_cov, torch.diag_embed(z_var))
    assert_close(found.output, method.network(x).detach())
    assert_close(found.output_var, x_var)
    sampled = predict(method, x, n_samples=20_000)
    assert_close(sure(found.z_cov).diagonal(dim1=1, dim2=2), sampled.z_var, rtol=0.06, atol=0)
    assert_close(found.output_var, sampled.x_var, rtol=0.1, atol=0)


def test_a_deep_linear_encoder_against_sampled_networks():
    """Weights of every layer are independent of all others: the variance of each code is exact."""
    encoder = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    method, x = method_of(encoder, nn.Linear(2, 5), 0.3)
    with torch.no_grad():
        found = moments(method, x)
    sampled = predict(method, x, n_samples=30_000, want=["codes"])
    assert_close(sure(found.z_cov).diagonal(dim1=1, dim2=2), sampled.z_var, rtol=0.1, atol=0)


def test_a_nonlinear_network_with_a_narrow_posterior_against_sampled_networks():
    """To first order; a single hidden layer in the encoder keeps its units independent."""
    encoder = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    method, x = method_of(encoder, nn.Sequential(nn.Linear(2, 5)), 1e-6)
    with torch.no_grad():
        found, line = moments(method, x), linearized(method, x)
    sampled = predict(method, x, n_samples=4000)
    z_var = sure(found.z_cov).diagonal(dim1=1, dim2=2)
    assert_close(z_var, sure(line.z_cov).diagonal(dim1=1, dim2=2), rtol=1e-4, atol=0)
    assert_close(z_var, sampled.z_var, rtol=0.15, atol=0)
    assert_close(found.output_var, sampled.x_var, rtol=0.5, atol=0)  # the code's covariance is left out here


def test_reshaping_layers_alone_have_no_variance():
    method, x = method_of(nn.Flatten(), nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3))), 0.1, (2, 3))
    with torch.no_grad():
        found = moments(method, x)
    assert not sure(found.z_cov).any()
    assert (sure(found.output_var) > 0).all()


@pytest.mark.parametrize("hessian", ["block", "kfac"])
def test_it_needs_a_diagonal_posterior(hessian):
    network = Autoencoder(nn.Linear(5, 2), nn.Linear(2, 5))
    method = PostHoc(lambda: network, Gaussian(), PostHocOptions(hessian=hessian), 9)
    with pytest.raises(ValueError, match=r"needs a diagonal posterior .*; use mc"):
        moments(method, torch.zeros(1, 5))
