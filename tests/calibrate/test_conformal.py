"""Conformal p-values, verdicts, discoveries and intervals against their definitions and by simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import betabinom, norm

from lapae.calibrate.conformal import (
    Radius,
    Rule,
    by_chance,
    correlation_time,
    discoveries,
    independent,
    p_values,
    widened,
)


def test_p_values_are_the_definition():
    rng = np.random.default_rng(0)
    held_out, new = rng.standard_normal(50), rng.standard_normal(20)
    expected = [(1 + sum(h >= s for h in held_out)) / 51 for s in new]
    np.testing.assert_allclose(p_values(new, held_out), expected)
    assert p_values(held_out.max(keepdims=True), held_out)[0] == 2 / 51  # ties count as at least
    assert np.isnan(p_values(np.array([np.nan]), held_out)[0])


def test_held_out_rows_without_a_score_do_not_count():
    held_out, new = np.array([1.0, np.nan, 3.0, 2.0, np.nan]), np.array([0.0, 2.0, 2.5, 9.0])
    np.testing.assert_array_equal(p_values(new, held_out), [4 / 4, 3 / 4, 2 / 4, 1 / 4])


@pytest.mark.parametrize("n", [1, 9, 10, 19, 28, 99, 196])
def test_the_decision_is_below_0_if_and_only_if_p_is_at_most_the_rate(n):
    """With ties (scores are whole numbers), and at rates that are p-values: 29 / 100 <= 0.29, and 0.29 * 100 < 29."""
    rng = np.random.default_rng(n)
    for rate in [0.01, 0.05, 0.29, 0.3, *(np.arange(1, n + 1) / (n + 1))]:
        for held_out in (rng.integers(0, 12, n).astype(float), rng.standard_normal(n)):
            new = np.concatenate([held_out, np.unique(held_out) + 1e-9, [-50.0, 50.0, 1e300, np.nan]])
            rule, p = Rule(float(rate), held_out), p_values(new, held_out)
            decision = rule.decision(new, p)
            np.testing.assert_array_equal(decision < 0, p <= rate)
            np.testing.assert_array_equal(np.isnan(decision), np.isnan(new))
            if rule.rank:  # a translation, as scikit-learn has it
                np.testing.assert_array_equal(decision, rule.threshold - new)
            by_score = np.argsort(np.argsort(-new[:-1], kind="stable"), kind="stable")
            assert (np.diff(decision[:-1][np.argsort(by_score)]) >= 0).all()  # in the order of scores
            other = p_values(new, 3 * rng.standard_normal(n))  # of rows that are compared with others
            np.testing.assert_array_equal(rule.decision(new, other) < 0, other <= rate)


@pytest.mark.parametrize(("n", "rate"), [(19, 0.05), (37, 0.05), (100, 0.1), (1000, 0.05)])
def test_new_data_are_flagged_at_the_rate_or_just_below(n, rate):
    uniform = np.random.default_rng(n).random((4000, n))
    shares = [1 - Rule(rate, row).threshold for row in uniform]  # the share of uniform scores above it
    assert rate - 1 / (n + 1) <= np.mean(shares) <= rate + 0.004


def test_a_rate_that_cannot_be_met_says_how_many_rows_it_takes():
    for rate in [0.01, 0.05, 0.07, 0.1, 0.3, *(1 / np.arange(2, 60))]:
        takes = next(n for n in range(200) if 1 / (n + 1) <= rate)
        message = Rule(float(rate), np.arange(takes - 1.0)).unmet()
        assert f"it takes at least {takes} held-out rows" in message, rate
        assert not Rule(float(rate), np.arange(float(takes))).unmet()
    few = Rule(0.01, np.array([*range(40), np.nan], float))
    assert few.threshold == np.inf
    assert "cannot be met with 40 held-out rows, so nothing is flagged" in few.unmet()
    assert float(few.unmet().split()[-1]) == pytest.approx(1 / 41, abs=1e-4)
    assert not Rule(float(few.unmet().split()[-1]), few.held_out).unmet()
    assert "no more than 2,000 are kept" in Rule(1e-4, np.arange(2000.0)).unmet(most=2000)
    order = few.decision(np.array([0.0, 39, 40, 1e6, 1e12]), np.full(5, 1 / 41))
    assert (np.diff(order) < 0).all()  # what is more unusual can still be told
    assert (order > 0).all()
    wrong: list[Any] = [0, 1, -0.1, float("nan"), "auto", True, None]
    for rate in wrong:
        with pytest.raises(ValueError, match="false_alarm_rate = "):
            Rule(rate, np.arange(9.0))


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
    np.testing.assert_array_equal(discoveries(np.array([0.045, 0.04, 0.06, 0.01]), 0.05), [False, False, False, True])
    np.testing.assert_array_equal(discoveries(np.array([0.035, 0.03, 0.06, 0.01]), 0.05), [True, True, False, True])


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.985])
@pytest.mark.parametrize("shared", [True, False])
def test_intervals_hold_for_every_feature_whatever_its_distribution(level, shared):
    rng = np.random.default_rng(1)

    def ratios(n):
        return np.abs(np.stack([rng.standard_normal(n), 3 * rng.standard_t(2, n), rng.exponential(1, n)], 1))

    radius = Radius.fit(ratios(3000), shared=shared).at(level)
    inside = ratios(200_000) <= radius
    assert inside.mean() == pytest.approx(level, abs=0.015)
    if not shared:
        np.testing.assert_allclose(inside.mean(0), level, atol=0.025)


@pytest.mark.parametrize("n", [25, 40, 90])
def test_the_level_is_met_on_average_for_few_data(n):
    """A rank rounded up holds too much: 0.533 at 0.5 for 14 data."""
    rng = np.random.default_rng(n)
    for level in (0.5, 0.8, 0.9):
        radii = Radius.fit(rng.random((n, 3000))).at(level)  # of uniform ratios the radius is what it holds
        assert radii.mean() == pytest.approx(level, abs=0.005)


def test_few_data_widen_and_do_not_break():
    ratio = np.abs(np.random.default_rng(0).standard_normal((30, 4)))
    ratio[:, 3] = np.nan  # a feature without a held-out value takes the radius of the others
    radius = Radius.fit(ratio)
    assert np.isfinite(radius.at(0.99)).all()
    assert (radius.at(0.99) >= [*ratio[:, :3].max(0).tolist(), 0]).all()
    for level in (0.2, 0.5, 0.9):
        assert (radius.at(level) <= radius.at(level + 0.05)).all()
    with pytest.raises(ValueError, match="level=1"):
        radius.at(1.5)
    assert Radius.fit(np.empty((0, 2))).at(0.9).ravel() == pytest.approx(np.inf)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_a_row_that_comes_several_times_counts_once(level):
    """Intervals hold on new rows where each held-out row has forty values that go together."""
    rng, inside = np.random.default_rng(0), []
    rows = np.arange(1600) % 40
    for _ in range(400):
        size = np.abs(rng.standard_normal((41, 1)))
        radius = Radius.fit(size[rows] * (1 + 0.01 * rng.random((1600, 1))), rows=rows)
        inside.append(size[40, 0] <= radius.at(level)[0])
    assert np.mean(inside) > level - 3 * np.sqrt(level * (1 - level) / 400)  # 0.975 for 0.99 if copies count
    assert np.mean(inside) < level + 0.06


@pytest.mark.parametrize("shared", [True, False])
def test_values_of_one_row_count_once(shared):
    """Forty rows cannot tell where 99 % of new ones lie, however often each comes: a normal tail goes on from 97 %."""
    size = np.abs(np.random.default_rng(0).standard_normal((40, 1)))
    rows = np.arange(1600) % 40
    radius = Radius.fit(np.repeat(size[rows], 3, 1), rows=rows, shared=shared)
    assert radius.at(0.99)[0] / radius.at(0.97)[0] == pytest.approx(norm.ppf(0.995) / norm.ppf(0.985))
    once = Radius.fit(np.repeat(size, 3, 1), rows=np.arange(40), shared=shared)
    assert radius.at(0.5)[0] == pytest.approx(once.at(0.5)[0], rel=0.05)
    if shared:
        assert radius.at(0.5)[0] == pytest.approx(Radius.fit(size, shared=True).at(0.5)[0], rel=0.05)


@pytest.mark.parametrize(("n", "most"), [(20, 0.12), (60, 0.05), (200, 0.02)])
def test_intervals_of_few_hidden_values_hold_more_than_asked(n, most):
    """Below a hundred values levels are raised by what quantiles of so few differ by; from there on they are not."""
    rng = np.random.default_rng(n)
    radii = Radius.fit(rng.random((n, 400)), rows=np.arange(n)).at(0.8)  # of uniform ratios it is what it holds
    assert 0.8 - 0.01 < radii.mean() < 0.8 + most
    if n < 100:
        plain = Radius.fit(rng.random((n, 400))).at(0.8).mean()
        assert radii.mean() > plain + 0.01


def test_beyond_the_largest_value_radii_grow_as_a_normal_tail():
    """Of 30 values the level 0.96 is the last that lies within: (n + 1) level is at most n."""
    radius = Radius.fit(np.abs(np.random.default_rng(0).standard_normal((30, 2))))
    for level in (0.97, 0.99, 0.999):
        np.testing.assert_allclose(radius.at(level) / radius.at(0.96), norm.ppf(0.5 + level / 2) / norm.ppf(0.98))


def test_too_few_values_of_a_feature_are_those_of_all_rows():
    ratio = np.full((60, 2), np.nan)
    ratio[:, 0], ratio[:8, 1] = np.linspace(0, 1, 60), 5.0
    own = Radius.fit(ratio)
    assert own.at(0.5)[0] == pytest.approx(0.5, abs=0.02)
    assert own.at(0.5)[1] < 1.0


@pytest.mark.parametrize(("n_new", "rate", "n"), [(50, 0.05, 40), (200, 0.2, 19), (7, 0.05, 300)])
def test_the_number_of_flagged_rows_is_beta_binomial(n_new, rate, n):
    k = int(rate * (n + 1) + 1e-9)
    for flagged in (0, 1, 3, 6):
        expected = betabinom.sf(flagged - 1, n_new, k, n + 1 - k)
        assert by_chance(flagged, n_new, rate, n) == pytest.approx(expected)
    assert by_chance(1, n_new, 0.001, n) == 0  # no p-value is so small


def test_windows_that_share_steps_count_once():
    """Scores of windows that overlap go together: counted one by one, one series in ten seems to have changed."""
    rng, overlap = np.random.default_rng(0), 8
    alarms = {1: 0, overlap: 0}
    for _ in range(400):
        noise = rng.standard_normal((2, 400 + overlap - 1))
        held_out, new = (np.convolve(x, np.ones(overlap), "valid") for x in noise)
        flagged = int((p_values(new, held_out) <= 0.2).sum())
        for shared in alarms:
            alarms[shared] += by_chance(flagged, len(new), 0.2, len(held_out), shared) < 1e-3
    assert alarms[1] > 20
    assert alarms[overlap] <= 3  # 0.4 on average if windows were independent
    assert by_chance(60, 160, 0.2, 160, overlap) < by_chance(40, 160, 0.2, 160, overlap)
    assert by_chance(20, 100, 0.05, 100, overlap) == 1  # twelve windows tell nothing of one in twenty


def energies(rng: np.random.Generator, n: int, overlap: int) -> np.ndarray:
    """Log energies of n windows of noise, one step apart: those more than `overlap` apart share no step."""
    return np.log(np.convolve(rng.standard_normal(n + overlap - 1) ** 2, np.ones(overlap), "valid"))


def test_windows_that_depend_on_each_other_are_few():
    rng, overlap = np.random.default_rng(0), 8
    shares = [independent(energies(rng, 800, overlap), overlap) for _ in range(20)]
    assert max(shares) <= 1 / overlap
    assert np.mean(shares) == pytest.approx(1 / overlap, rel=0.2)
    slow = np.convolve(rng.standard_normal(1000), np.ones(100), "valid")  # longer than windows
    assert independent(slow, overlap) < 1 / 40
    assert independent(np.zeros(50), 5) == 1 / 5  # nothing is known of windows that are all alike


def test_the_tail_of_few_windows_is_widened_to_that_of_others():
    """The threshold of windows that overlap is hardly above the largest of a few: others are beyond it too often."""
    rng, overlap, few = np.random.default_rng(0), 8, 10
    flagged = []
    for _ in range(150):
        held_out, new = energies(rng, few * overlap, overlap), energies(rng, 2000, overlap)
        share = independent(held_out, overlap)
        scores = widened(held_out, share * len(held_out))
        flagged.append([(p_values(new, of) <= 0.05).mean() for of in (held_out, scores)])
    plain, wider = np.mean(flagged, 0)
    assert plain > 0.075
    assert wider == pytest.approx(0.05, abs=0.012)


def test_widening_moves_no_more_than_the_upper_quarter_and_keeps_the_order():
    scores = np.random.default_rng(0).exponential(size=399)
    few, many = widened(scores, 5), widened(scores, 1e9)
    upper = np.quantile(scores, 0.75)
    np.testing.assert_array_equal(few[scores < upper], scores[scores < upper])
    assert (few >= scores).all()
    assert (np.argsort(few, kind="stable") == np.argsort(scores, kind="stable")).all()
    assert (few >= many - 1e-12).all()
    excess = scores[scores >= upper].mean() - upper
    k = np.arange(1, 100)  # the k-th largest of 399 is exceeded with probability k / 400
    expected = upper + excess * np.log(0.25 * 400 / k)
    np.testing.assert_allclose(np.sort(many)[::-1][:99], np.maximum(np.sort(scores)[::-1][:99], expected))
    np.testing.assert_array_equal(widened(np.full(20, 3.0), 2.0), np.full(20, 3.0))  # ties stay


def test_radii_of_few_hidden_values_are_at_least_those_of_all():
    """A few values that happened to be guessed well do not make narrow intervals for all that are filled in later."""
    rng = np.random.default_rng(0)
    ratio = np.abs(rng.normal(size=(300, 3)))
    ratio[:, 1] *= 0.1
    ratio[60:, 1] = np.nan
    ratio[10:, 2] = np.nan
    found = Radius.fit(ratio, rows=np.arange(300)).at(0.9)
    assert found[1] >= found[0] * 0.8 > 1
    assert found[2] >= found[1]
    assert Radius.fit(ratio).at(0.9)[1] < 0.3


def test_the_correlation_time_of_known_processes():
    rng = np.random.default_rng(0)
    noise, memory = rng.standard_normal(20_000), 0.8
    process = np.zeros(20_000)
    for i in range(1, len(noise)):
        process[i] = memory * process[i - 1] + noise[i]
    assert correlation_time(noise) < 1.5
    # of a Gaussian process, (1 + a) / (1 - a); ranks are a little less correlated
    assert correlation_time(process) == pytest.approx((1 + memory) / (1 - memory), rel=0.15)
    assert correlation_time(np.exp(process)) == correlation_time(process)
    assert correlation_time(np.arange(300.0)) > 0.3 * 300
    assert correlation_time(np.ones(50)) == 1
