"""The drift alarm by simulation: how often it is false, and how soon it comes."""

from __future__ import annotations

import numpy as np
import pytest

from lapae.calibrate.drift import DriftAlarm


@pytest.mark.parametrize("draw", [lambda rng, n: rng.standard_cauchy(n), lambda rng, n: rng.integers(0, 5, n)])
def test_false_alarms_are_as_rare_as_it_says(draw):
    """Of streams that do not change, whatever their distribution: the mean time to an alarm is at least `every`."""
    every, length = 200, 600
    times = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        alarm = DriftAlarm(draw(rng, 100), every=every, seed=seed)
        found = alarm.update(draw(rng, length))
        times.append(length if found is None else found + 1)
    assert np.mean(times) >= every  # cut at `length`, which can only make it smaller


def test_false_alarms_of_a_moving_reference():
    """As `partial_fit` moves it: the window takes in what has been seen."""
    every, days, per_day = 500, 20, 50
    times = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        window = rng.standard_normal(150)
        alarm, found = DriftAlarm(window, every=every, seed=seed), None
        for _ in range(days):
            today = rng.standard_normal(per_day)
            found = alarm.update(today)
            if found is not None:
                break
            window = np.concatenate([window, today[::4]])[-150:]
            alarm.renew(window)
        times.append(alarm.n_seen)
    assert np.mean(times) >= every


@pytest.mark.parametrize("changed", [lambda x: x + 2, lambda x: 0.05 * x - 1], ids=["unusual", "too normal"])
def test_a_change_is_noticed_soon(changed):
    delays = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        alarm = DriftAlarm(rng.standard_normal(300), every=1000, seed=seed)
        if alarm.update(rng.standard_normal(100)) is None:
            found = alarm.update(changed(rng.standard_normal(300)))
            delays.append(300 if found is None else found)
    assert len(delays) >= 17  # of 20: a false alarm is one in ten at most
    assert np.mean(delays) < 40


def test_it_goes_on_where_it_was():
    """Scores come in any portions; those that are missing do not count."""
    rng = np.random.default_rng(0)
    reference, scores = rng.standard_normal(50), rng.standard_normal(40)
    whole, parts = DriftAlarm(reference), DriftAlarm(reference)
    whole.update(scores)
    for part in np.split(scores, 8):
        parts.update(np.append(part, np.nan))
    assert parts.evidence == whole.evidence
    assert parts.n_seen == 40
    parts.reset(reference)
    assert parts.evidence == 0
    with pytest.raises(ValueError, match="every=0"):
        DriftAlarm(reference, every=0)
