"""What the data choose, and what came of it: images of any size end in time, and what PCA explains is not lost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import PCA

from lapae import LaplacianAutoencoder
from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.data import Data
from lapae.fit import fit
from lapae.runs import Run
from lapae.space import Space
from lapae.train.choose import MOST_CPU_VALUES, choose


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
    assert shown <= MOST_CPU_VALUES + 3 * n * 3 * side**2  # whole epochs, at least three


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


def test_a_trained_network_is_no_start_to_improve_on(tmp_path):
    """Post-hoc on a trained run, which is not principal components: its weights stay."""
    t = np.random.default_rng(0).uniform(0, 6, (300, 1))
    x = np.hstack([np.cos(t), np.sin(t), np.cos(2 * t), np.sin(3 * t)]).astype(np.float32)
    train = TrainConfig(device="cpu", verbose=False)
    model, method = ModelConfig(latent_dim=2), MethodConfig("ae")
    trained = fit(Config(model=model, method=method, train=train), Data.of(x), run=Run.create(tmp_path / "ae"))
    assert trained.metrics["best_epoch"] > 0
    method = MethodConfig.taking("posthoc", pretrained=str(tmp_path / "ae"))
    found = fit(Config(model=model, method=method, train=replace(train, epochs=0)), Data.of(x))
    np.testing.assert_allclose(found.reconstruct(x)[0], trained.reconstruct(x)[0], rtol=1e-4, atol=1e-4)
    assert "explained_by_pca" not in found.metrics
