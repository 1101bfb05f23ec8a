"""Small networks work with one thread, and leave the number as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.fit import fit
from lapae.networks.threads import SMALL_PASS, few_threads, multiply_adds


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_multiply_adds():
    assert multiply_adds(nn.Linear(10, 20), 7) == 7 * (10 * 20 + 20)
    assert multiply_adds(nn.Conv2d(1, 2, 3, bias=False), 5) == 5 * 64 * 2 * 9


@pytest.mark.parametrize("rows", [1, 100])
def test_one_thread_where_a_pass_is_small(rows, two_threads):
    layer = nn.Linear(1000, int(SMALL_PASS / 1e4), bias=False)  # a tenth of the bound per row
    with few_threads(layer, rows):
        assert torch.get_num_threads() == (1 if rows == 1 else 2)
    assert torch.get_num_threads() == 2


def test_the_number_comes_back_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), few_threads(nn.Linear(2, 2), 1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


def test_training_and_prediction_of_a_small_network_use_one_thread(table, two_threads):
    seen = []

    class Watching(nn.Linear):
        def forward(self, x):
            if len(x) > 16:  # not the samples that tell whether the network fits
                seen.append(torch.get_num_threads())
            return super().forward(x)

    network = (Watching(6, 2), Watching(2, 6))
    config = Config(
        model=ModelConfig(network="mlp"), method=MethodConfig("ae"), train=TrainConfig(epochs=1, device="cpu")
    )
    model = fit(config, table, network=network)
    n_training = len(seen)
    model.predict(torch.zeros(20, 6, dtype=next(model.method.parameters()).dtype))
    assert len(seen) > n_training
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
