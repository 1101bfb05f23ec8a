"""Calibration around a model that is known: principal components of data whose noise is known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from narrow import sure
from scipy.stats import kstest, norm, spearmanr

from lapae.calibrate.calibration import Calibration, Reference, Tiles
from lapae.calibrate.conformal import LEVELS, Radius
from lapae.impute.imputer import ImputerRows
from lapae.impute.network import NetworkImputer
from lapae.predict.deviation import log_scale
from lapae.predict.prediction import Prediction
from lapae.runs.parts import to_tensors

FEATURES, CODE = 8, 2
LOADINGS = torch.linalg.qr(torch.randn(FEATURES, CODE, generator=torch.Generator().manual_seed(0)).double())[0]


def noise_of(z: np.ndarray) -> np.ndarray:
    """Deviations (n, FEATURES) at codes: half of the features are noisier where the first number is large."""
    g = np.exp(1.2 * z[:, :1])
    return 0.1 * np.concatenate([np.tile(g, FEATURES // 2), np.ones((len(z), FEATURES // 2))], 1)


def data(n: int, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, CODE))
    return torch.from_numpy(3 * z @ LOADINGS.numpy().T + noise_of(z) * rng.standard_normal((n, FEATURES)))


def predict(x: torch.Tensor) -> Prediction:
    """Least squares on what is observed: a network that was trained with hidden values."""
    seen = (~x.isnan()).double()
    basis = seen[:, :, None] * LOADINGS
    gram = basis.mT @ basis + 1e-3 * torch.eye(CODE).double()
    z = torch.linalg.solve(gram, basis.mT @ x.nan_to_num()[:, :, None])[:, :, 0]
    x_mean = z @ LOADINGS.T
    variances = {"z_var": torch.full_like(z, 1e-3), "x_var": torch.full_like(x, 1e-3)}
    return Prediction(1, {"z_mean": z, "x_mean": x_mean, **variances})


TRAINED: Any = SimpleNamespace(
    predict=predict,
    space=SimpleNamespace(kind="table"),
    groups=(torch.arange(FEATURES), torch.zeros(FEATURES, dtype=torch.bool)),
    variance=None,
)
"""A network that an imputer may ask."""


def imputer_of(calibration: Calibration, seed: int = 0) -> NetworkImputer:
    return NetworkImputer.fit(TRAINED, ImputerRows(data(600, seed), data(100, seed + 1), False), calibration)


def made(n_calib: int, seed: int = 0, *, table: bool = True):
    return Calibration.fit(predict, data(600, seed), data(100, seed + 1), data(n_calib, seed + 2), table=table)


@pytest.fixture(scope="module")
def calibration():
    return made(1000)


def rank_correlation(a: Any, b: Any) -> float:
    found: Any = spearmanr(a.ravel(), b.ravel())
    return found[0]


def test_a_deviation_follows_the_noise_of_a_value(calibration):
    new = data(2000, 9)
    found = predict(new)
    deviation = calibration.deviation(found, new)
    error = (new - sure(found.x_mean)).abs()
    truth = noise_of((new @ LOADINGS / 3).numpy())
    assert rank_correlation(deviation[:, :4], truth[:, :4]) > 0.85
    assert rank_correlation(deviation[:, :4], error[:, :4]) > 0.4
    inside = error <= deviation * torch.from_numpy(calibration.intervals.radius.at(0.9))
    assert inside.double().mean() == pytest.approx(0.9, abs=0.015)
    noisy = (truth[:, 0] > np.quantile(truth[:, 0], 0.8)).nonzero()[0]
    assert inside[noisy].double().mean() > 0.8  # with one deviation for all it would be about 0.6


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_intervals_of_hidden_values_hold(share):
    """On average over calibration data, which is what is promised."""
    held: dict[float, list[float]] = {0.5: [], 0.9: []}
    for k in range(1, 7):
        calibration, new = made(1000, 100 * k), data(2000, 10 + k)
        hidden = torch.rand(new.shape, generator=torch.Generator().manual_seed(k)) < share
        seen = torch.where(hidden, torch.nan, new)
        found = predict(seen)
        imputer = imputer_of(calibration)
        score, _, rows = imputer._hidden_scores(TRAINED, calibration.held_out, hidden)
        radius = Radius.fit(np.abs(score), rows=rows)
        for level, inside in held.items():
            reach = sure(imputer.deviation)(found, seen) * torch.from_numpy(radius.at(level))
            covered = (new - sure(found.x_mean)).abs() <= reach
            inside.append(float(covered[hidden].double().mean()))
    for level, inside in held.items():
        assert np.mean(inside) == pytest.approx(level, abs=0.03)


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_p_values_are_uniform_with_and_without_holes(calibration, table, share):
    """A row in the calibration data that finds itself among its neighbours would make new rows with holes unusual."""
    calibration = calibration if table else made(1000, table=False)
    new = data(1500, 11)
    hidden = torch.rand(new.shape, generator=torch.Generator().manual_seed(1)) < share
    _, p = calibration.compare(predict, torch.where(hidden, torch.nan, new))
    assert kstest(p, "uniform").statistic < 0.1  # rows with missing values are compared with 200
    assert (p <= 0.05).mean() == pytest.approx(0.05, abs=0.025)


def test_p_values_are_uniform_with_sixty_data_to_compare_with():
    """On average over calibration data, which is what is promised."""
    for table in (True, False):
        p = np.concatenate([made(60, 100 * k, table=table).compare(predict, data(50, 7 + k))[1] for k in range(1, 11)])
        assert kstest(p, "uniform").statistic < 0.07
        assert (p <= 0.05).mean() == pytest.approx(0.05, abs=0.025)


def test_few_data_are_joined_by_those_that_steered_training():
    """Unless the model was fitted to them; many are enough by themselves."""
    few, valid = data(40, 2), data(100, 1)
    for rows, learned, n in ((few, False, 100), (few, True, 0), (data(600, 2), False, 0)):
        found = Calibration.fit(predict, data(600, 0), valid, rows, table=True, learned=learned)
        assert len(found.intervals.more) == n
        assert len(found.reference.scores) == len(rows)  # p-values are of the others alone


def test_what_is_empty_has_no_score(calibration):
    new = data(3, 12)
    new[1] = torch.nan
    scores, p = calibration.compare(predict, new)
    assert np.isnan(scores).tolist() == np.isnan(p).tolist() == [False, True, False]


def test_another_way_to_predict_is_compared_with_the_same_way(calibration):
    """Scores of one predictive against those of another would call everything unusual, or nothing."""

    def worse(x: torch.Tensor) -> Prediction:
        found = predict(x)
        return found.replace(x_mean=1.5 * found.x_mean)

    new = data(1500, 13)
    assert (calibration.compare(worse, new)[1] <= 0.05).mean() > 0.3
    anew = calibration.anew(worse)
    assert (anew.compare(worse, new)[1] <= 0.05).mean() == pytest.approx(0.05, abs=0.025)
    found = worse(new)
    reach = anew.deviation(found, new) * torch.from_numpy(anew.intervals.radius.at(0.9))
    assert ((new - sure(found.x_mean)).abs() <= reach).double().mean() == pytest.approx(0.9, abs=0.03)


def test_scales_are_fitted_by_maximum_likelihood():
    rng = np.random.default_rng(0)
    design = torch.from_numpy(np.concatenate([rng.standard_normal((20_000, 2)), np.ones((20_000, 1))], 1))
    truth = torch.tensor([0.8, -0.3, 0.5]).double()
    size = (design @ truth).exp() * torch.from_numpy(rng.exponential(1, 20_000))
    np.testing.assert_allclose(log_scale(design, size, 1e-3), truth, atol=0.03)
    assert log_scale(design, size, 1e-3, 0.0)[1] == 0  # where more ignorance may make nothing surer
    heavy = log_scale(design, size, 1e9)  # nothing but the mean is left
    np.testing.assert_allclose(heavy, [0, 0, float(size.mean().log())], atol=0.02)


def test_a_row_is_judged_alone(calibration):
    """Whatever other rows are in the call, with as many patterns of missing values as there are rows."""
    new = data(60, 14)
    new[torch.rand(new.shape, generator=torch.Generator().manual_seed(3)) < 0.4] = torch.nan
    scores, p = calibration.compare(predict, new)
    for i in (0, 7, 31, 59):
        alone = calibration.compare(predict, new[i : i + 1])
        np.testing.assert_allclose((scores[i], p[i]), np.ravel(alone), rtol=1e-9)


def test_patterns_that_are_scored_together_are_scored_as_alone(calibration, monkeypatch):
    new = data(60, 14)
    new[torch.rand(new.shape, generator=torch.Generator().manual_seed(3)) < 0.4] = torch.nan
    calls: list[int] = []

    def counted(x: torch.Tensor) -> Prediction:
        calls.append(len(x))
        return predict(x)

    together = calibration.compare(counted, new)
    n_together = len(calls)
    monkeypatch.setattr("lapae.calibrate.calibration.AT_ONCE", 1)
    alone = calibration.compare(counted, new)
    np.testing.assert_allclose(together, alone, rtol=1e-9)
    assert 5 * n_together < len(calls) - n_together


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_rows_to_compare_with_may_lack_values_of_their_own(share):
    """New rows that lack fewer, or none, are no more unusual for that: they were, when held-out rows lacked more."""

    def lacking(n: int, seed: int, share: float = 0.5) -> torch.Tensor:
        gone = torch.rand((n, FEATURES), generator=torch.Generator().manual_seed(seed)) < share
        return torch.where(gone, torch.nan, data(n, seed))

    p = []
    for k in range(8):
        found = Calibration.fit(
            predict, lacking(300, 10 * k + 1), lacking(60, 10 * k + 2), lacking(150, 10 * k + 3), table=True
        )
        p.append(found.compare(predict, lacking(60, 10 * k + 4, share))[1])
    p = np.concatenate(p)
    assert np.nanmean(p <= 0.05) < 0.075  # was 0.12 and more
    assert np.nanmean(p <= 0.2) < 0.25
    assert np.nanmean(p <= 0.2) > 0.05  # and says something


def test_rows_that_are_equal_have_equal_p_values():
    """However their sums are rounded: dice have ties, which count as at least as unusual."""
    rolls = torch.randint(1, 7, (400, FEATURES), generator=torch.Generator().manual_seed(0)).double()
    rolls = (rolls - 3.5) / 1.7
    found = Calibration.fit(predict, rolls[:200], rolls[200:300], rolls[300:], table=True)
    scores, p = found.compare(predict, rolls[300:])
    for block in (1, 3, 37):
        again = np.concatenate([found.compare(predict, part)[1] for part in rolls[300:].split(block)])
        np.testing.assert_array_equal(again, p)
    assert (p == 1 / 101).sum() == 0  # the most unusual ties with itself: two in a hundred and one
    assert len(np.unique(scores)) > 50


@pytest.mark.parametrize("n", [40, 600])
@pytest.mark.parametrize("table", [True, False])
def test_rows_that_calibrate_have_no_part_in_deviations_and_scores(table, n):
    """Whatever they are, what is fitted is the same; but for a table they are neighbours, as all rows are."""
    rows = data(n, 2)
    one, other = (
        to_tensors(Calibration.fit(predict, data(200, 0), data(60, 1), held, table=table))
        for held in (rows, 3 * rows.flip(0) + 1)
    )
    fitted = ("deviation.", "score.directions", "score.marginals.")
    same = [name for name in one if name.startswith(fitted if table else (*fitted, "score."))]
    assert len(same) >= 12
    for name in same:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0, equal_nan=True, msg=name)
    assert not torch.equal(one["intervals.radius.table"], other["intervals.radius.table"])


def test_p_values_with_missing_values_are_the_definition():
    """By loops, of scores that are whole numbers and tie: sums of what is seen."""
    generator = torch.Generator().manual_seed(5)

    def some(n: int, share: float) -> torch.Tensor:
        values = torch.randint(-2, 3, (n, FEATURES), generator=generator).double()
        return torch.where(torch.rand(values.shape, generator=generator) < share, torch.nan, values)

    def score(found: Any, x: torch.Tensor, own: Any = None) -> torch.Tensor:
        return x.nansum(1)

    rows = some(30, 0.2)
    known: Any = Calibration.fit(predict, data(100, 0), data(40, 1), rows, table=False)
    known = replace(known, score=score, reference=Reference(rows, score(None, rows), known.reference.own))
    new = torch.cat([some(40, 0.0), some(40, 0.2), some(40, 0.7)])
    ways = []
    for x, p in zip(new, known.compare(predict, new)[1], strict=True):
        lacks = [(rows[i].isnan() | x.isnan()) for i in range(len(rows))]
        ways.append(all(bool((lack == x.isnan()).all()) for lack in lacks))
        order = sorted(range(len(rows)), key=lambda i: int(lacks[i].sum()))  # the fewest besides first
        kept = [i for i in order if not lacks[i].all()]
        theirs = [float(rows[i][~lacks[i]].sum()) for i in kept]
        hidden = [lacks[kept[int(j)]] for j in torch.linspace(0, len(kept) - 1, min(len(kept), 16)).long()]
        ours = round(sum(float(x[~lack].sum()) for lack in hidden) / max(len(hidden), 1), 6)
        expected = (1 + sum(score >= ours for score in theirs)) / (len(theirs) + 1)
        assert np.isnan(p) if x.isnan().all() else p == pytest.approx(expected)
    assert sum(ways) < len(new) - 10


@pytest.mark.parametrize("n_calib", [24, 200])
def test_one_odd_value_is_seen_though_most_calibration_rows_lack_it(n_calib):
    """Pair by pair, as both lack what either lacks, such rows had p > 0.05: a pair is blind to what it lacks."""

    def lacking(n: int, seed: int) -> torch.Tensor:
        gone = torch.rand((n, FEATURES), generator=torch.Generator().manual_seed(seed)) < 0.4
        return torch.where(gone, torch.nan, data(n, seed))

    found = Calibration.fit(predict, lacking(300, 1), lacking(60, 2), lacking(n_calib, 3), table=True)
    complete, partly = data(30, 4), lacking(30, 5)
    for new in (complete, partly):
        new[:, 0] = 1e4
        assert (found.compare(predict, new)[1] <= 0.05).mean() > 0.9


def test_parts_of_a_score_do_not_turn_on_the_last_bit(calibration):
    """Values in place of missing ones tie with those of rows that lack the same, however they were added up."""

    def shaken(x: torch.Tensor) -> Prediction:
        found = predict(x)
        return found.replace(x_mean=sure(found.x_mean) * (1 + 1e-12))

    rows = data(200, 1)
    rows[:, 3:] = torch.nan
    rows[:, 2] = rows[:, 2].round()
    rows[:, :2] = 0
    found = Calibration.fit(predict, rows[:100], rows[100:150], rows[150:], table=True)
    one, other = (found.score.parts(way(rows), rows).values for way in (predict, shaken))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_row_with_values_hidden_in_turn_counts_once(monkeypatch):
    """Forty rows cannot tell where 99 % of new values lie: from 97 % on, the radius goes on as a normal tail."""
    found = Calibration.fit(predict, data(300, 0), data(60, 1), data(40, 2), table=True, learned=True)
    mask = torch.rand((400, FEATURES), generator=torch.Generator().manual_seed(0)) < 0.5
    assert len(found.held_out) == 40
    imputer = imputer_of(found)
    monkeypatch.setattr("lapae.impute.imputer.masks", lambda trained, held_out: [mask])
    score, _, rows = imputer._hidden_scores(TRAINED, found.held_out, mask)
    radii = sure(imputer.with_radii(TRAINED, found.held_out).radii)
    for radius in (Radius.fit(np.abs(score), rows=rows), Radius(LEVELS, radii[0, 0])):
        np.testing.assert_allclose(radius.at(0.99) / radius.at(0.97), norm.ppf(0.995) / norm.ppf(0.985))


def test_an_image_is_compared_with_images_or_corrected_for_its_tiles(calibration):
    scores, p = np.array([1.0, 4.0, 2.0]), np.array([0.5, 0.1, 0.4])
    assert calibration.tiles.compare(scores, p) == (4.0, pytest.approx(0.3))  # the least of three
    assert calibration.tiles.compare(scores, 5 * p) == (4.0, 1.0)
    assert Tiles(torch.tensor([3.0, 4.0, 5.0, 3.5])).compare(scores, p) == (4.0, 3 / 5)


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("n_valid", [1, 2])
def test_one_row_of_validation_is_enough(table, n_valid):
    calibration = Calibration.fit(predict, data(8, 0), data(n_valid, 1), data(3, 2), table=table)
    scores, p = calibration.compare(predict, torch.cat([data(3, 3), 100 * data(1, 4)]))
    assert np.isfinite(scores).all()
    assert p[-1] == 1 / 4
    assert calibration.reference.scores.isfinite().all()
    assert calibration.reference.scores.abs().max() < 1e3  # one row has no spread to divide by


def test_few_validation_rows_scale_the_score_as_many_would():
    """Means and deviations of a table's parts are those of new rows, whichever ten rows validate."""
    of_new = []
    for seed in range(6):
        score = Calibration.fit(predict, data(300, 0), data(10, 10 + seed), data(30, 2), table=True).score
        new = data(2000, 3)
        of_new.append(score.standardised(score.parts(predict(new), new, shares=False).values))
    means, deviations = (
        torch.stack([parts.mean(0) for parts in of_new]),
        torch.stack([parts.std(0) for parts in of_new]),
    )
    assert means.abs().max() < 0.5  # 1.2 if the ten rows are all
    assert (deviations - 1).abs().max() < 0.75  # 2.1


def test_copies_in_the_validation_set_make_intervals_once():
    """Ten copies of a row say where one new row lies, not ten."""
    valid = data(6, 1)
    once = Calibration.fit(predict, data(300, 0), valid, data(12, 2), table=True)
    several = Calibration.fit(predict, data(300, 0), valid.repeat_interleave(10, 0), data(12, 2), table=True)
    assert len(once.held_out) == len(several.held_out) == 18
    assert torch.equal(once.held_out, several.held_out)
