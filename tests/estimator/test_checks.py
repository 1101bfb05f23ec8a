"""scikit-learn's own checks, all of them and without an exception."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lapae import LaplacianAutoencoder


@parametrize_with_checks([LaplacianAutoencoder(epochs=2, n_samples=3, device="cpu")])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)
