"""`lapae train FILE --seed 0` and `LaplacianAutoencoder(random_state=0).fit(X)` are one and the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lapae import LaplacianAutoencoder
from lapae.cli import main
from lapae.config import Config
from lapae.runs import CHECKPOINT, CONFIG, HISTORY, METRICS, MODEL, POSTERIOR, PREVIOUS
from lapae.storage import CALIBRATION


def table(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(150, 3)) @ rng.normal(size=(3, 6)) + 0.1 * rng.normal(size=(150, 6))


def windows(rng: np.random.Generator) -> np.ndarray:
    return np.sin(np.arange(12)[:, None] * rng.uniform(0.2, 1, (120, 1, 3)) + rng.uniform(0, 6, (120, 1, 3)))


def images(rng: np.random.Generator) -> np.ndarray:
    return (255 * rng.uniform(size=(100, 1, 1)) * rng.uniform(size=(8, 8))).astype(np.uint8)


@pytest.mark.parametrize("make", [table, windows, images])
def test_the_command_and_the_estimator_train_the_same_weights(make, tmp_path: Path) -> None:
    x = make(np.random.default_rng(0))
    np.save(tmp_path / "data.npy", x)
    command = ["train", str(tmp_path / "data.npy"), "--seed", "0", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main([*command, "--epochs", "5"]) == 0
    trained = LaplacianAutoencoder.load(tmp_path / "run").model_
    fitted = LaplacianAutoencoder(random_state=0, device="cpu", epochs=5).fit(np.load(tmp_path / "data.npy")).model_

    def without_source(config: Config) -> Config:
        # Where the data come from differs, and the estimator is quiet.
        data, train = config.data, config.train
        return replace(config, data=replace(data, source="", allow_nan=False), train=replace(train, verbose=True))

    assert without_source(trained.config) == without_source(fitted.config)
    ours, theirs = trained.method.state_dict(), fitted.method.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    np.testing.assert_array_equal(trained.anomaly_score(x)[0], fitted.anomaly_score(x)[0])


def test_two_equal_trainings_write_equal_files(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", table(np.random.default_rng(0)))
    command = ["train", str(tmp_path / "data.npy"), "--device", "cpu", "--epochs", "1", "--hidden", "4", "--no-verbose"]
    for run in ("one", "two"):
        assert main([*command, "--out", str(tmp_path / run)]) == 0
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names >= {MODEL, POSTERIOR, CALIBRATION, CONFIG}
    for name in names - {METRICS, HISTORY, CHECKPOINT, PREVIOUS}:  # which tell the seconds
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
