"""The channel of a series that is at fault is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lapae.config import Config, TrainConfig
from lapae.data import Data
from lapae.fit import fit
from lapae.model import Model
from lapae.runs import Run
from lapae.score.channels import Channels
from lapae.score.images import standardising
from lapae.storage import load_run, save

WINDOW, SENSORS = 32, 5


def plant(seed: int, n: int) -> np.ndarray:
    """A series (n, 5): sensors that mix two cycles, with noise of their own, the last one slow."""
    rng = np.random.default_rng(seed)
    t = np.arange(n) + rng.integers(1000)
    cycles = np.stack([np.sin(t / 9), np.cos(t / 31)], 1)
    x = cycles @ np.array([[1, 0.5, -1, 0.2, 0], [0, 1, 0.5, -1, 2]]) + 0.2 * rng.standard_normal((n, SENSORS))
    return np.concatenate([x[:, :4], 1000 + 10 * x[:, 4:]], 1)


def faulty(kind: str, n: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Windows (n, WINDOW, 5) with one sensor at fault, and which, (n,)."""
    rng, x = np.random.default_rng(7), plant(1, 4000)
    first, which, size = rng.integers(1, 4000 - WINDOW, n), rng.integers(SENSORS, size=n), 3 * x.std(0)
    windows = np.stack([x[start : start + WINDOW] for start in first])
    for window, start, c in zip(windows, first, which, strict=True):
        if kind == "stuck":
            window[:, c] = x[start - 1, c]
        elif kind == "drift":
            window[:, c] += size[c] * np.linspace(0, 1, WINDOW)
        else:
            window[:, c] += size[c] * rng.standard_normal(WINDOW)
    return windows, which


@pytest.fixture(scope="module")
def model() -> Model:
    config = Config(train=TrainConfig(seed=0, epochs=3, verbose=False))
    return fit(config, Data.of(plant(0, 3000), window=WINDOW, stride=4))


@pytest.mark.parametrize("kind", ["stuck", "drift", "noise"])
def test_the_sensor_at_fault_is_named(model, kind):
    windows, which = faulty(kind)
    named = model.explain(windows).sum(1).argmax(1)
    assert (named == which).mean() >= 0.9


def test_of_sensors_that_follow_each_other_the_one_that_moved_is_named():
    """Also where what they leave over varied in other ways on held-out windows: both would be found far out."""
    rng = np.random.default_rng(0)
    mix, noise = rng.standard_normal((2, 6)), rng.standard_normal((500, 8, 6))
    x = torch.from_numpy(np.repeat(rng.standard_normal((500, 1, 2)) @ mix, 8, axis=1) + 0.1 * noise)
    rows, valid, new = x[:400], x[400:430].clone(), x[430:]
    for wild in range(6):
        valid[:, :, wild] += 0.3 * torch.randn(30, 1, dtype=x.dtype)
        channels = Channels.fit(rows, valid)
        for moved in range(6):
            for window in (torch.ones(8), torch.linspace(0, 3, 8)):
                found = channels.surprise(new + 2 * window[:, None] * torch.eye(6)[moved]).mean(0)
                assert found.argmax() == moved
        valid = x[400:430].clone()


def test_contributions_add_up_to_the_score_and_survive_saving(model, tmp_path):
    windows = faulty("drift", 5)[0]
    windows[0, :, 2] = np.nan
    part = model.explain(windows)
    assert part[0, :, 2].max() == 0
    assert (part >= 0).all()
    np.testing.assert_allclose(part[1:].sum((1, 2)), model.anomaly_score(windows[1:])[0], rtol=1e-4)
    save(model, Run.create(tmp_path / "run"))
    np.testing.assert_array_equal(load_run(tmp_path / "run", allow_nan=True).explain(windows), part)


def test_a_model_that_was_saved_without_them_explains_as_before(model):
    assert model.calibration is not None
    windows = faulty("stuck", 50)[0]
    start = replace(model.calibration.score, channels=None, shapes=None, mean=torch.zeros(4))
    x = model.tensor(windows)
    values = start.parts(model.for_score(x), x, shares=False).values
    score = replace(start, mean=values.mean(0), whiten=standardising(values))
    before = replace(model, calibration=replace(model.calibration, score=score))
    assert [*before.parts(windows[:5])][:4] == ["error", "texture", "detail", "distance"]
    np.testing.assert_allclose(before.explain(windows).sum((1, 2)), before.anomaly_score(windows)[0], rtol=1e-4)


@pytest.mark.parametrize("n", [6, 300])
def test_channels_that_stand_still_or_are_copies_are_finite(n):
    x = torch.randn(n, 16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[..., 1], x[..., 2] = x[..., 0], 5.0
    found = Channels.fit(x[: n // 2], x[n // 2 :])
    new = x[-2:].clone()
    new[..., 2] += 1
    surprise = found.surprise(new)
    assert surprise.isfinite().all()
    assert (surprise.argmax(1) == 2).all()
