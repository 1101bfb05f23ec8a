"""What training is worth: against where it began, and against the mean of the data."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from narrow import sure

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.errors import ConfigError
from lapae.fit import fit
from lapae.train.held_out import mean, variance

SMALL = ModelConfig(hidden=(8,), latent_dim=2, linear=False, sigma=1.0)
CPU = torch.device("cpu")


def config(method="ae", **options) -> Config:
    train = TrainConfig(**{"epochs": 30, "batch_size": 16, "learning_rate": 1e-2, "device": "cpu", **options})
    return Config(model=SMALL, method=MethodConfig(method), train=train)


def test_variance_is_the_error_of_the_mean():
    x = torch.tensor([[1.0, 2.0], [3.0, math.nan], [5.0, 6.0]])
    parts = [x[:2], x[2:], x[:0]]
    assert variance(parts, 3, CPU) == pytest.approx((4 + 0 + 4 + 4 + 4) / 3)
    assert variance([], 0, CPU) == 0
    assert mean(torch.tensor([1.0, 2.0, 6.0]).double()) == 3


def test_what_is_learned_is_reported(table):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fit(config(), table)
    x = torch.from_numpy(table.space.convert(table.valid.x))
    gap = (sure(model.predict(x.double(), ("outputs",)).x_mean) - x).square().sum()
    assert model.metrics["explained"] == pytest.approx(float(1 - gap / (x - x.mean(0)).square().sum()), abs=1e-4)
    assert model.metrics["explained"] > 0.5


@pytest.mark.parametrize("method", ["ae", "posthoc", "online"])
def test_a_training_that_diverges_to_a_finite_number_is_noticed(method, table):
    """The initial weights are kept, and it is said that nothing was learned."""
    with pytest.warns(UserWarning, match="no better than by their mean"):
        model = fit(config(method, epochs=3, learning_rate=1e10), table)
    with pytest.warns(UserWarning, match="no better than by their mean"):
        start = fit(config(method, epochs=1, learning_rate=1e-30), table)
    assert model.metrics["best_epoch"] == 0
    assert model.metrics["explained"] == pytest.approx(start.metrics["explained"])
    assert -10 < model.metrics["explained"] <= 0


def test_data_that_do_not_vary(table):
    for split in (table.train, table.valid, table.test):
        split.x[:] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(config(epochs=1), table).metrics["explained"] is None


@pytest.mark.parametrize("wrong", [2.5, "2", 0, -1, 10**9, True, 1e9])
def test_a_latent_size_that_is_none(wrong, table):
    with pytest.raises(ConfigError, match=r"latent_dim = .*: expected"):
        fit(Config(model=ModelConfig(latent_dim=wrong), train=TrainConfig(device="cpu")), table)
