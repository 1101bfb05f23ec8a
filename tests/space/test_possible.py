"""Intervals and filled-in values are values that a column can have."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lapae import LaplacianAutoencoder
from lapae.space.columns import DAY, Column
from lapae.space.possible import ENOUGH, Possible


def test_ends_that_many_rows_have_are_sure_and_others_only_bound_what_is_filled_in():
    codes = np.column_stack([np.repeat([1.0, 2.0, 3.0], 40), np.linspace(-5, 7, 120), np.linspace(2, 9, 120)])
    found = Possible.fit(codes, [Column("class", "count"), Column("height"), Column("price")])
    assert found.low.tolist() == [1, -np.inf, 0]
    assert found.high.tolist() == [3, np.inf, np.inf]
    assert found.least.tolist() == [1, -5, 2]
    assert found.most.tolist() == [3, 7, 9]
    assert found.whole.tolist() == [True, False, False]


def test_intervals_of_missing_values_reach_beyond_the_rows_as_far_as_limits_let_them_but_not_beyond_sure_ends():
    found = Possible.fit(np.column_stack([np.linspace(-5, 7, 120), np.linspace(2, 9, 120)]), None)
    low, high = np.full((1, 2), -100.0), np.full((1, 2), 100.0)
    limits = np.array([[-8.0, -3.0]]), np.array([[6.0, 11.0]])
    assert [end.tolist() for end in found.interval(low, high, filled=True)] == [[[-5, 2]], [[7, 9]]]
    assert [end.tolist() for end in found.interval(low, high, filled=True, limits=limits)] == [[[-8, 0]], [[7, 11]]]


def test_few_rows_bound_what_is_filled_in_at_twice_the_distance_of_their_ends_from_the_median():
    values = np.append(np.linspace(2, 9, ENOUGH - 2), 40.0)  # skewed
    found, middle = Possible.fit(values[:, None], [Column("price")]), np.median(values)
    assert (found.least[0], found.most[0]) == (0, 80 - middle)
    limits = np.array([[-100.0]]), np.array([[561.0]])
    low, high = found.interval(*limits, filled=True, limits=limits)
    assert (low[0, 0], high[0, 0]) == (0, 80 - middle)


def test_intervals_of_whole_numbers_are_rounded_outward():
    found = Possible.fit(np.arange(200.0)[:, None], [Column("day", "date", format=DAY)])
    low, high = found.interval(np.array([[8.2]]), np.array([[8.6]]))
    assert (low[0, 0], high[0, 0]) == (8, 9)


def test_what_is_imputed_has_the_decimal_places_of_its_column():
    codes = np.column_stack([np.arange(1, 200) / 100, np.linspace(0, 1, 199) ** 2, np.arange(1, 200) * 1e-9])
    found = Possible.fit(codes, [Column("price"), Column("real"), Column("tiny")])
    x = np.array([[0.28766, 0.28766, 2.5e-9]])
    assert found.fill(x).tolist() == [[0.29, 0.28766, 2.5e-9]]
    assert found.fill(x, whole=False).tolist() == x.tolist()  # a mean
    low, high = found.interval(x, x, filled=True)
    assert (low[0].tolist(), high[0].tolist()) == ([0.28, 0.28766, 2.5e-9], [0.29, 0.28766, 2.5e-9])
    price = np.array([[0.29, 0.5, 1e-8]])
    assert all(end[0, 0] == 0.29 for end in found.interval(price, price, filled=True))


def test_a_column_without_a_value_and_words_have_no_ends():
    found = Possible.fit(np.full((60, 2), [np.nan, 1.0]), [Column("empty"), Column("word", "boolean")])
    assert np.isinf(found.least).all()
    assert np.isinf(found.most).all()


def rows(n: int, seed: int) -> pd.DataFrame:
    """Rows whose price and count depend on size, with a skewed noise; price and wait have no value below 0."""
    rng = np.random.default_rng(seed)
    size = rng.normal(size=n)
    return pd.DataFrame(
        {
            "size": size,
            "price": np.exp(0.5 * size + 0.8 * rng.normal(size=n)).round(2),
            "wait": rng.exponential(10, n),
            "visits": rng.poisson(np.exp(1 + 0.5 * size)),
            "class": np.clip(np.round(2 + size), 1, 3).astype(int),
            "member": rng.random(n) < 1 / (1 + np.exp(-1.5 * size)),
            "color": np.where(size + rng.normal(size=n) > 0, rng.choice(["red", "blue"], n), "green"),
        }
    )


@pytest.fixture(scope="module")
def fitted() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(random_state=0, device="cpu", epochs=30).fit(rows(800, 0))


@pytest.fixture(scope="module")
def filled(fitted: LaplacianAutoencoder):
    """New rows, the same with values hidden, and what is filled in, with intervals."""
    new = rows(1500, 1)
    chosen = np.random.default_rng(2).random(new.shape) < 0.25
    hidden = new.astype(object).mask(chosen)
    return new, hidden, fitted.impute(hidden), *fitted.impute_interval(hidden)


def test_intervals_of_missing_values_are_possible(filled):
    _, hidden, best, low, high = filled
    train = rows(800, 0)
    for name in ("size", "price", "wait", "visits", "class"):
        asked = hidden[name].isna()
        lows, highs, guess = (frame[name][asked].astype(float) for frame in (low, high, best))
        assert (highs > train[name].max()).mean() < 0.03  # rows that lie where no training row does
        assert ((lows <= guess) & (guess <= highs)).all()
        if name in ("visits", "class"):
            assert lows.min() >= {"visits": 0, "class": 1}[name]
            assert (lows == np.floor(lows)).all()
            assert (highs == np.floor(highs)).all()
    assert (low[["price", "wait"]].to_numpy() >= 0)[hidden[["price", "wait"]].isna().to_numpy()].all()
    assert (high["class"][hidden["class"].isna()] <= 3).all()
    # an exponential has most of its values below the middle of its interval
    asked = hidden["wait"].isna()
    up, down = high["wait"][asked] - best["wait"][asked], best["wait"][asked] - low["wait"][asked]
    assert up.astype(float).mean() > 2 * down.astype(float).mean()


def test_intervals_and_sets_hold_the_values(fitted, filled):
    new, hidden, _, low, high = filled
    for name in ("size", "price", "wait", "visits", "class", "member"):
        asked = hidden[name].isna()
        truth, lows, highs = (frame[name][asked].astype(float) for frame in (new, low, high))
        inside = ((lows <= truth + 1e-9) & (truth <= highs + 1e-9)).mean()
        assert inside > 0.85, (name, inside)
    assert (low["member"][hidden["member"].isna()] != high["member"][hidden["member"].isna()]).any()
    sets = fitted.impute_levels(hidden)
    assert list(sets.columns) == ["member", "color"]
    for name in sets.columns:
        asked = hidden[name].isna()
        assert sets[name][~asked].isna().all()
        inside = [truth in likely for truth, likely in zip(new[name][asked], sets[name][asked], strict=True)]
        assert 0.85 < np.mean(inside) < 0.99
        for likely in sets[name][asked]:
            assert list(likely.values()) == sorted(likely.values(), reverse=True)
            assert sum(likely.values()) <= 1 + 1e-6
    wider = fitted.impute_levels(hidden, level=0.99)
    assert wider["color"].dropna().map(len).mean() > sets["color"].dropna().map(len).mean() + 0.2


def test_intervals_of_observed_values_are_possible(fitted):
    new = rows(400, 3)
    low, high = fitted.predict_interval(new)
    assert (low[["price", "wait", "visits"]] >= 0).all().all()
    assert low["class"].between(1, 3).all()
    assert high["class"].between(1, 3).all()
    for name in ("price", "wait", "visits"):
        inside = ((low[name] <= new[name]) & (new[name] <= high[name])).mean()
        assert inside > 0.84, (name, inside)
