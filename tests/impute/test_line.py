"""The straight line that intervals of missing values reach to: in closed form, and what users get."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from narrow import as_a

from lapae import LaplacianAutoencoder
from lapae.impute.line import Line, joined
from lapae.impute.neighbours import NeighbourImputer
from lapae.impute.spread import SCORES


def rows(rng: np.random.Generator, n: int, middle: float = 0.0) -> np.ndarray:
    """Rows of five columns that go together, around `middle`; the last one is never below 0."""
    t = middle + rng.standard_normal(n)
    noise = rng.standard_normal((n, 4))
    return np.c_[t[:, None] * [1.0, 2.0, -1.0, 0.5] + 0.5 * noise, np.exp(0.5 * t) + rng.random(n)]


def test_the_line_is_the_conditional_gaussian_and_its_deviation_counts_from_a_distance_on():
    rng = np.random.default_rng(0)
    train, held_out = rows(rng, 500), rows(rng, 200)
    x = np.concatenate([rows(rng, 40), rows(rng, 40, middle=4.0)])
    for part, share in ((held_out, 0.3), (x, 0.4)):
        part[rng.random(part.shape) < share] = np.nan
    line = Line.fit(torch.tensor(train), torch.tensor(held_out))
    mean, covariance = line.gaussian.center.numpy(), line.gaussian.covariance.numpy()
    np.testing.assert_allclose(mean, train.mean(0), atol=1e-8)
    np.testing.assert_allclose(covariance, np.cov(train.T, bias=True), rtol=0.02, atol=0.02)
    lowest, highest = train.min(0), train.max(0)
    low, high = lowest - (highest - lowest) / 2, highest + (highest - lowest) / 2

    def plain(row: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
        gap = np.clip(row[o], low[o], high[o]) - mean[o]
        inverse = np.linalg.inv(covariance[np.ix_(o, o)]) if len(o) else np.zeros((0, 0))
        onto = covariance[np.ix_(m, o)] @ inverse
        left = covariance[np.ix_(m, m)] - onto @ covariance[np.ix_(o, m)]
        return (
            (mean[m] + onto @ gap).clip(low[m], high[m]),
            np.sqrt(left.diagonal()),
            (2 + float(gap @ inverse @ gap)) / (2 + len(o)),
        )

    usual = np.quantile([plain(row)[2] for row in held_out], [0.5, 0.9])
    middle, deviation, distance = (part.numpy() for part in line(torch.tensor(x)))
    for row, at, wide, far in zip(x, middle, deviation, distance, strict=True):
        expected, sd, square = plain(row)
        missing = np.isnan(row)
        np.testing.assert_allclose(far, square, rtol=1e-6)
        np.testing.assert_allclose(at[missing], expected, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(
            wide[missing], sd * 1.5 * np.clip((far - usual[0]) / np.diff(usual), 0, 1), rtol=1e-6, atol=1e-9
        )
        assert not at[~missing].any()
        assert not wide[~missing].any()
    assert (distance[:40] < usual[1]).mean() > 0.8
    assert (distance[40:] > usual[1]).mean() > 0.8


def test_one_value_a_hundred_deviations_off_moves_the_line_by_no_more_than_half_a_range():
    rng = np.random.default_rng(0)
    train = torch.tensor(rows(rng, 500))
    line = Line.fit(train, train)
    low, high = train.min(0).values, train.max(0).values
    x = torch.tensor([[100.0, torch.nan, 0.0, 0.0, 1.0], [torch.nan, 200.0, torch.nan, torch.nan, torch.nan]])
    middle, missing = line(x)[0], x.isnan()
    assert (middle <= high + 0.5 * (high - low))[missing].all()
    assert (middle >= low - 0.5 * (high - low))[missing].all()


def test_joined_distributions_are_as_wide_as_either():
    points = SCORES[None] * torch.tensor([[1.0], [1.0], [3.0]])
    middle, deviation = torch.tensor([0.0, 2.0, -0.5]), torch.tensor([2.0, 0.0, 1.0])
    found = joined(points, middle, deviation)
    other = middle[:, None] + deviation[:, None] * SCORES
    below, above = SCORES < -1e-9, SCORES > 1e-9
    assert torch.equal(found[:, below], torch.minimum(points, other)[:, below])
    assert torch.equal(found[:, above], torch.maximum(points, other)[:, above])
    assert (found.diff() >= 0).all()
    assert torch.equal(found[:, ~below & ~above], points[:, ~below & ~above])


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(random_state=0, device="cpu", epochs=20).fit(rows(np.random.default_rng(0), 400))


def held(model: LaplacianAutoencoder, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which values were hidden, and the ends of their 90 % intervals."""
    hidden = np.random.default_rng(1).random(x.shape) < 0.2
    low, high = model.impute_interval(np.where(hidden, np.nan, x), level=0.9)
    return hidden, low, high


def test_intervals_of_rows_that_have_moved_reach_beyond_the_data_but_not_beyond_sure_ends(model):
    rng = np.random.default_rng(2)
    train, new, moved = rows(np.random.default_rng(0), 400), rows(rng, 300), rows(rng, 300, middle=3.5)
    imputer = as_a(NeighbourImputer, model.model_._imputer)
    before = replace(imputer, line=None)  # as saved by earlier versions
    before = before.with_radii(model.model_._trained, model.model_._calibrated.held_out)
    plain = LaplacianAutoencoder(device="cpu")
    plain.__dict__.update(model.__dict__ | {"model_": replace(model.model_, imputer=before)})

    def share(x: np.ndarray, of: LaplacianAutoencoder) -> float:
        hidden, low, high = held(of, x)
        return float(((low <= x) & (x <= high))[hidden].mean())

    assert abs(share(new, model) - 0.9) < 0.06
    assert share(moved, model) > share(moved, plain) + 0.15
    assert share(moved, model) > 0.8
    hidden, low, _ = held(model, rows(rng, 300, middle=-4.0))
    assert low[hidden].min() < train.min() - 1
    assert low[:, 4][hidden[:, 4]].min() >= 0
    assert (held(plain, moved)[2] <= np.where(hidden, train.max(0), np.inf)).all()


def test_an_imputer_with_a_line_is_saved(model, tmp_path):
    x = rows(np.random.default_rng(3), 50, middle=2.0)
    found = held(model, x)
    model.save(tmp_path / "run")
    again = held(LaplacianAutoencoder.load(tmp_path / "run"), x)
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
