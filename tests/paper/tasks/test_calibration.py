"""Calibration of the uncertainty: bins and coverage by hand, and on every method."""

import json
from typing import Any

import numpy as np
import pytest
from bars import data_of, images, model_of
from narrow import sure
from scipy.stats import spearmanr

from lapae_paper.tasks.calibration import LEVELS, CalibrationOptions, coverage, equal_count_bins, evaluate


def test_every_method(method):
    found = evaluate(model_of(method), data_of(images(40, 3)[0]), CalibrationOptions(n_samples=12))
    result = found.to_dict()
    json.dumps(result, allow_nan=False)
    assert ("latent" in result["coverage"]) == (method.stochastic and method.distinct_draws is None)
    assert set(result["bins"]) == {"output", "output_total", "latent_deviation", "output_deviation"}
    assert all(np.diff(result["coverage"]["output_total"]) >= 0)
    assert len(found.figures()) == 2


def test_bins_by_hand():
    deviation = np.array([4.0, 1.0, 2.0, 3.0, 5.0])
    error = np.array([-2.0, 1.0, 3.0, 0.0, 6.0])
    found = equal_count_bins(deviation, error, 2)
    np.testing.assert_allclose(found.deviation, [np.sqrt(14 / 3), np.sqrt(41 / 2)])
    np.testing.assert_allclose(found.error, [np.sqrt(10 / 3), np.sqrt(40 / 2)])
    theirs: Any = spearmanr(deviation, np.abs(error))
    assert found.rank_correlation == pytest.approx(theirs.statistic)
    ratio = found.error / found.deviation
    assert found.ence == pytest.approx(np.abs(ratio - 1).mean())


def test_calibrated_errors_are_calibrated():
    rng = np.random.default_rng(0)
    deviation = rng.uniform(0.5, 2, 20_000)
    error = deviation * rng.normal(size=20_000)
    found = equal_count_bins(deviation, error)
    np.testing.assert_allclose(found.error, found.deviation, rtol=0.06)
    assert sure(found.ence) < 0.03
    np.testing.assert_allclose(coverage(error, deviation, (0.5, 0.9)), [0.5, 0.9], atol=0.015)
    np.testing.assert_allclose(coverage(3 * error, deviation, (0.5,)), [0.178], atol=0.015)


def test_no_deviation_at_all():
    found = equal_count_bins(np.zeros(10), np.arange(10.0))
    assert found.rank_correlation == 0
    assert found.ence is None
    assert coverage(np.ones(4), np.zeros(4), (0.9,)) == [0.0]
    result = evaluate(model_of("ae"), data_of(images(3)[0]), CalibrationOptions())
    assert result.bins["output"].ence is None
    assert result.bins["output_total"].ence is not None


def test_latent_intervals_hold_fresh_codes_of_a_vae():
    found = evaluate(model_of("vae"), data_of(images(100, 3)[0]), CalibrationOptions(n_samples=200))
    np.testing.assert_allclose(found.coverage["latent"], LEVELS, atol=0.03)


def test_errors():
    with pytest.raises(ValueError, match="from 1 to 3 bins"):
        equal_count_bins(np.zeros(3), np.zeros(3), 4)
