"""Missing values of rows that lie where no training row does."""

from __future__ import annotations

import numpy as np
import pytest

from lapae import LaplacianAutoencoder
from lapae.impute.neighbours import NeighbourImputer


def curve(rng: np.random.Generator, low: float, high: float, n: int) -> np.ndarray:
    t = rng.uniform(low, high, n)
    return np.stack([t, t**2, np.sin(2 * t), 0.5 * t], 1) + 0.05 * rng.standard_normal((n, 4))


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(random_state=0, device="cpu", epochs=30).fit(
        curve(np.random.default_rng(0), -1, 1, 400)
    )


def holds(model: LaplacianAutoencoder, x: np.ndarray) -> tuple[float, float]:
    """Share of hidden values inside their 90 % intervals, and mean width."""
    hidden = np.random.default_rng(1).random(x.shape) < 0.25
    low, high = model.impute_interval(np.where(hidden, np.nan, x), level=0.9)
    return float(((low <= x) & (x <= high))[hidden].mean()), float((high - low)[hidden].mean())


def test_intervals_widen_where_observed_values_are_far_from_their_reconstructions(model, tmp_path, monkeypatch):
    rng = np.random.default_rng(2)
    usual, moved = curve(rng, -1, 1, 300), curve(rng, 1.0, 1.3, 300)
    (of_usual, _), (of_moved, wide) = holds(model, usual), holds(model, moved)
    assert of_usual > 0.84
    model.save(tmp_path / "run")
    assert holds(LaplacianAutoencoder.load(tmp_path / "run"), moved) == (of_moved, wide)
    monkeypatch.setattr(NeighbourImputer, "farther", lambda self, found, x: x.new_ones(len(x)))
    held, narrow = holds(model, moved)
    assert of_moved > held + 0.02
    assert wide > 1.1 * narrow
