"""The density of codes, beside scikit-learn's mixture of Gaussians and the density of a Gaussian."""

from typing import Any

import numpy as np
import pytest
import torch
from narrow import sure
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture

from lapae.score import code_density as density
from lapae.score.code_density import CodeDensity


def clusters(n: int, k: int = 3, seed: int = 0) -> torch.Tensor:
    """Codes in four unequal clusters, each of a shape of its own."""
    fixed, rng = np.random.default_rng(7), np.random.default_rng(seed)
    centers, shapes = 6 * fixed.standard_normal((4, k)), fixed.standard_normal((4, k, k))
    which = rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])
    return torch.from_numpy(centers[which] + np.einsum("nij,nj->ni", shapes[which], rng.standard_normal((n, k))))


def as_scikit(found: CodeDensity) -> GaussianMixture:
    """The same mixture as scikit-learn's, in the space of the codes."""
    basis = found.basis.double().numpy()
    spread = found.factors.double() @ found.factors.double().mT
    theirs = GaussianMixture(len(found.weights))
    theirs.weights_ = found.weights.double().numpy()
    theirs.means_ = found.center.double().numpy() + found.means.double().numpy() @ basis.T
    theirs.covariances_ = basis @ spread.numpy() @ basis.T
    theirs.precisions_cholesky_ = np.stack([np.linalg.inv(np.linalg.cholesky(c)).T for c in theirs.covariances_])
    return theirs


def test_density_and_samples_are_those_of_the_mixture():
    found, new = CodeDensity.fit(clusters(600), clusters(200, seed=1)), clusters(100, seed=2)
    assert len(found.weights) > 1
    theirs = as_scikit(found)
    np.testing.assert_allclose(found.log_prob(new).numpy(), theirs.score_samples(new.numpy()), rtol=1e-8)
    drawn = found.sample(20_000, seed=3)
    assert torch.equal(drawn, found.sample(20_000, seed=3))
    mean, covariance = sure(theirs.weights_) @ theirs.means_, np.cov(theirs.sample(200_000)[0].T)
    np.testing.assert_allclose(drawn.mean(0).numpy(), mean, atol=0.1)
    np.testing.assert_allclose(np.cov(drawn.numpy().T), covariance, atol=0.05 * covariance.max())


def test_as_likely_as_scikit_learns_fit():
    train, valid, new = clusters(1000), clusters(300, seed=1), clusters(1000, seed=2)
    theirs = GaussianMixture(4, n_init=5, random_state=0).fit(train.numpy())
    ours = float(CodeDensity.fit(train, valid).log_prob(new).mean())
    assert ours > theirs.score(new.numpy()) - 0.2  # they are told how many there are
    assert ours > GaussianMixture(1).fit(train.numpy()).score(new.numpy()) + 1


def test_gaussian_codes_get_one_component():
    normal = torch.from_numpy(np.random.default_rng(0).standard_normal((400, 5)) * [1, 2, 3, 4, 5])
    assert len(CodeDensity.fit(normal[:200], normal[200:]).weights) == 1


def test_many_numbers_are_directions_and_noise(monkeypatch):
    monkeypatch.setattr(density, "DIRECTIONS", 2)
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.standard_normal((5000, 6)) * [5, 4, 0.5, 0.5, 0.5, 0.5] + 1)
    monkeypatch.setattr(density, "COMPONENTS", (1,))
    found = CodeDensity.fit(z, z[:0])
    covariance: Any = np.diag([25, 16, 0.25, 0.25, 0.25, 0.25])
    true = multivariate_normal(np.ones(6), covariance)
    np.testing.assert_allclose(found.log_prob(z[:50]).numpy(), true.logpdf(z[:50].numpy()), atol=0.3)


@pytest.mark.parametrize("codes", [torch.zeros(5, 3), torch.ones(2, 1), torch.arange(30.0)[:, None].expand(30, 4)])
def test_codes_that_hardly_vary(codes):
    found = CodeDensity.fit(codes, codes[:0])
    assert found.log_prob(codes).isfinite().all()
    assert found.sample(4).isfinite().all()
    assert found.sample(4).shape == (4, codes.shape[1])
    assert found.sample(4).dtype == codes.dtype
