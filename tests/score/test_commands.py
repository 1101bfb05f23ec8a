"""Commands among the channels of a series: read by the model, not judged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lapae.config import Config, TrainConfig
from lapae.data import Data
from lapae.fit import fit, not_commands
from lapae.model import Model
from lapae.runs import Run
from lapae.storage import load_run, save

WINDOW = 16


def plant(rng: np.random.Generator, n: int, rate: float = 0.02) -> np.ndarray:
    """A series (n, 3): two sensors, and a command in the middle that comes now and then."""
    t = np.arange(n) + rng.integers(1000)
    sensors = np.stack([20 + 5 * np.sin(t / 5), np.cos(t / 3)], 1) + rng.normal(0, 0.2, (n, 2))
    return np.stack([sensors[:, 0], rng.random(n) < rate, sensors[:, 1]], 1).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> Model:
    data = Data.of(plant(np.random.default_rng(0), 4000), window=WINDOW, stride=4)
    return fit(Config(train=TrainConfig(seed=0, epochs=5, verbose=False)), data)


def windows(x: np.ndarray) -> np.ndarray:
    return x[: len(x) // WINDOW * WINDOW].reshape(-1, WINDOW, x.shape[1])


@pytest.mark.parametrize(
    ("channels", "judged"),
    [
        ([[20.5, 3.0], [0, 1], [0, 0], [1, 1]], [0]),
        ([[0, 1], [1, 0]], None),  # all are: then all are judged
        ([[0.5, 0.2], [7, 7]], None),  # a sensor that stands still is none
        ([[np.nan, 1], [0, 2], [0, 1]], [1]),
    ],
)
def test_a_command_is_0_or_1_in_every_step(channels, judged):
    values = np.array(channels, np.float32).T
    space = Data.of(plant(np.random.default_rng(0), 300)[:, : values.shape[1]], window=2, stride=1).space
    wide = np.resize(np.asarray(space.offset, float), values.shape[1]), np.resize(space.scale, values.shape[1])
    from dataclasses import replace

    space = replace(space, shape=(2, values.shape[1]), offset=wide[0], scale=wide[1])
    found = not_commands(space, torch.from_numpy(space.convert(values[None])))
    assert (None if found is None else found.tolist()) == judged


def test_rare_commands_raise_no_alarm_and_sensors_do(model):
    rng = np.random.default_rng(1)
    once = windows(plant(rng, 8000, rate=0.0))
    once[:, 8, 1] = 1
    assert (model.anomaly_score(once)[1] <= 0.05).mean() < 0.1
    assert model.calibration is not None
    stuck = windows(plant(rng, 1600))
    stuck[:, :, 2] = stuck[:, :1, 2]
    assert (model.anomaly_score(stuck)[1] <= 0.05).mean() > 0.8
    parts = model.explain(stuck)
    assert (parts[..., 1] == 0).all()
    assert (parts.sum(1).argmax(1) == 2).mean() > 0.8


def test_false_alarms_on_a_new_stretch(model):
    p = model.anomaly_score(windows(plant(np.random.default_rng(2), 16000)))[1]
    assert 0.01 < (p <= 0.05).mean() < 0.09


def test_what_is_judged_is_saved(model, tmp_path):
    x = windows(plant(np.random.default_rng(3), 320))
    save(model, Run.create(tmp_path / "run"))
    loaded = load_run(tmp_path / "run")
    assert loaded.calibration is not None and loaded.calibration.score.judged is not None  # noqa: PT018
    np.testing.assert_allclose(loaded.anomaly_score(x)[0], model.anomaly_score(x)[0], rtol=1e-4, atol=1e-4)
