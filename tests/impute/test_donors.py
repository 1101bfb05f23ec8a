"""Holes of tables filled from donors: the copula in closed form, the weights by plain loops, and what users get."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from lapae import LaplacianAutoencoder
from lapae.impute.copula import Copula
from lapae.impute.donors import Donors
from lapae.impute.neighbours import PLACES, _quantiles
from lapae.impute.spread import SCORES, Spread, score, value
from lapae.impute.weighted import in_order, weighted_moments, weighted_quantiles

COVARIANCE = np.array([[1.0, 0.8, -0.5], [0.8, 1.0, -0.3], [-0.5, -0.3, 1.0]])


def gaussian(n: int = 1500, hole: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """A table without and with holes, its columns seen through monotone functions."""
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal(np.zeros(3), COVARIANCE, size=n)
    x = np.stack([np.exp(z[:, 0]), z[:, 1] ** 3, 5 + 2 * z[:, 2]], 1)
    return x, np.where(rng.random(x.shape) < hole, np.nan, x)


def curved(n: int = 400) -> np.ndarray:
    """The third column is a step of the first, the fourth an arc of the second: no correlation tells."""
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-1, 1, size=(2, n))
    return np.stack([a, b, np.where(np.abs(a) < 0.5, 28.0, 7.0), b**2 + 0.02 * rng.normal(size=n)], 1)


def test_the_copula_finds_the_correlations_behind_holes():
    found = Copula.fit(torch.from_numpy(gaussian()[1]))
    deviation = found.covariance.diagonal().sqrt()
    np.testing.assert_allclose(found.covariance / deviation[:, None] / deviation, COVARIANCE, atol=0.08)


def test_what_is_expected_of_a_missing_score_is_the_conditional_mean():
    found = Copula.fit(torch.from_numpy(gaussian()[1]))
    s, center = found.covariance.numpy(), found.center.numpy()
    z = torch.tensor([[0.7, torch.nan, -0.2], [torch.nan, 1.1, torch.nan], [0.1, 0.2, 0.3]], dtype=torch.float64)
    filled = found.fill(z.repeat(20_000, 1), torch.Generator().manual_seed(0)).unflatten(0, (-1, 3)).numpy()
    hidden = found.hidden(z)
    expected = hidden.put(found.center[hidden.index] + hidden.expected((z - found.center).nan_to_num()), z).numpy()
    np.testing.assert_allclose(filled.mean(0), np.where(z.isnan(), expected, z), atol=0.03)
    filled, spread = expected, filled.var(0)
    seen = [0, 2]
    mean = center[1] + s[1, seen] @ np.linalg.solve(s[np.ix_(seen, seen)], np.array([0.7, -0.2]) - center[seen])
    assert filled[0, 1] == pytest.approx(mean)
    assert filled[1, 0] == pytest.approx(center[0] + s[0, 1] / s[1, 1] * (1.1 - center[1]))
    left = s[1, 1] - s[1, seen] @ np.linalg.solve(s[np.ix_(seen, seen)], s[seen, 1])
    assert spread[0, 1] == pytest.approx(left, rel=0.05)
    assert spread[2].max() < 1e-20


def test_what_is_missing_together_is_drawn_together():
    found = Copula.fit(torch.from_numpy(gaussian()[1]))
    z = torch.tensor([[torch.nan, torch.nan, 0.5]], dtype=torch.float64)
    drawn = found.noise(z, 4000, torch.Generator().manual_seed(0))[:, 0].numpy()
    s = found.covariance.numpy()
    left = s[:2, :2] - np.outer(s[:2, 2], s[2, :2]) / s[2, 2]
    assert np.corrcoef(drawn[:, :2].T)[0, 1] == pytest.approx(left[0, 1] / np.sqrt(left[0, 0] * left[1, 1]), abs=0.05)
    np.testing.assert_allclose(drawn.std(0), 1, atol=0.05)


def plain(donors: Donors, x: np.ndarray, guess: np.ndarray, j: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and weights of the donors of value j of a row, by a loop over them."""
    copula, seen = donors.copula, ~np.isnan(x)
    z, center, s = (
        copula.marginals.normal(torch.from_numpy(x[None]))[0].numpy(),
        copula.center.numpy(),
        copula.covariance,
    )
    slope = np.linalg.solve(s.numpy()[np.ix_(seen, seen)], s.numpy()[seen, j])
    d, values, far = len(x), [], []
    line = (z - center)[seen] @ slope
    share = seen.sum() / copula.n_rows
    for r, row in enumerate(donors.rows.numpy()):
        if np.isnan(row[j]):
            continue
        a, theirs = np.where(np.isnan(row), donors.metric[j, d:], donors.metric[j, :d]), donors.scores[r].numpy()
        total = (a * (z - theirs) ** 2)[seen].sum()
        expected = (theirs - center)[seen] @ slope
        total += float(donors.own[j, 0]) * (line - expected) ** 2
        trusted = (seen.sum() / (d - 1)) ** 2
        far.append(total + float(donors.own[j, 1]) * trusted * (guess[j] - float(donors.network[r, j])) ** 2)
        if donors.shift[j] > 0:
            wider = (np.sqrt((1 + share) / (1 - share)) - 1) * (theirs[j] - center[j] - expected)
            moved = theirs[j] + float(donors.shift[j]) * (line - expected) + wider
            values.append(float(copula.values(j, torch.tensor(moved))))
        else:
            values.append(row[j])
    weight = np.exp(-np.array(far) + min(far))
    return np.array(values), weight / weight.sum()


