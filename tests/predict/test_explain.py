"""Reasons: contributions add up to the surprise, and name what was disturbed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lapae import LaplacianAutoencoder
from lapae.predict.surprise import WEIGHTS


def rows(n: int, seed: int) -> np.ndarray:
    """Five features of two causes."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(-1, 1, (2, n))
    return np.stack([a, b, a + b, a - b, 2 * a], 1) + 0.05 * rng.standard_normal((n, 5))


@pytest.fixture(scope="module")
def model():
    return LaplacianAutoencoder(random_state=0, epochs=15, device="cpu").fit(rows(500, 0))


def test_contributions_add_up_to_what_they_explain(model):
    x = rows(60, 1)
    x[:20, 2] += 1.5
    found = model.explain(x)
    parts = model.model_.calibration.surprise
    tensor = model.model_.tensor(x)
    t = parts.standardised(parts.parts(model.model_.predict(tensor), tensor).values)
    last = 1e-3 * (t @ t.new_tensor(WEIGHTS)).numpy()  # a term of the surprise that tells apart what is normal
    np.testing.assert_allclose(found.sum(1), -model.score_samples(x) - last, rtol=1e-6, atol=1e-6)
    assert (found >= 0).all()
    x[0, 1] = np.nan
    assert model.explain(x)[0, 1] == 0


def test_a_value_that_fits_its_column_and_not_its_row_is_named(model):
    """Exchanged between rows, so that its own distribution cannot give it away."""
    x, which = rows(200, 2), np.random.default_rng(3).integers(0, 5, 200)
    before = x.copy()
    for i, j in enumerate(which):
        far = np.abs(before[:, j] - before[i, j]) > 1
        x[i, j] = before[np.flatnonzero(far)[i % far.sum()], j]
    assert np.mean(model.explain(x).argmax(1) == which) > 0.8


def test_a_word_that_does_not_go_with_its_row_is_named():
    rng = np.random.default_rng(0)
    size = rng.integers(0, 3, 400)
    frame = pd.DataFrame({"size": np.array(["S", "M", "L"])[size], "cm": 50 + 10 * size + rng.normal(0, 0.5, 400)})
    frame["kg"] = frame["cm"] * 0.9 + rng.normal(0, 0.5, 400)
    model = LaplacianAutoencoder(random_state=0, epochs=15, device="cpu").fit(frame)
    wrong = frame[size == 0].head(30).assign(size="L")
    found = model.explain(wrong)
    assert found.shape == (30, 3)
    assert np.mean(found.argmax(1) == 0) > 0.8
