"""What is unusual about series and images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from lapae import LaplacianAutoencoder
from lapae.predict.field import by_channel, steps


def windows(rng: np.random.Generator, n: int) -> np.ndarray:
    """Windows (n, 24, 6) of six sensors that follow two waves at random phases, with noise."""
    t = np.arange(24)
    first, second = rng.uniform(0, 2 * np.pi, (2, n, 1))
    waves = np.stack([np.sin(t / 3 + first), np.sin(t / 2 + second)], -1)
    mix = np.array([[1, 0.5, -0.7, 0.2, 0.9, -0.4], [0.3, -0.8, 0.6, 1, -0.2, 0.7]])
    return waves @ mix + rng.normal(0, 0.1, (n, 24, 6))


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(epochs=5, random_state=0, device="cpu").fit(windows(np.random.default_rng(0), 800))


@pytest.mark.parametrize("channel", range(6))
def test_a_stuck_sensor_is_flagged_and_named(model, channel):
    stuck = windows(np.random.default_rng(1), 100)
    stuck[:, :, channel] = stuck[:, :1, channel]
    assert (model.p_value(stuck) <= 0.05).mean() > 0.9
    named = model.explain(stuck).sum(1).argmax(1)
    assert (named == channel).mean() > 0.8


def test_new_windows_score_as_those_held_out(model):
    new = -model.score_samples(windows(np.random.default_rng(2), 1000))
    compared: Any = ks_2samp(new, model.reference_)
    assert compared.pvalue > 0.05


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 5)])
def test_energies_by_their_definition(shape):
    """Squared differences: of a series over time, channel by channel; of an image along both axes, all together."""
    x = torch.randn(7, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if len(shape) == 2:
        expected = torch.stack([(x[:, 1:, c] - x[:, :-1, c]).square().sum(1) for c in range(3)], 1)
    else:
        expected = sum(x.diff(dim=axis).square().flatten(1).sum(1, keepdim=True) for axis in (2, 3))
    torch.testing.assert_close(by_channel(steps(x)), expected)