@pytest.fixture(scope="module")
def fitted() -> tuple[Donors, np.ndarray]:
    x = curved()
    rows = np.where(np.random.default_rng(2).random(x.shape) < 0.2, np.nan, x)
    guess = lambda part: 0.3 * part.nan_to_num().sum(1, keepdim=True).clamp(-3, 3).expand_as(part)  # noqa: E731
    return Donors.fit(torch.from_numpy(rows), guess, range(4)), x


def test_weights_are_those_of_a_loop_over_donors(fitted):
    donors, _ = fitted
    x = np.array([[0.9, np.nan, np.nan, 0.3], [np.nan, 0.2, 7.0, np.nan]])
    guess = np.array([[0.1, 0.4, -0.2, 0.3], [0.2, 0.0, 0.1, 0.5]])
    words = torch.zeros(4, dtype=torch.bool)
    found = donors.complete(torch.from_numpy(x), torch.from_numpy(guess), words, shape=True)
    for i, j in [(0, 1), (0, 2), (1, 0), (1, 3)]:
        values, weight = plain(donors, x[i], guess[i], j)
        order = values.argsort()
        median = values[order][np.searchsorted(weight[order].cumsum(), 0.5)]
        assert float(found["middle"][i, j]) == pytest.approx(median, abs=1e-9)
        mean, variance = weight @ values, float(found["variance"][i, j])
        assert float(found["mean"][i, j]) == pytest.approx(mean, rel=1e-6, abs=1e-9)
        assert variance == pytest.approx(weight @ (values - mean) ** 2, rel=1e-6, abs=1e-9)
        for k in (3, 20):
            quantile = values[order][np.searchsorted(weight[order].cumsum(), norm.cdf(float(SCORES[k])))]
            assert float(found["points"][i, j, k]) == pytest.approx(quantile - median, abs=1e-9)


def test_each_column_gets_the_donors_that_suit_it(fitted):
    donors, x = fitted
    assert donors.metric[2, :4].argmax() == 0
    assert donors.metric[3, :4].argmax() == 1
    new = curved(600)[400:]
    seen = new.copy()
    seen[:, 2:] = np.nan
    words = torch.zeros(4, dtype=torch.bool)
    middle = donors.complete(torch.from_numpy(seen), torch.zeros(200, 4).double(), words)["middle"]
    assert (middle[:, 2].numpy() == new[:, 2]).mean() > 0.9
    assert np.abs(middle[:, 3].numpy() - new[:, 3]).mean() < 0.3 * np.abs(new[:, 3] - np.median(x[:, 3])).mean()


