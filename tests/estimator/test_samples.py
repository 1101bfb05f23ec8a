"""New data from the estimator: of all kinds that there are, as often as there are, with the noise there is."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from lapae import LaplacianAutoencoder


def test_every_class_of_digits_is_sampled():
    digits = load_digits()
    model = LaplacianAutoencoder(epochs=6, device="cpu", random_state=0).fit(digits.images[:1400] / 16)
    new = model.sample(1000)
    assert new.min() >= 0
    assert new.max() <= 1
    knows = KNeighborsClassifier(3).fit(digits.data / 16, digits.target)
    share = np.bincount(knows.predict(new.reshape(1000, -1)), minlength=10) / 100
    assert share.min() > 1 / 2
    assert share.max() < 2
    distances, _ = knows.kneighbors(new.reshape(1000, -1), 1)
    assert distances.min() > 0.1  # none is a copy


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
