"""Stacked networks against one network at a time."""

import pytest
import torch
from narrow import sure
from torch.func import functional_call

from lapae.methods.weights import WeightDraws, normal_draws, stacked_forward
from lapae.networks import conv, mlp

SHAPE = (1, 4, 4)
NETWORKS = {"dense": lambda: mlp(SHAPE, 2, hidden=(6,)), "conv": lambda: conv(SHAPE, 2, channels=(3,), hidden=(5,))}


def stacked(network, n=3):
    params = dict(network.named_parameters())
    noise = normal_draws(params, range(n))
    return {name: value.detach() + 0.1 * noise[name] for name, value in params.items()}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shared", [True, False])
def test_stacked_networks_are_the_networks(name, shared):
    network = NETWORKS[name]().double()
    params = stacked(network)
    x = torch.rand(1 if shared else 3, 5, *SHAPE, dtype=torch.float64)
    draws = WeightDraws(network, params)
    output = draws.decode(draws.encode(x)).loc
    for s in range(3):
        alone = functional_call(network, {k: v[s] for k, v in params.items()}, (x[0 if shared else s],))
        torch.testing.assert_close(output[s], alone)


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_that_are_not_stacked_are_shared(name):
    network = NETWORKS[name]().double()
    x = torch.rand(1, 5, *SHAPE, dtype=torch.float64)
    decoder_only = {k: v for k, v in stacked(network).items() if k.startswith("decoder.")}
    draws = WeightDraws(network, decoder_only)
    z = draws.encode(x)
    assert z.shape == (3, 5, 2)
    torch.testing.assert_close(z[1], network.encode(x[0]))
    assert draws.decode(z).loc.std(0).min() > 0
    weight = next(iter(decoder_only))
    assert WeightDraws(network, {weight: decoder_only[weight]}).decode(z).loc.shape == (3, 5, *SHAPE)


def test_one_set_of_weights_takes_any_number_of_inputs():
    network = NETWORKS["dense"]()
    x = torch.rand(4, 5, *SHAPE)
    out = stacked_forward(network, {k: v[None] for k, v in network.named_parameters()}, x)
    torch.testing.assert_close(out, network(x.flatten(0, 1)).unflatten(0, (4, 5)))


def test_gradients_reach_the_stack():
    for make in NETWORKS.values():
        network = make()
        params = {k: v.clone().requires_grad_() for k, v in stacked(network).items()}
        draws = WeightDraws(network, params)
        draws.decode(draws.encode(torch.rand(1, 5, *SHAPE))).loc.square().sum().backward()
        assert all(sure(v.grad).flatten(1).abs().sum(1).min() > 0 for v in params.values())


def test_errors_name_what_is_wrong():
    network = NETWORKS["dense"]()
    params = stacked(network)
    with pytest.raises(ValueError, match="nonsense"):
        WeightDraws(network, params | {"nonsense": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        WeightDraws(network, params | {next(iter(params)): torch.zeros(2, 1)})
    with pytest.raises(ValueError, match="1 or 3"):
        WeightDraws(network, params).encode(torch.rand(2, 5, *SHAPE))


def test_noise_is_normal_and_a_function_of_the_seed():
    params = {"a": torch.zeros(30, 40), "b": torch.zeros(()), "c": torch.zeros(7)}
    noise = normal_draws(params, [5, 6, 9])
    assert [tuple(v.shape) for v in noise.values()] == [(3, 30, 40), (3,), (3, 7)]
    again = normal_draws(params, [9])
    assert all(torch.equal(noise[k][2], again[k][0]) for k in params)
    assert noise["a"][0].mean().abs() < 0.1
    assert noise["a"][0].std().item() == pytest.approx(1, abs=0.05)
    assert torch.corrcoef(noise["a"].flatten(1))[0, 1].abs() < 0.1