def test_weighted_quantiles():
    values = torch.tensor([[3.0, 1.0, 2.0]])
    weight = torch.tensor([[0.2, 0.2, 0.6], [0.9, 0.05, 0.05], [0.0, 0.6, 0.4]])
    assert weighted_quantiles(values, weight, [0.1, 0.5, 0.9]).tolist() == [[1, 2, 3], [2, 3, 3], [1, 1, 2]]
    moved = values + torch.tensor([[0.0], [1.0], [-5.0]])
    assert weighted_quantiles(moved, weight, [0.5])[:, 0].tolist() == [2, 4, -4]


def test_values_of_both_signs_are_put_in_order():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20, 300, generator=generator, dtype=torch.float64) ** 5
    values[:, :3] = torch.tensor([0.0, -1e-300, 1e300], dtype=torch.float64)
    weight = torch.rand(20, 300, generator=generator, dtype=torch.float64)
    ordered, total = in_order(values, weight)
    order = values.argsort(1)
    assert torch.equal(ordered, values.gather(1, order))
    torch.testing.assert_close(total, weight.gather(1, order).cumsum(1))


def test_weighted_moments_of_values_far_from_zero():
    rng = np.random.default_rng(0)
    values, weight = 1e6 + rng.normal(size=(3, 50)), rng.random((3, 50))
    weight /= weight.sum(1, keepdims=True)
    for theirs in (values, values[:1]):
        mean, variance = weighted_moments(torch.from_numpy(theirs), torch.from_numpy(weight))
        expected = (weight * theirs).sum(1)
        np.testing.assert_allclose(mean, expected, rtol=1e-12)
        np.testing.assert_allclose(variance, (weight * (theirs - expected[:, None]) ** 2).sum(1), rtol=1e-7)


def test_scores_of_values_in_a_distribution_are_those_of_its_quantiles_and_back():
    """A log-normal distribution with a narrow kernel; beyond its quantiles scores grow on."""
    points, width = torch.exp(SCORES)[None], torch.tensor([0.02], dtype=torch.float64)
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)
    many = points.expand(len(z), -1), width.expand(len(z))
    np.testing.assert_allclose(score(z.exp(), *many), z, atol=0.07)
    every = torch.tensor([-30.0, -5, -2, -0.3, 0, 1, 2.5, 6, 40], dtype=torch.float64)
    ends = value(every, *many)
    assert (ends.diff() > 0).all()
    np.testing.assert_allclose(score(ends, *many), every, rtol=1e-4, atol=1e-4)
    one = torch.ones(1, 2, dtype=torch.float64)
    spread = Spread(one, 0.02 / 0.3 * one, torch.tensor([[False, True]]), points - 1)
    np.testing.assert_allclose(spread.score(torch.tensor([[-2.0, 1.718]], dtype=torch.float64)), [[-2, 1]], atol=0.07)
    down, up = spread.reach(torch.full((2,), 1.0), torch.full((2,), 2.0))
    np.testing.assert_allclose(torch.stack([down, up])[..., 1], [[1 - np.exp(-1)], [np.exp(2) - 1]], atol=0.2)


def test_values_missing_together_lie_on_a_curve_if_those_of_donors_do(monkeypatch):
    x = curved()[:, [1, 3]]  # the second is the square of the first
    x = np.column_stack([x, np.random.default_rng(2).normal(size=len(x))])
    model = LaplacianAutoencoder(random_state=0, device="cpu", epochs=2).fit(x)
    rows = np.tile([np.nan, np.nan, 0.0], (50, 1))

    def off() -> float:
        made = np.concatenate(model.impute(rows, n_samples=4))
        assert made[:, 0].std() == pytest.approx(x[:, 0].std(), rel=0.2)
        return float(np.abs(made[:, 1] - made[:, 0] ** 2).mean())

    assert off() < 0.1
    monkeypatch.setattr("lapae.impute.neighbours.CHAINED", 0)  # drawn together, by a Gaussian copula
    assert off() > 0.2


