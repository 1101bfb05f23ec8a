"""Calibration errors of a classifier: sums over bins written out, and cases done by hand."""

import numpy as np
import pytest

from lapae_paper.tasks.reliability import classification, reliability


def test_classification_by_hand():
    probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.35, 0.65]])
    found = classification(probs, np.array([0, 1, 1, 1]), n_bins=2)
    # one bin holds all confidences (0.9, 0.8, 0.7, 0.65): mean 0.7625, accuracy 0.75
    assert found["accuracy"] == 0.75
    for name in ("ece", "mce", "rmsce"):
        assert found[name] == pytest.approx(0.0125)


def test_three_bins_by_hand():
    """Confidences 0.6 (right), 0.7 (wrong) and 0.9, 0.9, 0.9 (two right) in (0.5, 0.75] and (0.75, 1]."""
    probs = np.array([[0.6, 0.4], [0.7, 0.3], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]])
    found = classification(probs, np.array([0, 1, 0, 0, 0]), n_bins=4)
    gaps, shares = [0.65 - 0.5, 0.9 - 2 / 3], [0.4, 0.6]
    assert found["ece"] == pytest.approx(shares[0] * gaps[0] + shares[1] * gaps[1])
    assert found["mce"] == pytest.approx(gaps[1])
    assert found["rmsce"] == pytest.approx((shares[0] * gaps[0] ** 2 + shares[1] * gaps[1] ** 2) ** 0.5)


def test_an_edge_belongs_to_the_bin_below_it():
    bins = reliability(np.array([[0.75, 0.25], [0.25, 0.75], [1.0, 0.0]]), np.zeros(3, int), n_bins=4)
    assert bins["share"].tolist() == pytest.approx([0, 0, 2 / 3, 1 / 3])


@pytest.mark.parametrize("n_bins", [1, 7, 15])
def test_calibration_errors_are_sums_over_bins(n_bins):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(5) * 0.5, size=300)
    y = np.array([rng.choice(5, p=p) for p in probs])
    found, bins = classification(probs, y, n_bins=n_bins), reliability(probs, y, n_bins=n_bins)
    ece, mce, squares = 0.0, 0.0, 0.0
    for k in range(n_bins):
        here = [(p.max(), float(p.argmax() == t)) for p, t in zip(probs, y, strict=True)
                if k / n_bins < p.max() <= (k + 1) / n_bins]  # fmt: skip
        assert bins["share"][k] == len(here) / 300
        if here:
            confidence, accuracy = (sum(values) / len(here) for values in zip(*here, strict=True))
            assert (bins["confidence"][k], bins["accuracy"][k]) == pytest.approx((confidence, accuracy))
            gap = abs(confidence - accuracy)
            ece, mce, squares = ece + len(here) / 300 * gap, max(mce, gap), squares + len(here) / 300 * gap**2
    assert (found["ece"], found["mce"], found["rmsce"]) == pytest.approx((ece, mce, squares**0.5))


def test_certain_and_right_is_calibrated_and_one_class_is_fine():
    probs = np.eye(3)[[0, 0, 0]]
    assert classification(probs, np.zeros(3, int)) == {"accuracy": 1.0, "ece": 0.0, "mce": 0.0, "rmsce": 0.0}
    assert reliability(probs, np.zeros(3, int))["share"][-1] == 1
