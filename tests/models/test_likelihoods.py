"""Likelihoods against torch.distributions, and their Hessians against automatic differentiation."""

from __future__ import annotations

import pytest
import torch
from cases import seeded
from torch import distributions as D
from torch.testing import assert_close

from lapae.curvature import reference
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, likelihood

ALL = [Gaussian(), Gaussian(sigma=0.4), Bernoulli(), Categorical()]
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
