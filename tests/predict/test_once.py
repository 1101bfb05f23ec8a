"""A block of samples is predicted once, whatever is asked about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lapae import LaplacianAutoencoder
from lapae.model import Model
from lapae.predict.once import Once
from lapae.predict.prediction import Prediction


def doubled(x: Tensor) -> Prediction:
    return Prediction(1, {"x_mean": 2 * x})


def never(x: Tensor) -> Prediction:
    raise AssertionError(f"predicted {len(x)} samples again")


def test_samples_that_are_known_are_not_predicted_again():
    x = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1, 0] = torch.nan
    once = Once(never, x, doubled(x))
    for index in (torch.arange(5), torch.tensor([3, 1, 1]), torch.tensor([4])):
        torch.testing.assert_close(once(x[index]).x_mean, 2 * x[index], rtol=0, atol=0, equal_nan=True)


def test_other_samples_are_predicted():
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    once = Once(doubled, x, Prediction(1, {"x_mean": torch.zeros(5, 2)}))
    other = torch.where(torch.arange(2) == 0, torch.nan, x)
    assert not once(x[:2]).x_mean.any()
    torch.testing.assert_close(once(other).x_mean, 2 * other, equal_nan=True)
    mixed = torch.stack([x[3], other[0], x[1], other[4]])
    found = Once(
        lambda rows: doubled(rows) if torch.equal(rows.isnan(), other[:2].isnan()) else never(rows), x, doubled(x)
    )
    torch.testing.assert_close(found(mixed).x_mean, 2 * mixed, equal_nan=True)


@pytest.fixture(scope="module", params=[(6,), (6, 6)])
def model(request) -> tuple[Model, np.ndarray]:
    x = np.random.default_rng(0).random((80, *request.param))
    return LaplacianAutoencoder(epochs=1, random_state=0, device="cpu").fit(x).model_, x[:20].copy()


def test_a_judgement_predicts_each_sample_once(model, monkeypatch):
    model, x = model
    x[0].flat[0] = np.nan if model.space.kind == "table" else 0.0
    score, p = model.anomaly_score(x)
    density, part = model.log_likelihood(x), model.explain(x)
    seen: list[np.ndarray] = []
    predict = Model.predict

    def counted(self: Model, x: Tensor, *args, **options) -> Prediction:
        seen.extend(row.ravel() for row in x.numpy())
        return predict(self, x, *args, **options)

    monkeypatch.setattr(Model, "predict", counted)
    found = model.judge(x, log_likelihood=True, reasons=True)
    np.testing.assert_allclose(found.anomaly_score, score, rtol=1e-9)
    np.testing.assert_array_equal(found.p_value, p)
    np.testing.assert_allclose(found.log_likelihood, density, rtol=1e-9)
    np.testing.assert_allclose(found.contribution, part, rtol=1e-6, atol=1e-9)
    for row in model.tensor(x).numpy()[1:]:  # the first one lacks a value: hiding it changes nothing
        assert sum(np.array_equal(row.ravel(), one, equal_nan=True) for one in seen) == 1
