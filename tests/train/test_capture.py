"""The step as a CUDA graph: the same training as the eager step."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.fit import fit
from lapae.methods import METHODS
from lapae.train import loop
from lapae.train.step import CapturedStep, make_step

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


@needs_gpu
@pytest.mark.parametrize(
    "method",
    [*map(MethodConfig, sorted(METHODS)), MethodConfig(hessian="sketch")],
    ids=lambda m: f"{m.method} {getattr(m.options, 'hessian', '')}".strip(),
)
def test_captured_training_is_eager_training(method, table, monkeypatch):
    """96 data in batches of 20: four replayable steps per epoch and a ragged one."""
    model, train = ModelConfig(hidden=(8,)), TrainConfig(epochs=5, batch_size=20, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a step that falls back to eager warns
        warnings.filterwarnings("ignore", "held-out samples are reconstructed no better")  # five epochs of dropout
        captured = fit(Config(model=model, method=method, train=train), table)
    monkeypatch.setattr(loop, "make_step", partial(make_step, capture=False))
    eager = fit(Config(model=model, method=method, train=train), table)
    for key, value in eager.method.state_dict().items():
        torch.testing.assert_close(captured.method.state_dict()[key], value, rtol=1e-4, atol=1e-5)


@needs_gpu
def test_step_that_cannot_be_captured_stays_eager():
    x, total = torch.ones(4, device="cuda"), []

    def step(x):
        total.append(float(x.sum()))  # waits for the device, which capture forbids
        return x.sum()

    captured = CapturedStep(step, torch.Generator("cuda"), 4)
    for _ in range(CapturedStep.WARM_UP):
        captured(x)
    with pytest.warns(UserWarning, match="runs eagerly"):
        captured(x)
    captured(x)
    assert torch.randn(3, device="cuda").isfinite().all()  # the generators are usable again
    assert total == [4.0] * 5