def test_what_is_said_of_a_missing_value_does_not_depend_on_others_being_asked_for():
    """A counterfactual asks about one missing value of a row; `impute` and `impute_interval` about all of them."""
    x = curved(212)
    model = LaplacianAutoencoder(epochs=5, device="cpu", random_state=0).fit(x[:200])
    new = np.where(np.random.default_rng(4).random((12, 4)) < 0.2, np.nan, x[200:])
    found = model.counterfactual(new)
    contribution = model.explain(new)
    for i, j in np.ndindex(new.shape):
        row = new[[i]].copy()
        row[0, j] = np.nan
        if contribution[i].any():  # what contributes most is hidden, too
            row[0, contribution[i].argmax()] = np.nan
        alone = model.impute(row), *model.impute_interval(row)
        np.testing.assert_allclose([end[i, j] for end in found], [end[0, j] for end in alone], rtol=1e-9, atol=1e-9)


def test_users_get_values_that_there_are_and_intervals_that_hold(tmp_path):
    x = curved(600)
    train, new = x[:400], x[400:]
    seen = np.where(np.random.default_rng(3).random(new.shape) < 0.3, np.nan, new)
    gone = np.isnan(seen)
    model = LaplacianAutoencoder(epochs=2, random_state=0).fit(train)
    filled = model.impute(seen)
    assert set(filled[:, 2].tolist()) <= {7.0, 28.0}
    np.testing.assert_array_equal(filled[~gone], new[~gone])
    low, high = model.impute_interval(seen, level=0.9)
    assert 0.84 <= ((low <= new) & (new <= high))[gone].mean() <= 0.97
    drawn = model.impute(seen, n_samples=100)
    ends = np.quantile(drawn, [0.05, 0.95], axis=0)
    assert 0.84 <= ((ends[0] <= new) & (new <= ends[1]))[gone].mean() <= 0.98
    model.save(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run")
    np.testing.assert_allclose(again.impute(seen), filled, rtol=1e-5)


def loadings(d: int, rng: np.random.Generator) -> np.ndarray:
    """A correlation matrix (d, d) of two common causes."""
    w = rng.normal(size=(d, 2))
    s = w @ w.T + np.diag(rng.uniform(0.3, 1.0, d))
    return s / np.sqrt(np.outer(np.diag(s), np.diag(s)))


def ratios(n: int, d: int, share: float, seed: int, *, holes: float = 0.0) -> tuple[float, float, float]:
    """Completions of new rows of a Gaussian table against the exact conditional distribution.

    Returns the ratio of variances, the root mean squared error of the mean in deviations, and the slope of the
    correlations of values missing together against the exact ones.
    """
    rng = np.random.default_rng(seed)
    s = loadings(d, rng)
    x = rng.multivariate_normal(np.zeros(d), s, size=n + 200)
    train, seen = (
        np.where(rng.random(part.shape) < rate, np.nan, part) for part, rate in ((x[:n], holes), (x[n:], share))
    )
    model = LaplacianAutoencoder(epochs=2, random_state=0).fit(train)
    drawn = model.impute(seen, n_samples=200)
    variance, error, pairs = [], [], []
    for i, row in enumerate(seen):
        gone = np.isnan(row)
        if not gone.any():
            continue
        gain = np.linalg.solve(s[np.ix_(~gone, ~gone)], s[np.ix_(~gone, gone)]).T
        left = s[np.ix_(gone, gone)] - gain @ s[np.ix_(~gone, gone)]
        scale = np.sqrt(np.diag(left))
        ours = (drawn[:, i, gone] - gain @ row[~gone]) / scale
        variance += ours.var(0, ddof=1).tolist()
        error += ours.mean(0).tolist()
        both = np.triu_indices(gone.sum(), 1)
        pairs += zip((left / np.outer(scale, scale))[both], np.atleast_2d(np.corrcoef(ours.T))[both], strict=True)
    exact, found = np.array(pairs).T
    return float(np.mean(variance)), float(np.sqrt(np.mean(np.square(error)))), float(np.polyfit(exact, found, 1)[0])


def test_completions_of_a_gaussian_table_scatter_as_the_exact_conditional_distribution():
    variance, error, slope = ratios(1500, 5, 0.4, seed=0, holes=0.2)
    assert 0.92 <= variance <= 1.08
    assert error < 0.2  # 0.07 of it by chance, of 200 draws
    assert 0.9 <= slope <= 1.1


def test_completions_scatter_if_most_of_a_row_is_missing():
    """A network knows donors by all of their columns, and a row by the one that it has: donors of which the same is
    expected scatter less than the row's values do."""
    s, rng = loadings(5, np.random.default_rng(3)), np.random.default_rng(0)
    x = rng.multivariate_normal(np.zeros(5), s, size=800)

    def guess(part: torch.Tensor) -> torch.Tensor:
        given = s + 1e12 * np.stack([np.diag(row) for row in part.isnan().double().numpy()])  # missing: all noise
        return torch.from_numpy(np.linalg.solve(given, part.nan_to_num().numpy()[:, :, None])[:, :, 0] @ s)

    donors = Donors.fit(torch.from_numpy(x), guess, range(5))
    ratio = []
    for seen in range(5):
        new = torch.full((100, 5), torch.nan).double()
        new[:, seen] = torch.from_numpy(rng.normal(size=100) * np.sqrt(s[seen, seen]))
        exact = np.diag(s) - s[:, seen] ** 2 / s[seen, seen]
        found = donors.complete(new, guess(new), torch.zeros(5, dtype=torch.bool))["variance"].mean(0).numpy()
        ratio += np.delete(found / np.where(exact > 0, exact, 1), seen).tolist()
    assert 0.95 <= np.mean(ratio) <= 1.1
    assert min(ratio) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 1000, 2000, 5000])
