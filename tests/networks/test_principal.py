"""Principal components against scikit-learn's, and networks that start from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from lapae.networks.principal import Components, principal_components


def error(found: Components, x: torch.Tensor) -> float:
    """Mean squared error per sample, summed over features, of x projected and back."""
    gap = x - found.mean
    return float((gap - gap @ found.vectors @ found.vectors.T).square().sum(1).mean())


@pytest.mark.parametrize(("n", "d", "k"), [(50, 6, 3), (20, 40, 5), (5000, 4, 2), (30, 3, 3)])
def test_components_are_scikit_learn_s(n, d, k):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + rng.standard_normal(d)
    new = rng.standard_normal((40, d))
    found = principal_components(torch.from_numpy(x), k)
    pca = PCA(k).fit(x)
    gap = new - pca.inverse_transform(pca.transform(new))
    tolerance = 0.02 if n > 4000 else 1e-9  # many data are sampled
    assert error(found, torch.from_numpy(new)) == pytest.approx(np.square(gap).sum(1).mean(), rel=tolerance)
    np.testing.assert_allclose(found.variances, pca.explained_variance_ * (n - 1) / n, rtol=max(tolerance, 1e-9) * 5)


def test_fewer_data_than_components():
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = principal_components(x, 6)
    assert found.vectors.shape == (10, 6)
    assert error(found, x) == pytest.approx(0, abs=1e-9)
