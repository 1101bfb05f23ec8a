"""A call at other weights: every place of a weight, nothing left behind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from lapae.curvature.stateless import functional_call


def test_as_torch_s_own():
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)).eval()
    values = {name: torch.randn_like(p) for name, p in module.named_parameters()} | {"1.running_mean": torch.ones(2)}
    x, state = torch.randn(2, 1, 3, 3), copy.deepcopy(module.state_dict())
    assert_close(functional_call(module, values, (x,)), torch.func.functional_call(module, values, (x,)))
    assert_close(module.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize("shared", ["layer", "weight"])
def test_a_layer_in_two_places(shared):
    layer = nn.Linear(3, 3)
    again = layer if shared == "layer" else nn.Linear(3, 3)
    again.weight = layer.weight
    module = nn.Sequential(layer, nn.Tanh(), again)
    own, state = list(module.parameters()), copy.deepcopy(module.state_dict())
    values = {name: torch.randn_like(p) for name, p in module.named_parameters()}
    x = torch.randn(2, 3)
    h = torch.tanh(nn.functional.linear(x, values["0.weight"], values["0.bias"]))
    bias = values.get("2.bias", values["0.bias"])
    assert_close(functional_call(module, values, (x,)), nn.functional.linear(h, values["0.weight"], bias))
    assert all(a is b for a, b in zip(own, module.parameters(), strict=True))
    assert_close(module.state_dict(), state, rtol=0, atol=0)


def test_recurrent_layers_keep_no_list_of_other_weights():
    module = nn.LSTM(2, 3)
    values = {name: torch.randn_like(p) for name, p in module.named_parameters()}
    functional_call(module, values, (torch.randn(4, 1, 2),))
    assert all(a is b for a, b in zip(module._flat_weights, module.parameters(), strict=True))


def test_weights_come_back_after_a_failure():
    module = nn.Linear(3, 3)
    own = module.weight
    with pytest.raises(RuntimeError):
        functional_call(module, {"weight": torch.zeros(2, 2)}, (torch.zeros(1, 3),))
    assert module.weight is own
    with pytest.raises(ValueError, match="no parameter or buffer named other"):
        functional_call(module, {"other": torch.zeros(2, 2)}, (torch.zeros(1, 3),))