def test_the_variance_of_completions_is_exact_over_tables(n):
    cases = [(d, share, holes) for d in (5, 10) for share in (0.2, 0.5) for holes in (0.0, 0.3)]
    found = np.array([ratios(n, *case[:2], seed, holes=case[2]) for seed, case in enumerate(cases)])
    variance, error, slope = found.mean(0)
    assert 0.95 <= variance <= 1.05
    assert error < (0.3 if n < 1000 else 0.2)
    assert 0.88 <= slope <= 1.05


def test_columns_with_spikes_are_filled_with_their_own_values():
    rng = np.random.default_rng(0)
    a = rng.normal(size=300)
    tolls = np.where(rng.random(300) < 0.8, 0.0, np.abs(a) + rng.random(300))
    rows = torch.from_numpy(np.stack([a, tolls, a + rng.normal(size=300)], 1))
    donors = Donors.fit(rows, lambda part: torch.zeros_like(part), range(3))
    assert (donors.shift > 0).tolist() == [True, False, True]


def test_places_differ_from_even_ones_only_beyond_chance():
    rng = np.random.default_rng(0)
    levels = torch.linspace(0, 1, PLACES, dtype=torch.float64)
    even, narrow = torch.from_numpy(rng.random((200, 4))), torch.from_numpy(rng.beta(0.3, 0.3, (200, 4)))
    count = torch.full((4,), 200)
    assert (_quantiles(even, count) - levels).abs().max() < 0.05
    wide = _quantiles(narrow, count)
    np.testing.assert_allclose(wide[0], torch.quantile(narrow.flatten(), levels), atol=0.05)
    few = narrow.clone()
    few[1:] = torch.nan
    assert (_quantiles(few, torch.ones(4)) - levels).abs().max() < 0.5
    assert torch.equal(_quantiles(torch.full((5, 2), torch.nan).double(), torch.zeros(2)), levels.expand(2, -1))


