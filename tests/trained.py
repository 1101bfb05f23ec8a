"""What tests ask of a run: its weights and its history, and whether two are alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.data import Data, Split
from lapae.runs import HISTORY, MODEL, POSTERIOR, read_tensor_file
from lapae.space import Space
from lapae_paper.choices import as_in_the_paper

CURVE = as_in_the_paper(
    Config(
        model=ModelConfig(hidden=(8,)),
        method=MethodConfig(method="vae"),
        train=TrainConfig(epochs=6, device="cpu"),
    )
).resolved()
"""Trains in moments, on the fixture `table`; all is chosen, and more epochs go on where fewer ended."""


def in_splits(space: Space, train: Split, valid: Split, test: Split) -> Data:
    """Data without a calibration split."""
    nothing = Split(train.x[:0], None if train.y is None else train.y[:0])
    return Data(replace(space, n_data=len(train)), train, valid, nothing, test)


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Of the model, and of its posterior where it has one."""
    found = read_tensor_file(run / MODEL)[0]
    return found | read_tensor_file(run / POSTERIOR)[0] if (run / POSTERIOR).exists() else found


def losses(run: Path) -> list[tuple]:
    records = [json.loads(line) for line in (run / HISTORY).read_text("utf-8").splitlines()]
    return [(record["epoch"], record["loss"], record["valid_loss"], record["learning_rate"]) for record in records]


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def assert_same(run: Path, undisturbed: Path) -> None:
    """The same weights, posterior and history."""
    assert_equal(weights(run), weights(undisturbed))
    assert losses(run) == losses(undisturbed)
