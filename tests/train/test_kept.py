"""Principal components that training does not better: those of all rows but the ones that calibrate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from narrow import as_a
from sklearn.decomposition import PCA

from lapae import LaplacianAutoencoder
from lapae.curvature import ggn_diagonal
from lapae.data import Data
from lapae.methods.posthoc import PostHoc
from lapae.posterior import DiagonalPrecision


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(700, 4)) @ rng.normal(size=(4, 12)) + rng.normal(size=(700, 12))


@pytest.fixture(scope="module")
def model(rows) -> LaplacianAutoencoder:
    found = LaplacianAutoencoder(latent_dim=6, epochs=1, random_state=0, device="cpu").fit(rows[:100])
    assert found.model_.metrics["best_epoch"] == 0
    return found


def test_they_are_those_of_all_data_but_what_calibrates(rows, model):
    data = Data.of(rows[:100])
    learned = np.concatenate([np.asarray(part.x) for part in (data.train, data.valid)])
    scale = np.asarray(model.model_.space.scale).ravel()
    pca = PCA(6).fit(learned / scale)
    expected = pca.inverse_transform(pca.transform(rows[100:] / scale)) * scale
    np.testing.assert_allclose(model.reconstruct(rows[100:]), expected, atol=1e-3)


def test_calibration_data_count_as_unseen_however_they_are_predicted(model):
    """Predicted by components that they have a part in they would look more usual, and intervals would be narrow."""
    inner = model.model_
    known = inner.calibration
    again = known.anew(inner.predict)
    np.testing.assert_allclose(again.intervals.radius.table, known.intervals.radius.table, rtol=1e-5)
    np.testing.assert_allclose(again.reference.scores, known.reference.scores, rtol=1e-5)


def test_a_posterior_is_that_of_the_weights_that_are_kept(rows):
    """They are taken from the validation set too, once it has decided: the curvature is summed after that."""
    model = LaplacianAutoencoder(method="posthoc", hessian="exact", random_state=0, device="cpu").fit(rows[:100]).model_
    assert model.metrics["best_epoch"] == 0
    method = as_a(PostHoc, model.method)
    x = model.tensor(np.asarray(Data.of(rows[:100]).train.x))
    found = ggn_diagonal(method.network.requires_grad_(True), x, method.likelihood, "exact")
    expected = method.posterior.join(found)
    torch.testing.assert_close(as_a(DiagonalPrecision, method.posterior).h, expected, rtol=1e-3, atol=1e-5)
