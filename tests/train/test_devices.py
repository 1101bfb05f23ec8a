"""Devices by name, and a GPU for each process."""

from __future__ import annotations

import pytest
import torch

from lapae.errors import ConfigError
from lapae.train.devices import choose_device, own_device


@pytest.mark.parametrize("available", [False, True])
def test_auto_is_a_gpu_where_there_is_one(available, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert choose_device("auto") == ("cuda" if available else "cpu")
    assert choose_device("cpu") == "cpu"


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        choose_device("cuda")


def test_every_process_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("LOCAL_RANK", "1")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    assert own_device("auto") == "cuda:1"
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "3")
    with pytest.raises(ConfigError, match="3 processes, but 2 GPUs here"):
        own_device("auto")
