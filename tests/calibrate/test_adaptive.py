"""Adaptive p-values: the rate holds while data change slowly, a fault is not learned away."""

from __future__ import annotations

import numpy as np
import pytest

from lapae.calibrate.adaptive import SPAN, AdaptiveThreshold
from lapae.calibrate.conformal import Rule

RATE, OVERLAP, N = 0.05, 16, 12_000


def scores(seed: int, n: int) -> np.ndarray:
    """Scores (n,) of windows of which OVERLAP in a row share steps, positive and with a long tail."""
    noise = np.random.default_rng(seed).standard_normal(n + OVERLAP - 1)
    return np.exp(np.convolve(noise, np.ones(OVERLAP) / np.sqrt(OVERLAP), "valid"))


def watch(x: np.ndarray, *, log: bool = False, **options: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return p-values, verdicts and alarms (n,) of scores x (n,)."""
    held_out, x = (np.log(part) if log else part for part in (scores(99, 1500), x))
    stream = AdaptiveThreshold(Rule(RATE, held_out), **{"overlap": OVERLAP, **options}, logarithmic=log)
    return tuple(map(np.array, zip(*map(stream.update, x.tolist()), strict=True)))  # pyright: ignore


STREAMS = {
    "as before": lambda t: 1.0,
    "creeps": lambda t: np.exp(4 * t / N),
    "seasons": lambda t: np.exp(np.sin(2 * np.pi * t / 4000)),
    "calmer": lambda t: 0.3,
}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("kind", STREAMS)
def test_as_many_are_flagged_as_promised(kind, log):
    p, flagged, drift = watch(scores(0, N) * STREAMS[kind](np.arange(N)), log=log)
    assert flagged.mean() == pytest.approx(RATE, abs=0.01)
    assert drift.mean() < 0.02
    together = np.convolve(flagged & ~drift, np.ones(SPAN), "valid")
    assert together.max() <= 2 * RATE * SPAN
    assert (flagged == (p <= RATE)).all()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("overlap", [1, OVERLAP])
def test_a_fault_stays_flagged_until_it_ends(overlap, log):
    x = scores(0, 10_000) if overlap > 1 else np.exp(np.random.default_rng(0).standard_normal(10_000))
    x[3000:7000] *= 200
    _, flagged, drift = watch(x, overlap=overlap, log=log)
    assert flagged[3000:7000].mean() > 0.95
    assert drift[3000 + 10 * OVERLAP : 7000].all()
    assert drift[:3000].mean() < 0.03  # a false alarm once in 10,000
    assert not drift[7500:].any()
    assert flagged[7500:].mean() < 0.08


def test_a_fault_after_a_long_creep_is_found():
    """Of logarithms it is: a threshold that has moved far compares with the spread that it began with."""
    x = scores(0, N) * np.exp(4 * np.arange(N) / N)
    x[9000:] *= np.exp(6)
    _, flagged, drift = watch(x, log=True)
    assert not drift[:9000].any()
    assert drift[9100:].all()
    assert flagged[9000:].mean() > 0.95


@pytest.mark.parametrize("overlap", [1, OVERLAP])
def test_a_stream_that_begins_elsewhere_says_so_and_is_followed(overlap):
    x = scores(0, N) if overlap > 1 else np.exp(np.random.default_rng(0).standard_normal(N))
    x *= np.exp(10)
    x[9000:] *= np.exp(8)
    _, flagged, drift = watch(x, overlap=overlap, log=True)
    first = int(drift.argmax())
    assert 0 < first < 10 * OVERLAP
    assert flagged[first : first + 20].all()
    assert drift[20 * OVERLAP : 9000].mean() < 0.03
    assert flagged[20 * OVERLAP : 9000].mean() == pytest.approx(RATE, abs=0.02)
    assert drift[9200:].all()  # a change within the stream


def test_a_stream_that_begins_elsewhere_may_vary_more():
    """Held-out scores of a sensor that stood still say nothing of how much they vary where it moves."""
    x = 40 * np.log(scores(0, N)) + 400
    x[9000:] += 400
    stream = AdaptiveThreshold(Rule(RATE, np.log(scores(99, 1500))), overlap=OVERLAP, logarithmic=True)
    _, flagged, drift = map(np.array, zip(*map(stream.update, x.tolist()), strict=True))
    assert drift[: 10 * OVERLAP].any()
    assert flagged[20 * OVERLAP : 9000].mean() == pytest.approx(RATE, abs=0.02)
    assert drift[20 * OVERLAP : 9000].mean() < 0.03
    assert drift[9200:].all()


def test_a_new_normal_can_be_accepted():
    x = np.concatenate([scores(0, 2000), 200 * scores(1, 6000)])
    stream = AdaptiveThreshold(Rule(RATE, scores(99, 1500)), overlap=OVERLAP)
    found = [stream.update(value) for value in x[:3000]]
    assert found[-1].drift
    stream.accept()
    after = [stream.update(value) for value in x[3000:]]
    assert np.mean([step.flagged for step in after]) == pytest.approx(RATE, abs=0.02)
    assert np.mean([step.drift for step in after]) < 0.05


def test_a_stream_goes_on_where_its_state_was_taken():
    x = scores(3, 4000)
    x[1500:1900] *= 100
    held_out = scores(99, 1500)
    x[:900] *= 1000  # begins elsewhere
    whole = AdaptiveThreshold(Rule(RATE, held_out), overlap=OVERLAP, logarithmic=True)
    expected = [whole.update(value) for value in x]
    for cut in (10, 50, 700, 1750, 3000):
        first = AdaptiveThreshold(Rule(RATE, held_out), overlap=OVERLAP, logarithmic=True)
        before = [first.update(value) for value in x[:cut]]
        second = AdaptiveThreshold.of_state(first.state(), held_out)
        assert before + [second.update(value) for value in x[cut:]] == expected


def test_what_is_missing_teaches_nothing_and_equal_scores_are_not_unusual():
    stream = AdaptiveThreshold(Rule(RATE, scores(99, 500)))
    found = stream.update(float("nan"))
    assert np.isnan(found.p_adaptive)
    assert not found.flagged
    assert stream.n_seen == 0
    assert not any(stream.update(1.0).flagged for _ in range(3000))
    alike = AdaptiveThreshold(Rule(RATE, np.zeros(100)))
    assert not any(alike.update(0.0).flagged for _ in range(3000))


def test_too_few_held_out_scores_flag_nothing():
    stream = AdaptiveThreshold(Rule(RATE, np.arange(10.0)))
    assert not any(stream.update(value).flagged for value in np.linspace(0, 20, 500))


@pytest.mark.parametrize("options", [{"overlap": 0}, {"every": 0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="expected at least 1"):
        AdaptiveThreshold(Rule(RATE, np.arange(30.0)), **options)
    with pytest.raises(ValueError, match="got none"):
        AdaptiveThreshold(Rule(RATE, np.array([np.nan])))
