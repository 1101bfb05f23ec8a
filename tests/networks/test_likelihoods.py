"""Likelihoods against torch.distributions, and their Hessians against automatic differentiation."""

from __future__ import annotations

import json

import pytest
import torch
from cases import seeded
from torch import distributions as D
from torch.testing import assert_close

from lapae.curvature import reference
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Mixed, StudentT, likelihood

ALL = [
    Gaussian(),
    Gaussian(sigma=0.4),
    Bernoulli(),
    Categorical(),
    StudentT(df=5.0, sigma=0.4),
]
MIXED = Mixed(
    (
        ("gaussian", 0, 1),
        (Gaussian([0.3, 2.0]), 1, 3),
        ("bernoulli", 3, 4),
        (Categorical(), 4, 7),
        (StudentT(6.0), 7, 9),
    )
)
SHAPES = [(4,), (3, 2), (3, 2, 2)]


def outputs(shape: tuple[int, ...], n: int = 2) -> torch.Tensor:
    return torch.randn(n, *shape, dtype=torch.float64, generator=seeded(0))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("which", ALL, ids=repr)
def test_hessians_are_those_of_the_log_density(which: Likelihood, shape):
    f = outputs(shape)
    h = reference.output_hessian(which, f)
    n = h.shape[-1]
    assert_close(which.hessian_diag(f).expand_as(f).flatten(1), h.diagonal(dim1=1, dim2=2))
    t = torch.randn(3, *f.shape, dtype=f.dtype, generator=seeded(1))
    assert_close(which.hessian_product(f, t).flatten(2), torch.einsum("bij,rbj->rbi", h, t.flatten(2)))
    eye = torch.eye(n, dtype=f.dtype).reshape(n, 1, *shape).expand(n, *f.shape)
    s = which.hessian_factor(f, eye).flatten(2)  # (n, B, n), rows are columns of S
    assert_close(torch.einsum("rbi,rbj->bij", s, s), h)
    off_diagonal = h - torch.diag_embed(h.diagonal(dim1=1, dim2=2))
    assert which.diagonal == (off_diagonal.abs().max() < 1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_log_densities_are_those_of_torch(shape):
    f = outputs(shape)
    target = torch.rand(f.shape, dtype=f.dtype, generator=seeded(2))
    assert_close(Gaussian(0.4).log_prob(f, target), D.Normal(f, 0.4).log_prob(target).flatten(1).sum(1))
    assert_close(
        Bernoulli().log_prob(f, target.round()), D.Bernoulli(logits=f).log_prob(target.round()).flatten(1).sum(1)
    )
    classes = torch.randint(shape[0], (2, *shape[1:]), generator=seeded(3))
    expected = D.Categorical(logits=f.movedim(1, -1)).log_prob(classes)
    expected = expected.flatten(1).sum(1) if expected.ndim > 1 else expected
    one_hot = torch.nn.functional.one_hot(classes, shape[0]).movedim(-1, 1).double()
    assert_close(Categorical().log_prob(f, classes), expected)
    assert_close(Categorical().log_prob(f, one_hot), expected)


@pytest.mark.parametrize("which", ALL, ids=repr)
def test_many_outputs_for_one_target(which: Likelihood):
    f = outputs((3, 2), n=4).unflatten(0, (2, 2))  # (S, B, …)
    target = which.sample(f[0], seeded(0))
    together = which.log_prob(f, target)
    assert together.shape == (2, 2)
    assert_close(together, torch.stack([which.log_prob(f[s], target) for s in range(2)]))


@pytest.mark.parametrize("which", ALL, ids=repr)
def test_samples_have_the_mean(which: Likelihood):
    f = outputs((3, 2), n=1).expand(20_000, 3, 2)
    draws = which.sample(f, seeded(0))
    assert draws.shape == f.shape
    assert_close(draws.mean(0), which.mean(f)[0], atol=0.03, rtol=0)
    assert torch.equal(draws, which.sample(f, seeded(0)))
    if isinstance(which, Categorical):
        assert_close(draws.sum(1), torch.ones(20_000, 2, dtype=f.dtype))
        assert set(draws.unique().tolist()) == {0.0, 1.0}


def test_names_and_mistakes():
    assert likelihood("Gaussian") == Gaussian()
    assert likelihood("categorical") == Categorical()
    assert likelihood(Gaussian(2.0)) == Gaussian(2.0)
    with pytest.raises(
        ValueError, match="unknown likelihood 'poisson': expected one of gaussian, bernoulli, categorical"
    ):
        likelihood("poisson")
    with pytest.raises(TypeError, match="expected a likelihood or its name, got int"):
        likelihood(3)  # pyright: ignore[reportArgumentType]
    for sigma in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected a finite number above 0"):
            Gaussian(sigma)


@pytest.mark.parametrize("sigma", [[0.5, 2.0, 1.5], [[0.5], [2.0], [1.5]]], ids=["per column", "per channel"])
def test_noise_per_feature(sigma):
    wide = torch.tensor(sigma, dtype=torch.float64)
    f = outputs((3, 3))
    target = torch.rand(f.shape, dtype=f.dtype, generator=seeded(2))
    for noise in (sigma, wide, wide.float()):
        which = Gaussian(noise)
        expected = D.Normal(f, wide).log_prob(target)
        assert_close(which.log_prob_elements(f, target), expected)
        assert_close(which.log_prob(f, target), expected.flatten(1).sum(1))
        assert_close(which.for_missing().log_prob(f, target), expected.flatten(1).sum(1))
        assert_close(which.variance(f), wide.square().expand_as(f))
        assert_close(which.hessian_diag(f), wide.square().reciprocal().expand(1, 3, 3))
        h = reference.output_hessian(which, f)
        t = torch.randn(2, *f.shape, dtype=f.dtype, generator=seeded(1))
        assert_close(which.hessian_product(f, t).flatten(2), torch.einsum("bij,rbj->rbi", h, t.flatten(2)))
        assert_close(which.hessian_factor(f, which.hessian_factor(f, t)), which.hessian_product(f, t))
        draws = which.sample(f[:1].expand(20_000, 3, 3), seeded(0))
        assert_close(draws.std(0), wide.expand(3, 3), rtol=0.05, atol=0)
    for wrong in ([1.0, 0.0, 1.0], torch.tensor([1.0, float("nan")])):
        with pytest.raises(ValueError, match="expected a finite number above 0, or one per feature"):
            Gaussian(wrong)


def test_the_noise_follows_a_change_in_place():
    sigma = torch.ones(3)
    which = Gaussian(sigma)
    f = outputs((3,))
    assert_close(which.variance(f), torch.ones_like(f))
    sigma.mul_(2)
    assert_close(which.variance(f), torch.full_like(f, 4.0))


def test_student_is_torch_s_and_has_its_expected_hessian():
    which = StudentT(df=5.0, sigma=0.4)
    f = outputs((3, 2))
    target = torch.rand(f.shape, dtype=f.dtype, generator=seeded(2))
    expected = D.StudentT(5.0, f, 0.4).log_prob(target)
    assert_close(which.log_prob(f, target), expected.flatten(1).sum(1))
    assert_close(which.variance(f), D.StudentT(5.0, f, 0.4).variance)
    assert which.variance(f).isfinite().all()
    assert StudentT(df=2.0).variance(f).isinf().all()
    # E of the second derivative, by the trapezoid rule over a wide range of data
    at = torch.linspace(-400, 400, 2_000_001, dtype=torch.float64)
    zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    centre = zero.expand_as(at).clone()
    first = torch.autograd.grad(which.log_prob_elements(centre, at).sum(), centre, create_graph=True)[0]
    second = -torch.autograd.grad(first.sum(), centre)[0]
    information = torch.trapezoid(second * which.log_prob_elements(centre, at).exp().detach(), at)
    assert_close(which.hessian_diag(f), information.expand(1, 3, 2), rtol=1e-6, atol=0)


def test_a_mixed_likelihood_is_its_parts():
    f = outputs((9,), n=3)
    target = MIXED.sample(f, seeded(4))
    assert target.shape == f.shape
    parts = [(which, slice(a, b)) for which, a, b in MIXED.parts]
    assert_close(MIXED.log_prob(f, target), sum(w.log_prob(f[:, s], target[:, s]) for w, s in parts))
    assert_close(MIXED.log_prob_elements(f, target).sum(1), MIXED.log_prob(f, target))
    assert_close(MIXED.log_prob(f[None].expand(2, 3, 9), target)[1], MIXED.log_prob(f, target))
    for name in ("mean", "variance"):
        assert_close(getattr(MIXED, name)(f), torch.cat([getattr(w, name)(f[:, s]) for w, s in parts], 1))
    h = torch.zeros(3, 9, 9, dtype=f.dtype)
    for which, s in parts:
        h[:, s, s] = reference.output_hessian(which, f[:, s])
    assert_close(MIXED.hessian_diag(f), h.diagonal(dim1=1, dim2=2))
    eye = torch.eye(9, dtype=f.dtype)[:, None].expand(9, 3, 9)
    assert_close(MIXED.hessian_product(f, eye).movedim(0, 1), h)
    s = MIXED.hessian_factor(f, eye)
    assert_close(torch.einsum("rbi,rbj->bij", s, s), h)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda o: MIXED.mean(o[None])[0]))(f)
    variance = torch.rand(3, 9, dtype=f.dtype, generator=seeded(5))
    assert_close(MIXED.variance_of_mean(f, variance), torch.einsum("bcd,bd->bc", jacobian.square(), variance))
    low, high = MIXED.support
    assert low.tolist() == [-torch.inf] * 3 + [0.0] * 4 + [-torch.inf] * 2
    assert high.tolist() == [torch.inf] * 3 + [1.0] * 4 + [torch.inf] * 2
    assert not MIXED.diagonal
    assert Mixed((("gaussian", 0, 2), ("bernoulli", 2, 3))).diagonal
    for spans in (((0, 2), (3, 4)), ((0, 2), (1, 4)), ((1, 2),), ((0, 0),), ()):
        with pytest.raises(ValueError, match="Mixed"):
            Mixed(tuple(("gaussian", *span) for span in spans))


