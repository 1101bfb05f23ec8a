"""Intervals of missing values whose best predictor is observed, or missing too."""

from __future__ import annotations

import numpy as np
import pytest

from lapae import LaplacianAutoencoder


def trips(n: int, seed: int) -> np.ndarray:
    """Trips that begin at any time of a month and end minutes later, by their length; a fare, and noise."""
    rng = np.random.default_rng(seed)
    begin, length = rng.uniform(0, 31, n), rng.exponential(size=n)
    minutes = 5 + 10 * length + rng.normal(size=n)
    return np.stack([begin, begin + minutes / 1440, length, 3 + 2 * length + 0.3 * rng.normal(size=n)], 1)


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(random_state=0, device="cpu", epochs=5).fit(trips(1500, 0))


def ends(model: LaplacianAutoencoder, missing: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    new = trips(400, 1)
    seen = new.copy()
    seen[:, missing] = np.nan
    low, high = model.impute_interval(seen, level=0.9)
    return (low <= new) & (new <= high), high - low, seen


def test_intervals_hold_whether_or_not_the_best_predictor_is_missing_too(model):
    known, narrow, _ = ends(model, [0])
    unknown, wide, _ = ends(model, [0, 1])
    assert 0.85 < known[:, 0].mean() < 0.99
    assert 0.82 < unknown[:, 0].mean() < 0.97
    assert np.median(narrow[:, 0]) < 0.5  # of 31 days
    assert 20 < np.median(wide[:, 0]) < 31


def test_radii_do_not_depend_on_other_rows(model, tmp_path):
    _, _, seen = ends(model, [0, 1])
    seen[::2, 1] = trips(400, 1)[::2, 1]
    together = model.impute_interval(seen)
    model.save(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run")
    for i in (0, 1, 2, 3):
        for whole, alone in zip(together, again.impute_interval(seen[[i]]), strict=True):
            np.testing.assert_allclose(whole[i], alone[0], rtol=1e-9, atol=1e-9)
