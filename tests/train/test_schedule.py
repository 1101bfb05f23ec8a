"""The cosine schedule: the rates it should have, also when the run is stopped in the middle."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from observers import StopAfter

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.data import Data
from lapae.fit import fit
from lapae.runs import Run
from lapae.train.checkpoint import TrainState
from lapae.train.progress import Observer

CONFIG = Config(
    model=ModelConfig(hidden=(5,)),
    method=MethodConfig(method="online", forgetting=1e-2),
    train=TrainConfig(
        epochs=6, batch_size=32, schedule="cosine", patience=6, device="cpu", verbose=False, learning_rate=0.01
    ),
)


def test_rates_fall_along_a_cosine(table, tmp_path):
    model = fit(CONFIG, table, run=Run.create(tmp_path / "run"))
    rates = [record["learning_rate"] for record in model.history]
    assert rates == pytest.approx([0.005 * (1 + math.cos(math.pi * i / 6)) for i in range(6)])


def test_a_stopped_run_goes_on_along_the_same_cosine(table, tmp_path):
    whole = fit(CONFIG, table, run=Run.create(tmp_path / "whole"))
    run = Run.create(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        fit(CONFIG, table, run=run, observers=[StopAfter(3)])
    resumed = fit(CONFIG, table, run=run, resume=True)
    for name, tensor in whole.method.state_dict().items():
        assert torch.equal(tensor, resumed.method.state_dict()[name]), name
    plain = [{k: v for k, v in record.items() if k != "seconds"} for record in resumed.history]
    assert plain == [{k: v for k, v in record.items() if k != "seconds"} for record in whole.history]


def test_plateau_is_another_schedule(table):
    model = fit(replace(CONFIG, train=replace(CONFIG.train, schedule="plateau")), table)
    assert {record["learning_rate"] for record in model.history} <= {0.01, 0.005}


def test_the_cosine_ends_with_the_patience():
    state = TrainState(10)
    shares = []
    for loss in (3.0, 2.0, 2.5, 2.5, 1.0, 1.5, 1.5, 1.5, 1.5):
        shares.append(state.done(100, 4))
        assert state.stop_reason(100, 4) is None
        state.add({}, loss)
    assert shares == pytest.approx([0, 0.01, 0.02, 0.25, 0.5, 0.05, 0.25, 0.5, 0.75])
    assert state.stop_reason(100, 4) == "no better validation loss in 4 epochs"
    assert (state.done(100, 4), state.done(9, 400)) == (1, 1)


def test_images_that_cannot_be_learned_stop_early_and_say_so():
    """Noise: nothing that is learned from the training images helps with others."""
    said = []

    class Listener(Observer):
        def say(self, text):
            said.append(text)

    noise = np.random.default_rng(0).integers(0, 256, (40, 16, 16), dtype=np.uint8)
    config = Config(train=TrainConfig(device="cpu", epochs=80, verbose=False))
    model = fit(config, Data.of(noise), observers=[Listener()])
    assert model.config.train.patience == 10
    assert model.metrics["epochs"] < 40
    assert model.history[-1]["learning_rate"] < 0.1 * model.history[0]["learning_rate"]
    ended = f"training ended after {model.metrics['epochs']} of 80 epochs: no better validation loss in 10 epochs"
    assert sum(ended in line for line in said) == 1
    assert any("kept the weights it started from" in line for line in said) == (model.metrics["best_epoch"] == 0)
