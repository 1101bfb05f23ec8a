"""Reasons: contributions add up to the score, and name what was disturbed; what is expected is what was there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from narrow import as_a

from lapae import LaplacianAutoencoder
from lapae.impute.neighbours import NeighbourImputer
from lapae.model import leading
from lapae.score.score import WEIGHTS
from lapae.space.columns import Column
from lapae.view.reasons import choose_reasons


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
    parts = model.model_.calibration.score
    tensor = model.model_.tensor(x)
    t = parts.standardised(parts.parts(model.model_.predict(tensor), tensor).values)
    last = 1e-3 * (t @ t.new_tensor(WEIGHTS)).numpy()  # a term of the score that tells apart what is normal
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
    assert np.mean(found.idxmax(axis=1) == "size") > 0.8
    expected, low, high = model.counterfactual(wrong)
    assert np.mean(expected["size"] == "S") > 0.8
    assert (low["size"] == expected["size"]).all()
    assert (high["size"] == expected["size"]).all()


def test_what_is_exactly_as_expected_is_no_reason_and_a_value_is_shown_as_it_is():
    columns = (Column("height", "count"), Column("weight"))
    coded, part = np.array([[180.0, 80.0], [1.82, 80.0]]), np.array([[3.0, 1.0], [3.0, 1.0]])

    def expected_of(rows, j):
        return np.choose(j, [180.0, 70.0]), np.choose(j, [175.0, 60.0]), np.choose(j, [185.0, 90.0])

    found = choose_reasons(columns, coded, part, expected_of)
    assert found.feature.tolist() == [1, 0]  # a weight within its interval, rather than a height of 180 as expected
    assert found.texts(columns, {})["value"] == ["80", "1.82"]


def held(low: np.ndarray, value: np.ndarray, high: np.ndarray) -> float:
    return float(np.mean((low <= value) & (value <= high)))


def test_what_was_expected_of_a_disturbed_value_is_what_was_there(model):
    true, which, at = rows(200, 2), np.random.default_rng(3).integers(0, 5, 200), np.arange(200)
    x = true.copy()
    x[at, which] += np.where(at % 2, 1.5, -1.5)
    before, odd = true[at, which], x[at, which]
    expected, low, high = (part[at, which] for part in model.counterfactual(x))
    assert np.abs(expected - before).mean() < 0.15
    assert held(low, before, high) > 0.85
    assert held(low, odd, high) < 0.05
    # the reconstruction is drawn towards the value: it does not say what was there
    low, high = (part[at, which] for part in model.predict_interval(x))
    assert np.abs(model.reconstruct(x)[at, which] - before).mean() > 0.3
    assert held(low, before, high) < 0.2


def test_intervals_of_what_was_expected_hold_normal_values(model):
    x = rows(300, 4)
    _, low, high = model.counterfactual(x)
    assert 0.87 < held(low, x, high) < 0.99
    _, low, high = model.counterfactual(x, level=0.5)
    assert 0.4 < held(low, x, high) < 0.75


def test_what_was_expected_is_what_is_filled_in_and_does_not_depend_on_other_rows(model):
    x = rows(6, 5)
    x[1:3, 3] += 2
    x[2, 0] = np.nan
    assert (model.explain(x).argmax(1)[1:3] == 3).all()
    hole = x.copy()
    hole[1:3, 3] = np.nan
    filled = model.impute(hole)
    expected, low, high = model.counterfactual(x)
    np.testing.assert_allclose(expected[1:3, 3], filled[1:3, 3])
    assert expected[2, 0] == pytest.approx(filled[2, 0])  # a missing value is as good as hidden
    hole[1, 4] = np.nan
    assert expected[1, 4] == pytest.approx(model.impute(hole)[1, 4])  # the odd one is hidden from the others
    assert not np.isnan([expected, low, high]).any()
    alone = [part[0] for part in model.counterfactual(x[1:2])]
    np.testing.assert_allclose(alone, [part[1] for part in (expected, low, high)], rtol=1e-6)


def test_one_wrong_value_does_not_mislead_about_the_others(model):
    true = rows(100, 10)
    x = true.copy()
    x[:, 2] += 3
    _, low, high = model.counterfactual(x)
    others = np.arange(5) != 2
    assert held(low[:, others], true[:, others], high[:, others]) > 0.85
    assert np.mean((high - low)[:, others]) < 1  # of values that go from -2 to 2


def test_a_row_of_training_does_not_say_what_is_expected_of_itself():
    """Reports are about training data, too: the row itself is the donor that is most alike."""
    x = rows(400, 7)
    x[:40] += np.linspace(3, 6, 40)[:, None]  # few others are near these
    model = LaplacianAutoencoder(random_state=0, epochs=5, device="cpu").fit(x)
    assert np.mean(np.isclose(model.counterfactual(x[:40])[0], x[:40], rtol=1e-5)) < 0.1
    found = model.model_
    donors = as_a(NeighbourImputer, found.with_imputer().imputer).all
    np.testing.assert_array_equal(np.sort(donors.find(found.tensor(x))), np.arange(400))
    assert (donors.find(found.tensor(rows(5, 8))) == -1).all()


def test_what_was_expected_of_the_values_that_did_it(model):
    x = rows(40, 6)
    x[:, 2] += 1.5
    found, all_values = model.counterfactual(x, top=2), model.counterfactual(x)
    asked = ~np.isnan(found[0])
    reasons = model.explain(x)
    np.testing.assert_array_equal(asked, leading(reasons, 2))
    assert (asked.sum(1) <= 2).all()
    assert asked[:, 2].mean() > 0.8
    for some, every in zip(found, all_values, strict=True):
        np.testing.assert_allclose(some[asked], every[asked], rtol=1e-6)
    with pytest.raises(ValueError, match="top=0"):
        model.counterfactual(x, top=0)
    with pytest.raises(ValueError, match=r"top=1\.5: expected a whole number"):
        model.counterfactual(x, top=1.5)  # pyright: ignore[reportArgumentType]


def test_leading_values_contribute():
    part = np.array([[0.0, 3, 1, 2], [0, 0, 0, 4], [0, 0, 0, 0]])
    np.testing.assert_array_equal(leading(part, 2).nonzero(), ([0, 0, 1], [1, 3, 3]))
    assert leading(part.reshape(3, 2, 2), 2).shape == (3, 2, 2)


def test_what_was_expected_of_an_image_is_its_reconstruction():
    rng = np.random.default_rng(0)
    x = np.zeros((60, 6, 6), np.uint8)
    for image, (r, c) in zip(x, rng.integers(0, 4, (60, 2)), strict=True):
        image[r : r + 3, c : c + 3] = 200
    model = LaplacianAutoencoder(random_state=0, epochs=2, device="cpu").fit(x)
    expected, low, high = model.counterfactual(x[:5])
    np.testing.assert_allclose(expected, model.reconstruct(x[:5]))
    np.testing.assert_allclose((low, high), model.predict_interval(x[:5]))
