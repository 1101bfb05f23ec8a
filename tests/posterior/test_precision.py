"""The three forms of the precision against explicit matrices in float64."""

from __future__ import annotations

import math

import pytest
import torch
from cases import CASES, Case
from explicit import HESSIANS, curvature_matrix, curvature_of, data, fitted, matrix, network, quadratic
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from lapae.curvature import Kronecker, ggn_kfac, reference
from lapae.methods.laplace import make_precision
from lapae.posterior import BlockPrecision, DiagonalPrecision, KronPrecision

FORMS = sorted(HESSIANS)

every_form = pytest.mark.parametrize("form", FORMS)
every_case = pytest.mark.parametrize(
    ("form", "prior", "temperature"), [(f, p, t) for f in FORMS for p in ("one", "many") for t in (1.0, 2.5)]
)


@every_case
def test_products_and_determinants_are_those_of_the_matrix(form, prior, temperature):
    _, precision = fitted(form, prior, temperature)
    explicit = matrix(precision)
    n = precision.n_weights
    assert explicit.shape == (n, n)

    noise = precision.scale_noise(torch.eye(n, dtype=torch.float64))
    assert_close(noise @ noise, torch.linalg.inv(explicit))
    assert_close(noise, noise.T)  # a root that does not depend on the choice of eigenvectors
    assert_close(precision.log_det(), torch.linalg.slogdet(explicit)[1])