@pytest.mark.parametrize("which", [Gaussian(0.4), Bernoulli(), StudentT(5.0), Gaussian([0.5, 1.0] * 4 + [2.0]), MIXED])
def test_missing_values_are_left_out(which: Likelihood):
    f = outputs((9,), n=3).requires_grad_()
    target = which.sample(f.detach(), seeded(4))
    holes = target.clone()
    holes[0, 1], holes[1, 4:7], holes[2] = torch.nan, torch.nan, torch.nan
    partial = which.for_missing()
    assert partial.missing
    assert partial.for_missing() == partial
    elements = which.log_prob_elements(f, target).detach()
    expected = torch.where(holes.isnan(), 0.0, elements)
    assert_close(partial.log_prob_elements(f, holes).detach(), expected)
    log_prob = partial.log_prob(f, holes)
    assert_close(log_prob.detach(), expected.sum(1))
    assert torch.autograd.grad(log_prob.sum(), f)[0].isfinite().all()
    masked = partial.observed(~holes.isnan())
    eye = torch.eye(9, dtype=f.dtype)[:, None].expand(9, 3, 9)
    seen = (~holes.isnan()).double()
    h = which.hessian_product(f, eye).movedim(0, 1) * seen[:, :, None] * seen[:, None, :]
    assert_close(masked.hessian_product(f, eye).movedim(0, 1), h)
    assert_close(masked.hessian_diag(f), h.diagonal(dim1=1, dim2=2))
    s = masked.hessian_factor(f, eye)
    assert_close(torch.einsum("rbi,rbj->bij", s, s), h)


