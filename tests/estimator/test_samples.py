"""New data from the estimator: of all kinds that there are, as often as there are, with the noise there is."""

import numpy as np
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
    np.testing.assert_allclose(new.std(0), x.std(0), rtol=0.15)
    np.testing.assert_allclose(np.corrcoef(new.T), np.corrcoef(x.T), atol=0.15)
    assert (smooth.std(0) < 0.95 * new.std(0)).all()