def test_a_category_is_drawn_as_a_category():
    rows = torch.eye(3, dtype=torch.float64)[torch.arange(90) % 3]
    number = (torch.arange(90) % 3).double()[:, None] + 0.01 * torch.randn(90, 1, generator=torch.Generator())
    donors = Donors.fit(torch.cat([number, rows], 1), lambda part: torch.zeros_like(part), [0, 1, 1, 1])
    x = torch.tensor([[0.0, *[torch.nan] * 3], [2.0, *[torch.nan] * 3]], dtype=torch.float64)
    words = torch.tensor([False, True, True, True])
    chance = donors.complete(x, torch.zeros(2, 4).double(), words)["middle"]
    assert chance[:, 1:].argmax(1).tolist() == [0, 2]
    np.testing.assert_allclose(chance[:, 1:].sum(1), 1)
    drawn = donors.draw(x, torch.zeros(2, 4).double(), torch.rand(50, 2, 4, dtype=torch.float64))
    assert ((drawn[..., 1:] == 0) | (drawn[..., 1:] == 1)).all()
    assert (drawn[..., 1:].sum(2) == 1).all()


def test_the_mean_has_the_least_squared_error_and_the_median_the_least_absolute_one():
    rng = np.random.default_rng(1)
    a = rng.normal(size=600)
    x = np.stack([a, a + 3 * rng.exponential(size=600), a + rng.normal(size=600)], 1)
    hidden = np.zeros(x.shape, bool)
    hidden[::3, 1] = True
    given = np.where(hidden, np.nan, x)
    model = LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(given)
    gap = {guess: model.impute(given, guess=guess)[hidden] - x[hidden] for guess in ("median", "mean")}
    assert np.abs(gap["median"]).mean() < 0.95 * np.abs(gap["mean"]).mean()
    assert np.square(gap["mean"]).mean() < 0.97 * np.square(gap["median"]).mean()
    np.testing.assert_array_equal(model.impute(given, guess="mean")[~hidden], x[~hidden])
    with pytest.raises(ValueError, match="guess='mode': expected 'median' or 'mean'"):
        model.impute(given, guess="mode")  # pyright: ignore[reportArgumentType]


def test_completions_differ_by_what_the_rows_leave_open():
    """The mean of many values filled in for one and the same row is an estimate: it varies as in new tables."""
    z = np.random.default_rng(0).normal(size=(60, 1))
    x = z + 0.5 * np.random.default_rng(1).normal(size=(60, 2))
    donors = Donors.fit(torch.from_numpy(x), lambda part: torch.zeros_like(part), range(2))
    same = torch.tensor([[1.0, torch.nan]], dtype=torch.float64).repeat(300, 1)
    chance = torch.rand(20, 300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    between = donors.draw(same, torch.zeros_like(same), chance)[..., 1].mean(1).std()
    noise = float(np.sqrt(0.45))  # of y given x
    by_rows = noise * np.sqrt(1 / 60 + 1 / (60 * 1.25))
    assert 0.7 * by_rows < between < 2 * by_rows
    assert between > 2 * noise / np.sqrt(300)


def test_a_copula_of_other_weights_is_that_of_repeated_rows():
    rows = torch.from_numpy(gaussian(200)[1])
    copula = Copula.fit(rows)
    z, weight = copula.marginals.normal(rows), torch.arange(200).remainder(3).double()
    found, plain = copula.redrawn(z, weight), copula.redrawn(z.repeat_interleave(weight.long(), 0), torch.ones(199))
    np.testing.assert_allclose(found.covariance, plain.covariance, atol=0.02)
    np.testing.assert_allclose(found.center, plain.center, atol=0.02)


def test_complete_rows_beside_one_whose_missing_values_are_drawn_in_turn_stay_as_they_are():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    model = LaplacianAutoencoder(epochs=2, random_state=0).fit(x)
    rows = x[:5].copy()
    rows[2, :2] = np.nan
    for made in model.impute(rows, n_samples=2):
        np.testing.assert_array_equal(np.delete(made, 2, axis=0), np.delete(x[:5], 2, axis=0))
        assert np.isfinite(made[2]).all()
