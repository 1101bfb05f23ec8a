"""A loss that is no longer a number: training says since when and what to try, and the last good state stays."""

from __future__ import annotations

import pytest
import torch

from lapae.cli import main
from lapae.methods.online import Online
from lapae.runs import CHECKPOINT, MODEL, Run, read_tensor_file
from lapae.runs.toml import write_config
from lapae.storage import load_run
from lapae.train.checkpoint import load_checkpoint

from .runs import assert_same, config, curve, train


def test_the_last_good_epoch_stays_and_can_be_used_and_resumed(tmp_path, monkeypatch, capsys):
    source, run, whole = curve(tmp_path / "curve.npy"), tmp_path / "run", tmp_path / "whole"
    options = tmp_path / "options.toml"
    options.write_text(write_config(config(source)))
    forward, calls = Online.forward, []

    def breaks(self, x, step):
        calls.append(len(x))
        return forward(self, x, step) * (torch.nan if len(calls) > 5 else 1.0)  # two steps per epoch

    with monkeypatch.context() as patch:
        patch.setattr(Online, "forward", breaks)
        assert main(["train", "--config", str(options), "--out", str(run)]) == 2
    message = capsys.readouterr().err
    assert "the training loss is nan since step 2 of 2 in epoch 3" in message
    assert "the weights of epoch 1" in message
    assert "are kept in" in message
    assert "Try a smaller learning_rate" in message
    assert "Traceback" not in message

    checkpoint = load_checkpoint(Run(run))
    assert checkpoint is not None
    assert checkpoint.state.epoch == 2
    assert all(tensor.isfinite().all() for tensor in read_tensor_file(run / CHECKPOINT)[0].values())
    assert not (run / MODEL).exists()
    with pytest.warns(UserWarning, match="not finished: these are its best weights so far, of epoch 1"):
        load_run(run)
    # what broke it is gone: it goes on as if nothing had been
    train(run, source)
    train(whole, source)
    assert_same(run, whole)
