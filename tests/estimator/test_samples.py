"""New data from the estimator: of all kinds that there are, as often as there are, with the noise there is."""

import numpy as np
import pandas as pd
import pytest
from narrow import as_a
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils import Bunch

from lapae import LaplacianAutoencoder

DIGITS = as_a(Bunch, load_digits())
IMAGES, CLASSES = DIGITS.images / 16, DIGITS.target


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(epochs=6, device="cpu", random_state=0).fit(IMAGES[:1400])


@pytest.fixture(scope="module")
def knows() -> KNeighborsClassifier:
    return KNeighborsClassifier(3).fit(DIGITS.data / 16, CLASSES)


def test_every_class_of_digits_is_sampled(model, knows):
    new = model.sample(1000)
    assert new.min() >= 0
    assert new.max() <= 1
    share = np.bincount(knows.predict(new.reshape(1000, -1)), minlength=10) / 100
    assert share.min() > 1 / 2
    assert share.max() < 2
    distances, _ = knows.kneighbors(new.reshape(1000, -1), 1)
    assert distances.min() > 0.1  # none is a copy


def test_halves_are_completed_as_what_they_are(model, knows):
    whole, classes = IMAGES[1400:1500], CLASSES[1400:1500]
    seen = whole.copy()
    seen[:, 4:] = np.nan
    several = model.impute(seen, n_samples=5)
    found = knows.predict(several.reshape(500, -1)).reshape(5, 100)
    assert (found == classes).mean() > 0.8  # from noise, as in the paper, two of three
    assert np.array_equal(several[:, :, :4], np.broadcast_to(whole[:, :4], (5, 100, 4, 8)))
    assert (several.std(0)[:, 4:].max((1, 2)) > 0).mean() > 0.9
    nearest = whole[:, 4:] - whole[:, 4:].mean(0)
    assert np.square(model.impute(seen)[:, 4:] - whole[:, 4:]).mean() < 0.6 * np.square(nearest).mean()


def test_nothing_seen_is_anything(model, knows):
    several = model.impute(np.full((60, 8, 8), np.nan), n_samples=2)
    assert np.isfinite(several).all()
    assert len(np.unique(knows.predict(several.reshape(120, -1)))) > 5


def test_rows_of_a_table_have_its_spread():
    rng = np.random.default_rng(0)
    t = rng.uniform(-1, 1, (600, 1))
    x = 50 + np.hstack([t, 2 * t, t**2, -t]) + 0.3 * rng.standard_normal((600, 4))
    model = LaplacianAutoencoder(latent_dim=1, device="cpu", random_state=0).fit(x)
    new, smooth = model.sample(4000), model.sample(4000, noise=False)
    np.testing.assert_allclose(new.mean(0), x.mean(0), atol=0.1)
    np.testing.assert_allclose(new.std(0), x.std(0), rtol=0.08)
    np.testing.assert_allclose(np.corrcoef(new.T), np.corrcoef(x.T), atol=0.08)
    assert (smooth.std(0) < new.std(0)).all()


