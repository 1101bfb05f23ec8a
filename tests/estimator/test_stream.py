"""A stream that changes is followed, what is reported stays calibrated, and mistakes leave the model alone."""

from __future__ import annotations

import numpy as np
import pytest
from narrow import diagonal_of, sure

from lapae import LaplacianAutoencoder
from lapae.errors import ConfigError


def day(rng, turn: float = 0.0, n: int = 120) -> np.ndarray:
    """Four channels on a curve that `turn` bends into another."""
    t = rng.uniform(-2, 2, (n, 1))
    bent = (1 - turn) * np.sin(t) + turn * np.cos(2 * t)
    return 20 + 3 * np.concatenate([t, bent, t**2 / 2 - turn * t, -bent], 1) + 0.1 * rng.standard_normal((n, 4))


@pytest.fixture
def model():
    return LaplacianAutoencoder(random_state=0, epochs=5, device="cpu").fit(day(np.random.default_rng(0), n=600))


def test_an_alarm_tells_a_change(model):
    rng = np.random.default_rng(1)

    def alarmed(turn: float) -> bool:
        return model.drift_alarm().update(-model.score_samples(day(rng, turn))) is not None

    assert sum(alarmed(0.0) for _ in range(10)) <= 1  # one false alarm in 10,000 rows
    assert alarmed(1.0)


def test_after_a_change_p_values_hold():
    """On average over streams."""
    rates = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        model = LaplacianAutoencoder(random_state=seed, epochs=5, device="cpu").fit(day(rng, n=600))
        for _ in range(8):
            model.partial_fit(day(rng, 1.0))
        rates.append(np.mean(model.p_value(day(rng, 1.0, 600)) <= 0.1))
    assert 0.04 < np.mean(rates) < 0.12


def test_a_changed_stream_is_learned(model):
    rng = np.random.default_rng(1)
    before = np.mean(model.p_value(day(rng, 1.0)) <= 0.1)
    error = np.mean((model.reconstruct(later := day(rng, 1.0)) - later) ** 2)
    for _ in range(8):
        model.partial_fit(day(rng, 1.0))
    new = day(rng, 1.0, 600)
    assert before > 0.5
    low, high = model.predict_interval(new, 0.9)
    assert 0.85 < np.mean((low <= new) & (new <= high)) < 0.96
    assert np.mean((model.reconstruct(later) - later) ** 2) < 0.7 * error
    assert np.mean(model.predict(day(rng, 0.0)) == -1) > 0.3  # what it was before is unusual now


def test_the_first_call_is_a_fit_and_the_same_data_give_the_same_model(tmp_path):
    rng = np.random.default_rng(0)
    first, second, third = day(rng, n=200), day(rng), day(rng)
    models = [LaplacianAutoencoder(random_state=0, epochs=2, device="cpu") for _ in range(2)]
    for one in models:
        one.partial_fit(first).partial_fit(second)
    a, b = (one.score_samples(third) for one in models)
    np.testing.assert_array_equal(a, b)
    fitted = LaplacianAutoencoder(random_state=0, epochs=2, device="cpu").fit(first)
    assert not np.allclose(fitted.score_samples(third), models[0].score_samples(third))
    models[0].save(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run")
    np.testing.assert_allclose(again.score_samples(third), models[1].score_samples(third), rtol=1e-4, atol=1e-4)


def test_forgetting_is_the_rate_at_which_the_precision_follows():
    """With much of it, new data of less curvature leave a smaller precision behind."""
    rng = np.random.default_rng(0)
    left = []
    for forgetting in (0.001, 0.2):
        model = LaplacianAutoencoder(hessian="sketch", random_state=0, epochs=2, forgetting=forgetting, device="cpu")
        model.fit(day(rng, n=300))
        before = float(diagonal_of(model.model_.method).diagonal().sum())
        model.partial_fit(np.full((120, 4), 20.0) + 0.01 * rng.standard_normal((120, 4)))
        left.append(float(diagonal_of(model.model_.method).diagonal().sum()) / before)
    assert left[1] < left[0]


def test_what_cannot_learn_on_says_so(model):
    x = day(np.random.default_rng(3))
    with pytest.raises(ConfigError, match="only the online method"):
        LaplacianAutoencoder(method="ae", epochs=1, random_state=0, device="cpu").fit(x).partial_fit(x)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(x[:, :3])


def test_what_calibrates_a_stream_has_no_part_in_its_score():
    """With a hundred columns a score that is fitted to the rows that calibrate it calls 70 % of new rows unusual."""
    rng, p = np.random.default_rng(0), []
    for seed in range(6):
        model = LaplacianAutoencoder(random_state=seed, epochs=1, device="cpu").fit(rng.standard_normal((300, 100)))
        for _ in range(2):
            model.partial_fit(rng.standard_normal((200, 100)))
        p.append(model.p_value(rng.standard_normal((200, 100))))
    assert np.mean(np.concatenate(p) <= 0.2) < 0.28


def test_the_window_keeps_its_length():
    rng = np.random.default_rng(0)
    model = LaplacianAutoencoder(random_state=0, epochs=1, device="cpu").fit(day(rng, n=1000))
    lengths = []
    for _ in range(4):
        model.partial_fit(day(rng, n=80))
        known = sure(model.model_.calibration)
        lengths.append((len(known.reference.rows), len(known.intervals.more)))
    assert lengths == [(100, 100)] * 4
