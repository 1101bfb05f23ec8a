"""Metrics of rankings against scikit-learn, and cases done by hand."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from lapae.evaluate.ranking import detection


def scores(seed, ties):
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(size=70), rng.normal(1.0, 1.5, size=45)
    return (inside.round(0), outside.round(0)) if ties else (inside, outside)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_against_scikit_learn(seed, ties):
    inside, outside = scores(seed, ties)
    y, s = np.r_[np.zeros(70), np.ones(45)], np.r_[inside, outside]
    found = detection(inside, outside, n_bootstrap=0)
    assert found.auroc.value == pytest.approx(roc_auc_score(y, s))
    assert found.auprc.value == pytest.approx(average_precision_score(y, s))
    fpr, tpr, _ = roc_curve(y, s, drop_intermediate=False)
    assert found.fpr95.value == pytest.approx(fpr[tpr >= 0.95].min())
    np.testing.assert_allclose(found.roc, (fpr, tpr))


def test_by_hand():
    found = detection(np.array([0.0, 1.0, 2.0, 3.0]), np.array([2.5, 4.0]), n_bootstrap=0)
    assert found.auroc.value == pytest.approx(7 / 8)
    assert found.auprc.value == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found.fpr95.value == pytest.approx(1 / 4)


def test_perfect_constant_and_reversed_scores():
    low, high = np.zeros(10), np.ones(30)
    assert detection(low, high, n_bootstrap=10).to_dict()["auroc"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert detection(low, high, n_bootstrap=0).fpr95.value == 0.0
    assert detection(high, low, n_bootstrap=0).auroc.value == 0.0
    constant = detection(low, np.zeros(30), n_bootstrap=20)
    assert constant.auroc.value == constant.auroc.low == constant.auroc.high == 0.5
    assert constant.auprc.value == pytest.approx(30 / 40)
    assert constant.fpr95.value == 1.0


def test_infinite_scores_are_ranked():
    assert detection(np.array([0.0, 1.0]), np.array([np.inf, 2.0]), n_bootstrap=0).auroc.value == 1.0


def test_bootstrap_interval_is_that_of_resampled_data():
    inside, outside = scores(0, True)
    found = detection(inside, outside, n_bootstrap=400, seed=1)
    rng = np.random.default_rng(5)
    y = np.r_[np.zeros(70), np.ones(45)]
    values = [
        (roc_auc_score(y, s), average_precision_score(y, s))
        for s in (np.r_[rng.choice(inside, 70), rng.choice(outside, 45)] for _ in range(400))
    ]
    low, high = np.percentile(values, [2.5, 97.5], axis=0)
    for i, estimate in enumerate((found.auroc, found.auprc)):
        assert estimate.low < estimate.value < estimate.high
        assert estimate.low == pytest.approx(low[i], abs=0.03)
        assert estimate.high == pytest.approx(high[i], abs=0.03)
    assert found.fpr95.low <= found.fpr95.value <= found.fpr95.high
    assert (
        detection(inside, outside, n_bootstrap=50, seed=1).auroc
        == detection(inside, outside, n_bootstrap=50, seed=1).auroc
    )


def test_errors_of_detection():
    with pytest.raises(ValueError, match="out-of-distribution"):
        detection(np.zeros(3), np.zeros(0))
    with pytest.raises(ValueError, match="1 of 2 in-distribution"):
        detection(np.array([0.0, np.nan]), np.zeros(3))
