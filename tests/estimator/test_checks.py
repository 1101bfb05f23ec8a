"""scikit-learn's own checks, all of them; one that is expected to fail is listed with its reason."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lapae import LaplacianAutoencoder

EXPECTED_FAILURES: dict[str, str] = {}


def expected(estimator) -> dict[str, str]:
    return EXPECTED_FAILURES


@parametrize_with_checks([LaplacianAutoencoder(epochs=2, n_samples=3, device="cpu")], expected_failed_checks=expected)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)
