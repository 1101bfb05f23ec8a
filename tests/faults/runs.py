"""A small online run on a curve in a file, so that other processes can train it too, and what tests ask of a run."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from unittest import mock

import numpy as np
import torch
import trained

from lapae.cli.run_folder import train_in
from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.runs import HISTORY, Run
from lapae.train.checkpoint import Checkpoints
from lapae_paper.choices import as_in_the_paper


def curve(path: Path) -> Path:
    """150 data of 6 elements on a curve."""
    generator = np.random.default_rng(0)
    t = generator.uniform(-1, 1, (150, 1))
    x = np.concatenate([np.sin(2 * t), np.cos(2 * t), t, t**2, t**3, np.ones_like(t)], 1)
    np.save(path, (x + 0.05 * generator.standard_normal(x.shape)).astype(np.float32))
    return path


def config(source: Path, epochs: int = 4) -> Config:
    return as_in_the_paper(
        Config(
            data=DataConfig(source=str(source)),
            model=ModelConfig(hidden=(8,)),
            method=MethodConfig(method="online"),
            train=TrainConfig(epochs=epochs, device="cpu", verbose=False, patience=10_000),
        )
    ).resolved()


def train(path: Path, source: Path, epochs: int = 4, every: int | None = None) -> None:
    """Train the run at `path`, or go on with it; as `lapae train` does, with the lock. Checkpoints `every` n epochs."""
    torch.set_num_threads(1)
    path.mkdir(exist_ok=True)

    def due(self: Checkpoints) -> bool:
        return every is not None and epochs_of(path) % every == 0

    with nullcontext() if every is None else mock.patch.object(Checkpoints, "due", due):
        train_in(Run(path), config(source, epochs), resume=True)


def epochs_of(run: Path) -> int:
    return len((run / HISTORY).read_bytes().splitlines()) if (run / HISTORY).exists() else 0


def train_and_die(path: Path, source: Path, epochs: int, every: int, last: int, seconds: float) -> None:
    """As `train` in a process that kills itself soon after the epoch `last`. Another process, on a busy machine, would
    come too late."""

    def die() -> None:
        while epochs_of(path) < last:
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=die, daemon=True).start()
    train(path, source, epochs, every)


def assert_same(path: Path, undisturbed: Path) -> None:
    """The same weights, posterior and history, and nothing left lying about."""
    trained.assert_same(path, undisturbed)
    assert {file.name for file in path.iterdir()} == {file.name for file in undisturbed.iterdir()}