def test_a_softmax_alone_takes_no_missing_values():
    with pytest.raises(ValueError, match="missing values need"):
        Categorical().for_missing()


@pytest.mark.parametrize("which", [*ALL, MIXED, MIXED.for_missing(), Gaussian([0.5, 2.0])], ids=repr)
def test_written_down_and_read_again(which: Likelihood):
    assert likelihood(json.loads(json.dumps(which.to_dict()))) == which


def test_a_learned_variance():
    f = outputs((3,))
    target, variance = torch.rand(2, 2, 3, dtype=f.dtype, generator=seeded(2))
    assert_close(
        Gaussian(7.0).with_variance(variance).log_prob(f, target), D.Normal(f, variance.sqrt()).log_prob(target).sum(1)
    )
    with pytest.raises(ValueError, match="follows from its mean"):
        Bernoulli().with_variance(variance)


@pytest.mark.parametrize("which", [Gaussian(0.4), StudentT(1.5), Bernoulli(), Categorical(), MIXED], ids=repr)
def test_noise_in_standard_units_makes_the_data_again(which):
    """It is standard normal where features are not continuous, and NaN where values are missing."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(4000, MIXED.n_features, generator=generator, dtype=torch.float64)
    x = which.sample(output, generator)
    found = which.residual(output, x, generator)
    assert_close(which.at_residual(output, found), x)
    if not which.noisy:
        assert abs(float(found.mean())) < 0.05
        assert abs(float(found.var()) - 1) < 0.05
    gone = torch.full_like(x, torch.nan)
    assert which.residual(output, gone, generator).isnan().all()
