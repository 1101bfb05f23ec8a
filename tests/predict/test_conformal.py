"""Conformal p-values, thresholds, discoveries and intervals against their definitions and by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from lapae.predict.conformal import Radius, discoveries, p_values, threshold


def test_p_values_are_the_definition():
    rng = np.random.default_rng(0)
    held_out, new = rng.standard_normal(50), rng.standard_normal(20)
    expected = [(1 + sum(h >= s for h in held_out)) / 51 for s in new]
    np.testing.assert_allclose(p_values(new, held_out), expected)
    assert p_values(held_out[:1], held_out)[0] >= 2 / 51  # ties count as at least
    assert np.isnan(p_values(np.array([np.nan]), held_out)[0])


@pytest.mark.parametrize("n", [19, 37, 100, 1000])
@pytest.mark.parametrize("rate", [0.05, 0.1])
def test_a_threshold_flags_new_data_at_its_rate(n, rate):
    rng = np.random.default_rng(n)
    uniform = rng.random((4000, n))
    shares = [1 - threshold(row, rate) for row in uniform]  # the share of uniform surprises above it
    assert np.mean(shares) == pytest.approx(rate, abs=0.004)


def test_too_few_data_for_a_rate_flag_only_what_lies_beyond_all():
    held_out = np.arange(10.0)
    assert threshold(held_out, 0.01) > 9
    assert threshold(np.empty(0), 0.05) == np.inf


def test_discoveries_control_the_false_discovery_rate():
    rng = np.random.default_rng(0)
    false = []
    for _ in range(300):
        p = np.concatenate([rng.random(90), rng.random(10) * 1e-3])
        flagged = discoveries(p, 0.1)
        false.append(flagged[:90].sum() / max(flagged.sum(), 1))
    assert np.mean(false) == pytest.approx(0.09, abs=0.02)
    p = np.array([0.01, 0.2, np.nan, 0.03])
    np.testing.assert_array_equal(discoveries(p, 0.05), [True, False, False, True])  # 0.01 <= 1/60, 0.03 <= 2/60
    assert not discoveries(np.array([0.5, 0.9]), 0.05).any()


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.985])
@pytest.mark.parametrize("shared", [True, False])
def test_intervals_hold_for_every_feature_whatever_its_distribution(level, shared):
    rng = np.random.default_rng(1)

    def ratios(n):
        return np.abs(np.stack([rng.standard_normal(n), 3 * rng.standard_t(2, n), rng.exponential(1, n)], 1))

    radius = Radius.of(ratios(3000), shared=shared).at(level)
    inside = ratios(200_000) <= radius
    assert inside.mean() == pytest.approx(level, abs=0.015)
    if not shared:
        np.testing.assert_allclose(inside.mean(0), level, atol=0.025)


@pytest.mark.parametrize("n", [25, 40, 90])
def test_the_level_is_met_on_average_for_few_data(n):
    """A rank rounded up holds too much: 0.533 at 0.5 for 14 data."""
    rng = np.random.default_rng(n)
    for level in (0.5, 0.8, 0.9):
        radii = Radius.of(rng.random((n, 3000))).at(level)  # of uniform ratios the radius is what it holds
        assert radii.mean() == pytest.approx(level, abs=0.005)


def test_few_data_widen_and_do_not_break():
    ratio = np.abs(np.random.default_rng(0).standard_normal((30, 4)))
    ratio[:, 3] = np.nan  # a feature without a held-out value takes the radius of the others
    radius = Radius.of(ratio)
    assert np.isfinite(radius.at(0.99)).all()
    assert (radius.at(0.99) >= [*ratio[:, :3].max(0).tolist(), 0]).all()
    for level in (0.2, 0.5, 0.9):
        assert (radius.at(level) <= radius.at(level + 0.05)).all()
    with pytest.raises(ValueError, match="level=1"):
        radius.at(1.5)
    assert Radius.of(np.empty((0, 2))).at(0.9).ravel() == pytest.approx(np.inf)