@pytest.mark.parametrize("likelihood", ["gaussian", "student"])
def test_columns_of_samples_are_correlated_as_those_of_the_table(likelihood):
    """Residuals are: the code has fewer numbers than there are columns."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(6, 6))
    x = rng.normal(size=(1500, 6)) @ mixing * [1, 10, 0.1, 1, 1, 1] + 5
    truth = np.corrcoef(x.T)
    new = LaplacianAutoencoder(latent_dim=2, likelihood=likelihood, epochs=2, random_state=0).fit(x).sample(6000)
    assert np.abs(np.corrcoef(new.T) - truth).max() < 0.08
    np.testing.assert_allclose(new.var(0), x.var(0), rtol=0.15)
    np.testing.assert_allclose(new.mean(0), x.mean(0), atol=0.15 * x.std(0).max())


def test_columns_of_all_kinds_depend_on_each_other_in_samples():
    rng = np.random.default_rng(1)
    a, b = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=1200).T
    noise = rng.normal(size=(1200, 3))
    x = pd.DataFrame(
        {
            "a": a,
            "b": b,
            "yes": a + 0.3 * noise[:, 0] > 0.5,
            "kind": np.array(["x", "y", "z"])[(b > -0.5) * 1 + (b > 0.7)],
        }
    )
    x["c"] = noise[:, 1]
    x.loc[rng.random(1200) < 0.1, "c"] = np.nan
    new = LaplacianAutoencoder(latent_dim=1, epochs=2, random_state=0).fit(x).sample(4000, random_state=0)
    new = as_a(pd.DataFrame, new)
    assert set(new["kind"]) == {"x", "y", "z"}
    for column in ("yes", "kind"):
        share = x[column].value_counts(normalize=True)
        found = new[column].value_counts(normalize=True)
        assert (share - found).abs().max() < 0.1

    def means(t: pd.DataFrame) -> np.ndarray:
        yes, kind = t["yes"].astype(bool), t["kind"].astype(str)
        middle = [t["b"].astype(float)[kind == k].mean() for k in "xyz"]
        return np.array([t["a"][yes].mean() - t["a"][~yes].mean(), *middle])

    np.testing.assert_allclose(means(new), means(x), atol=0.35)
    assert abs(float(np.mean(new["c"].isna())) - 0.1) < 0.03
    assert abs(np.corrcoef(new["a"].astype(float), new["b"].astype(float))[0, 1] - 0.6) < 0.08


def test_constants_are_sampled_as_they_are():
    rng = np.random.default_rng(0)
    x = np.stack([np.full(80, 3.0), *rng.normal(size=(2, 80))], 1)
    new = LaplacianAutoencoder(epochs=2, random_state=0).fit(x).sample(100)
    np.testing.assert_allclose(new[:, 0], 3, atol=0.06)  # what the network makes of it is 0.7 off


@pytest.fixture(scope="module")
def trips() -> tuple[pd.DataFrame, LaplacianAutoencoder]:
    """Trips that end after they begin, with frequent zeros, whole numbers, and zones that lie in one borough each."""
    rng = np.random.default_rng(0)
    n = 600
    zone = rng.integers(0, 12, n)
    begin = pd.Timestamp("2024-01-01") + pd.to_timedelta(600 * rng.integers(0, 1500, n), unit="s")
    minutes = rng.gamma(3, 4, n) + 2 * (zone % 3)
    fare = (2.5 + 0.8 * minutes + rng.normal(0, 0.5, n)).round(1)
    tolls = np.where(rng.random(n) < 0.9, 0, 5.76)
    frame = pd.DataFrame(
        {
            "begin": begin,
            "end": begin + pd.to_timedelta((60 * minutes).round(), unit="s"),
            "zone": [f"zone {z}" for z in zone],
            "borough": np.array(["east", "west", "north"])[zone % 3],
            "people": rng.integers(1, 5, n),
            "fare": fare,
            "tolls": tolls,
            "total": (fare + tolls + 1).round(2),
        }
    )
    return frame, LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(frame)


def test_samples_of_a_mixed_table_are_possible_rows(trips):
    table, model = trips
    new = model.sample(1000)
    assert (new["end"] > new["begin"]).all()
    assert abs((new["tolls"] == 0).mean() - 0.9) < 0.05
    assert set(new["people"]) == {1, 2, 3, 4}
    borough = table.drop_duplicates("zone").set_index("zone")["borough"]
    assert (new["zone"].map(borough) == new["borough"]).mean() > 0.99
    np.testing.assert_allclose(new["total"], new["fare"] + new["tolls"] + 1, atol=1e-6)
    assert not new.merge(table).shape[0]  # no copies
    minutes = (new["end"] - new["begin"]).dt.total_seconds() / 60
    assert np.corrcoef(minutes, new["fare"])[0, 1] > 0.9


def test_a_classifier_hardly_tells_samples_from_rows(trips):
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import cross_val_score

    table, model = trips
    both = pd.concat([table, model.sample(600)])
    x = both.apply(lambda column: pd.factorize(column, sort=True)[0])
    y = np.repeat([0, 1], 600)
    order = np.random.default_rng(0).permutation(1200)
    quick = HistGradientBoostingClassifier(max_iter=30)
    assert cross_val_score(quick, x.to_numpy()[order], y[order], cv=3, scoring="roc_auc").mean() < 0.65


def test_samples_are_conditioned_on_any_columns(trips):
    table, model = trips
    new = model.sample(300, given={"borough": "north", "people": 2})
    assert set(new["borough"]) == {"north"}
    assert set(new["people"]) == {2}
    assert set(new["zone"]) <= set(table.loc[table["borough"] == "north", "zone"])
    long, short = (model.sample(300, given={"fare": fare}) for fare in (25.0, 5.0))
    assert (long["end"] - long["begin"]).mean() > 2 * (short["end"] - short["begin"]).mean()
    for wrong, said in (({"colour": 1}, "no column 'colour'"), ({"borough": "south"}, "not seen in training; seen: ")):
        with pytest.raises(ValueError, match=said):
            model.sample(1, given=wrong)
    with pytest.raises(ValueError, match=r"given=\['north'\]: expected values by the names of columns"):
        model.sample(1, given=["north"])
    with pytest.raises(ValueError, match=r"n_samples=2\.5: expected a whole number, at least 1"):
        model.sample(2.5)


def test_missing_values_are_sampled_as_they_are_if_asked():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    x[x[:, 0] > 0, 1] = np.nan
    model = LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(x)
    assert np.isfinite(model.sample(200)).all()
    new = model.sample(400, missing=True)
    assert (np.isnan(new[:, 1]) == (new[:, 0] > 0)).mean() > 0.97


def test_tiny_units_are_not_rounded_away():
    x = np.random.default_rng(0).normal(size=(120, 2)).cumsum(1) * 1e-12
    model = LaplacianAutoencoder(random_state=0, epochs=2, device="cpu").fit(x)
    new = model.sample(60, random_state=1)
    assert len(np.unique(new[:, 0])) > 50
    np.testing.assert_allclose(new.std(0), x.std(0), rtol=0.5)


@pytest.fixture(scope="module")
def lacking():
    rng = np.random.default_rng(0)
    a = rng.normal(50, 10, 600)
    table = pd.DataFrame({"a": a, "b": 2 * a + rng.normal(0, 5, 600), "c": rng.gamma(2, 3, 600), "d": a})
    table[["c", "d"]] = table[["c", "d"]].mask(rng.random((600, 2)) < 0.11)
    return LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(table)


def test_given_values_leave_the_others_missing_as_often_as_in_rows_that_are_alike(lacking):
    for value in (70.0, 50.0, 30.0):
        new = lacking.sample(400, given={"a": value})
        assert new[["c", "d"]].isna().mean().between(0.03, 0.25).all()
        assert new["b"].std() > 3  # one leaf of five rows is not all that may be


def test_a_given_value_beyond_the_rows_is_told_with_their_range(lacking):
    with pytest.warns(UserWarning, match=r"a = 1000000 is beyond the values of training, 1\d\.\d+ to 8\d\.\d+"):
        new = lacking.sample(400, given={"a": 1e6})
    assert (new["a"] == 1e6).all()
    assert new[["c", "d"]].isna().mean().between(0.03, 0.25).all()


def test_a_given_value_may_be_missing(lacking):
    assert lacking.sample(20, given={"c": None})["c"].isna().all()
    with pytest.warns(UserWarning, match="a is missing, and no row of training lacks it"):
        assert lacking.sample(20, given={"a": np.nan})["a"].isna().all()
    with pytest.raises(ValueError, match="'much' is not a number"):
        lacking.sample(1, given={"c": "much"})
