"""What the data choose, and what came of it: images of any size end in time, and what PCA explains is not lost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import PCA

from lapae import LaplacianAutoencoder
from lapae.config import Config, TrainConfig
from lapae.space import Space
from lapae.train.choose import MOST_VALUES, choose


@pytest.mark.parametrize("side", [8, 28, 64, 128, 256])
@pytest.mark.parametrize("n", [100, 1000, 50_000])
def test_images_of_any_size_are_learned_in_minutes(side, n):
    space = replace(Space.of(np.zeros((4, 3, side, side), np.uint8), most=255.0), n_data=n)
    config = choose(Config(train=TrainConfig(device="cpu")), space)
    assert config.model.network == ("mlp" if side < 16 else "conv")
    assert config.train.epochs is not None
    assert config.train.batch_size is not None
    steps = config.train.epochs * math.ceil(n / config.train.batch_size)
    shown = config.train.epochs * n * 3 * side**2
    assert steps >= 20
    assert shown <= MOST_VALUES + 3 * n * 3 * side**2  # whole epochs, at least three


def test_linear_data_keep_principal_components():
    """PCA is the best there is for such data; the estimator holds some of them out, and is hardly worse."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((3, 12))
    x, new = (rng.standard_normal((n, 3)) @ mix + 0.5 * rng.standard_normal((n, 12)) for n in (200, 1000))
    model = LaplacianAutoencoder(latent_dim=3, random_state=0, device="cpu").fit(x)
    pca = PCA(3).fit(x / x.std(0))
    theirs = new / x.std(0) - pca.inverse_transform(pca.transform(new / x.std(0)))
    ours = (new - model.reconstruct(new)) / x.std(0)
    assert np.square(ours).mean() < 1.05 * np.square(theirs).mean()
    metrics = model.model_.metrics
    assert metrics["explained"] == pytest.approx(metrics["explained_by_pca"], abs=0.03)
