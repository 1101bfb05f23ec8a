"""How many windows of generated series that go on as they were are flagged at 5 %: no series is one in twenty."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from lapae.config import Config, TrainConfig
from lapae.data import Data
from lapae.data.pump import pump
from lapae.fit import fit
from lapae.model import Model

RATE = 0.05


def process(rng: np.random.Generator, n: int, memory: float, n_channels: int = 1) -> np.ndarray:
    """Draw autoregressive processes (n, C) of unit variance."""
    noise = rng.standard_normal((n + 500, n_channels)) * np.sqrt(1 - memory**2)
    return np.asarray(lfilter([1.0], [1.0, -memory], noise, axis=0))[500:]


def seasonal(rng: np.random.Generator, n: int) -> np.ndarray:
    """A day of 96 steps, a week, and what is left over (n, 1)."""
    angle = 2 * np.pi * (np.arange(n)[:, None] / [96, 672] + rng.random(2))
    return np.sin(angle) @ [[1.0], [0.4]] + 0.5 * process(rng, n, 0.8) + 0.2 * rng.standard_normal((n, 1))


def regimes(rng: np.random.Generator, n: int) -> np.ndarray:
    """Three sensors in one of three states, which changes every 150 steps on average, (n, 3)."""
    changes = rng.random(n) < 0.01
    state = rng.integers(3, size=n)[np.maximum.accumulate(np.where(changes, np.arange(n), 0))]
    return 1.5 * rng.standard_normal((3, 3))[state] + 0.5 * process(rng, n, 0.7, 3)


def mixed(rng: np.random.Generator, n: int) -> np.ndarray:
    """Ten sensors that mix four processes, with one of their own each, (n, 10)."""
    slow = np.concatenate([process(rng, n, memory) for memory in (0.8, 0.9, 0.95, 0.98)], 1)
    return slow @ rng.standard_normal((4, 10)) + 0.4 * process(rng, n, 0.5, 10)


KINDS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "fast": lambda rng, n: process(rng, n, 0.5),
    "slow": lambda rng, n: process(rng, n, 0.95),
    "seasonal": seasonal,
    "regimes": regimes,
    "mixed": mixed,
    "pump": lambda rng, n: pump(-(-n // 288), rng)[:n],
}
WINDOW = 32


def flagged(kind: str, seed: int, n: int, n_new: int, epochs: int | None = None) -> tuple[Model, float]:
    """Train on n steps of a series; return the model, and the share of the windows of the steps after them that are
    flagged."""
    x = KINDS[kind](np.random.default_rng(seed), n + n_new)
    config = Config(train=TrainConfig(seed=seed, epochs=epochs, verbose=False))
    model = fit(config, Data.of(x[:n], window=WINDOW))
    new = np.stack([x[i : i + WINDOW] for i in range(n + 2 * WINDOW, len(x) - WINDOW, WINDOW // 2)])
    return model, float((model.anomaly_score(new)[1] <= RATE).mean())


def test_the_held_out_scores_of_a_series_are_those_of_few_windows():
    """Compared with windows that overlap as if each were one of its own, more than a twentieth are flagged."""
    model, share = flagged("slow", 0, 2000, 8000, epochs=1)
    assert share < 1.6 * RATE
    assert model.calibration is not None
    known = model.calibration.reference
    assert known.independent is not None
    assert float(known.independent) <= (model.space.stride or 0) / WINDOW
    with torch.no_grad():
        plain = model.calibration.score(model.for_score(known.rows), known.rows)
    np.testing.assert_allclose(model.step_rule().held_out, plain, atol=2e-6)  # of steps and streams
    assert model.rule().held_out.max() == known.scores.max()
    assert (known.scores >= plain - 1e-5).all()
    assert known.scores.max() > plain.max() + 0.1
    again = model.calibration.anew(model.predict).reference
    assert np.array_equal(again.scores, known.scores)
    assert again.plain is not None
    assert known.plain is not None
    assert np.array_equal(again.plain, known.plain)


@pytest.mark.slow
def test_a_twentieth_of_the_windows_of_stationary_series_is_flagged():
    """Each kind has its own share, and each series its own: records are short; 24 of them have the rate."""
    shares = {kind: [flagged(kind, seed, 4000, 20_000)[1] for seed in range(4)] for kind in KINDS}
    every = np.concatenate(list(shares.values()))
    print({kind: np.round(of, 3).tolist() for kind, of in shares.items()}, every.mean())
    assert 0.035 < every.mean() < 0.065, shares
    assert all(np.mean(of) < 2 * RATE for of in shares.values()), shares


LEARNED = 1600
"""Steps to learn from, of series that remember many of them."""


def remembers(memory: int, seed: int) -> tuple[bool, float]:
    """Train on three processes that remember some steps; return whether `fit` warns, and the share of windows flagged
    that follow: those of 600 steps of five other draws."""
    rng = np.random.default_rng([seed, memory])

    def drawn(n: int) -> np.ndarray:
        return process(rng, n + 5 * memory, float(np.exp(-1 / memory)), 3)[5 * memory :]

    config = Config(train=TrainConfig(seed=seed, epochs=3, verbose=False))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = fit(config, Data.of(drawn(LEARNED), window=16, stride=4))
    others = [drawn(600) for _ in range(5)]
    new = np.stack([x[i : i + 16] for x in others for i in range(0, 585, 4)])
    said = any("remembers a large part" in str(w.message) for w in told)
    return said, float((model.anomaly_score(new)[1] <= RATE).mean())


def test_series_that_remember_much_of_the_record_are_told():
    assert not remembers(5, 0)[0]
    trend = np.linspace(0, 1, 1000)[:, None] + 0.05 * np.random.default_rng(0).standard_normal((1000, 1))
    config = Config(train=TrainConfig(seed=0, epochs=1, verbose=False))
    trend = np.concatenate([trend, np.where(np.arange(1000)[:, None] == 999, 1.0, np.nan)], 1)  # and one of nothing
    with pytest.warns(UserWarning, match=r"channel '0' remembers a large part of the training data \(\d\d% of it\)"):
        fit(config, Data.of(trend, window=16, stride=4))


@pytest.mark.slow
def test_p_values_of_series_with_a_long_memory():
    """They do not hold for series that remember a quarter of the record or more, and many of these are told."""
    found = {memory: [remembers(memory, seed) for seed in range(8)] for memory in (20, 80, 200, 400, 800)}
    shares = {memory: float(np.mean([share for _, share in of])) for memory, of in found.items()}
    told = {memory: sum(said for said, _ in of) for memory, of in found.items()}
    print({memory: (told[memory], np.round([share for _, share in of], 3).tolist()) for memory, of in found.items()})
    print(shares)
    assert max(shares[20], shares[80]) < 1.5 * RATE, shares
    assert told[20] == 0, told
    assert shares[800] > 1.5 * RATE, shares
    assert told[800] >= 4, told
