"""The cosine schedule: the rates it should have, also when the run is stopped in the middle."""

import math
from dataclasses import replace

import pytest
import torch
from observers import StopAfter

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.fit import fit
from lapae.runs import Run

CONFIG = Config(
    model=ModelConfig(hidden=(5,)),
    method=MethodConfig(method="online", forgetting=1e-2),
    train=TrainConfig(epochs=6, batch_size=32, schedule="cosine", device="cpu", verbose=False, learning_rate=0.01),
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
