"""scikit-learn's own checks, all of them; one that is expected to fail is listed with its reason."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lapae import LaplacianAutoencoder

RATE = "contamination is the rate at which new normal data are flagged, not a share of the training data"
EXPECTED_FAILURES = {"check_outliers_train": RATE, "check_outliers_fit_predict": RATE}


def expected(estimator) -> dict[str, str]:
    return EXPECTED_FAILURES


@parametrize_with_checks([LaplacianAutoencoder(epochs=2, n_samples=3, device="cpu")], expected_failed_checks=expected)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)