@every_case
def test_whitened_gradients_have_the_length_of_the_variance(form, prior, temperature):
    _, precision = fitted(form, prior, temperature)
    covariance = torch.linalg.inv(matrix(precision))
    place = dict(zip(precision.shapes, torch.arange(precision.n_weights).split(precision.sizes), strict=True))
    layers = dict.fromkeys(name.rpartition(".")[0] for name in precision.shapes)
    for layer in layers:
        names = [name for name in precision.shapes if name.rpartition(".")[0] == layer]
        here = torch.cat([place[name] for name in names])
        gradient = torch.randn(4, len(here), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        parts = gradient.split([len(place[name]) for name in names], dim=1)
        white = precision.whiten(dict(zip(names, parts, strict=True)))
        assert_close(white @ white.T, gradient @ covariance[here][:, here] @ gradient.T)


@every_form
def test_eigenvalues_are_those_of_the_curvature(form):
    _, precision = fitted(form, "many", 2.5)  # neither δ nor T is in them
    found = torch.cat(list(precision.eigenvalues().values())).sort().values
    assert_close(found, torch.linalg.eigvalsh(curvature_matrix(precision)).clamp_min(0), atol=1e-12, rtol=1e-9)


@every_form
def test_updates_are_weighted_sums(form):
    module = network()
    precision = make_precision(module, HESSIANS[form], 1.0, 1.0).double()
    first, second = (curvature_of(form, module, data(seed=seed)) for seed in (1, 2))
    precision.reset(3.0)
    start = curvature_matrix(precision)
    assert_close(start, 3.0 * torch.eye(precision.n_weights, dtype=torch.float64))
    precision.reset(0.0)
    precision.update(1.0, 2.0, first)
    if form != "kron":
        assert_close(curvature_matrix(precision), 2 * as_matrix(first, precision))
    precision.update(0.5, torch.tensor(4.0, dtype=torch.float64), second)
    if form != "kron":
        assert_close(curvature_matrix(precision), as_matrix(first, precision) + 4 * as_matrix(second, precision))
        return
    for i, name in enumerate(precision.shapes):  # G is summed, A is a mean with the same weights
        assert_close(precision.get_buffer(f"g{i}"), first[name].g + 4 * second[name].g)
        if first[name].a is not None:
            mean = (first[name].a + 4 * second[name].a) / (first[name].n + 4 * second[name].n)
            assert_close(precision.get_buffer(f"a{i}") / precision.get_buffer(f"n{i}"), mean)


def as_matrix(curvature, precision):
    if isinstance(precision, DiagonalPrecision):
        return torch.diag(torch.cat([curvature[name].reshape(-1) for name in precision.shapes]))
    return torch.block_diag(*(curvature[layer] for layer in precision.layers))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(3, 4), (3,)),
        (nn.Conv2d(2, 3, 2), (2, 2, 2)),
        (nn.ConvTranspose2d(2, 3, 2, padding=1), (2, 2, 2)),
        (nn.ConvTranspose1d(3, 2, 3, padding=2), (3, 3)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_kronecker_factors_of_one_sample_at_one_position_are_exact(layer, shape):
    """Then the block of the weight is G ⊗ A: the order of the weight's axes must be right to see it."""
    module = nn.Sequential(layer, nn.Flatten(), nn.Tanh(), nn.LazyLinear(5)).double()
    x = torch.randn(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert module(x).shape == (1, 5)
    precision = make_precision(module, "kfac", 1e-3, 1.0).double()
    precision.set_prior(1e-3)
    precision.update(1.0, 1.0, ggn_kfac(module, x, n_samples=None))
    n = layer.weight.numel()
    block = reference.ggn_blocks(module, x)["0"][:n, :n]
    delta = torch.zeros(7, precision.n_weights, dtype=torch.float64)
    delta[:, :n] = torch.randn(7, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    part = delta[:, :n]
    expected = torch.einsum("ap,pq,aq->a", part, block, part) + 1e-3 * part.square().sum(1)
    assert_close(quadratic(precision, delta), expected)


@every_form
def test_split_and_join_are_inverse(form):
    module, precision = fitted(form)
    flat = precision.join(dict(module.named_parameters()))
    parts = precision.split(flat)
    for name, parameter in module.named_parameters():
        assert torch.equal(parts[name], parameter)


@every_form
def test_state_comes_back_and_the_prior_can_change_after_it(form):
    _, precision = fitted(form, "many", 2.5)
    other = make_precision(network(), HESSIANS[form], 5.0, 2.5).double()
    eps = torch.randn(precision.n_weights, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other.scale_noise(eps)  # fills whatever is remembered
    other.load_state_dict(precision.state_dict())
    assert torch.equal(other.scale_noise(eps), precision.scale_noise(eps))
    assert torch.equal(other.log_det(), precision.log_det())
    for delta in (0.25, torch.linspace(0.5, 1.5, len(precision.shapes), dtype=torch.float64)):
        other.set_prior(delta)
        noise = other.scale_noise(torch.eye(other.n_weights, dtype=torch.float64))
        assert_close(noise.T @ noise, torch.linalg.inv(matrix(other)))


@every_form
def test_the_temperature_can_change_after_use(form):
    _, precision = fitted(form, "many")
    eps = torch.randn(precision.n_weights, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cold = precision.scale_noise(eps)
    precision.temperature = 4.0
    assert_close(precision.scale_noise(eps), 2 * cold)


@every_form
def test_what_is_kept_follows_a_change_of_type(form):
    _, precision = fitted(form, "many")
    eps = torch.randn(precision.n_weights, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = precision.scale_noise(eps)
    after = precision.float().scale_noise(eps.float())
    assert after.dtype == torch.float32
    assert_close(after, before.float(), rtol=1e-3, atol=1e-4)


@every_form
def test_what_is_kept_follows_an_update(form):
    module, precision = fitted(form, "many")
    for change in (
        lambda: precision.update(0.5, 2.0, curvature_of(form, module, data(seed=3))),
        lambda: precision.set_prior(0.1),
        lambda: precision.reset(4.0),
    ):
        precision.scale_noise(torch.zeros(precision.n_weights, dtype=torch.float64))
        change()
        noise = precision.scale_noise(torch.eye(precision.n_weights, dtype=torch.float64))
        assert_close(noise.T @ noise, torch.linalg.inv(matrix(precision)))


WHOLE = Case(
    "a normalisation over two axes",
    lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm([2, 3]), nn.Linear(3, 2)),
    (2, 3),
)


@pytest.mark.parametrize("case", [*CASES, WHOLE], ids=lambda case: case.name)
@every_form
def test_every_layer_fits_every_form(form, case):
    """As the curvature returns it, the update takes it."""
    module = case.module()
    if form == "kron" and any(
        getattr(layer, "groups", 1) != 1 for layer in module.modules() if hasattr(layer, "weight")
    ):
        return  # the curvature refuses these
    precision = make_precision(module, HESSIANS[form], 0.5, 1.0).double()
    precision.set_prior(0.5)
    precision.update(0.0, 1.0, curvature_of(form, module, case.x()))
    noise = precision.scale_noise(torch.eye(precision.n_weights, dtype=torch.float64))
    assert_close(noise.T @ noise, torch.linalg.inv(matrix(precision)), atol=1e-9, rtol=1e-6)


# --- positive in float32, whatever happens ---

SHAPES = {"a.weight": torch.Size((2, 3)), "a.bias": torch.Size((2,))}
sizes = st.floats(-18, 18).map(lambda power: 10.0**power)
rates = st.sampled_from([0.0, 1e-3, 0.5, 0.999, 1.0])


def random_curvature(form: str, size: float, seed: int):
    """A positive semi-definite one of low rank, of any size."""
    generator = torch.Generator().manual_seed(seed)

    def product(n: int) -> torch.Tensor:
        root = torch.randn(n, 1, generator=generator)
        return root @ root.T

    if form == "diagonal":
        return {name: size * torch.randn(shape, generator=generator).square() for name, shape in SHAPES.items()}
    if form == "block":
        return {"a": size * product(8)}
    return {"a.weight": Kronecker(size * product(2), product(3) * 7, 7), "a.bias": Kronecker(size * product(2))}


@every_form
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(rates, rates, sizes), max_size=8),
    prior=st.floats(-8, 8).map(lambda power: 10.0**power),
    temperature=st.sampled_from([1.0, 1e-3, 1e3]),
)
def test_positive_in_float32_after_any_updates(form, steps, prior, temperature):
    cls = {"diagonal": DiagonalPrecision, "block": BlockPrecision, "kron": KronPrecision}[form]
    precision = cls(SHAPES, prior, temperature)
    precision.reset(prior)
    eps = torch.randn(8, generator=torch.Generator().manual_seed(0))
    for seed, (keep, gain, size) in enumerate(steps):
        precision.update(keep, gain, random_curvature(form, size, seed))
        noise = precision.scale_noise(eps)
        assert noise.isfinite().all()
        widest = math.sqrt(temperature / prior) * eps.norm()
        assert noise.norm() <= widest * (1 + 1e-4)  # no direction is wider than the prior
        assert precision.log_det().isfinite()
        assert all((values >= 0).all() for values in precision.eigenvalues().values())


# --- what cannot be ---


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e-50, 1e50])
@pytest.mark.parametrize("option", ["prior_precision", "temperature"])
@every_form
def test_impossible_numbers(form, option, value):
    options = {"prior_precision": 1.0, "temperature": 1.0, option: value}
    with pytest.raises(ValueError, match=option):
        make_precision(network(), HESSIANS[form], **options)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, torch.tensor([1.0] * 8 + [-1.0])])
def test_impossible_prior_later(value):
    _, precision = fitted("diagonal")
    with pytest.raises(ValueError, match="prior_precision"):
        precision.set_prior(value)
    assert precision.prior.eq(0.7).all()


def test_scattered_parameters_of_a_layer():
    with pytest.raises(ValueError, match="must stand together"):
        BlockPrecision({"a.weight": torch.Size((2,)), "b.weight": torch.Size((2,)), "a.bias": torch.Size((2,))}, 1.0)
