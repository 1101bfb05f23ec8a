"""The networks: shapes, mistakes."""

from __future__ import annotations

import pytest
import torch
from narrow import as_a
from torch import nn

from lapae.config import NETWORKS
from lapae.networks import Autoencoder, build, conv, mlp


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 11), (2, 4, 6)])
@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_codes_and_outputs_have_their_shapes(network, shape):
    options = {"hidden": (6,)} | ({"channels": (2, 3)} if network == "conv" else {})
    model = build(network, shape, 3, **options)
    x = torch.randn(2, *shape)
    z = model.encode(x)
    assert z.shape == (2, 3)
    assert model.decode(z).shape == x.shape
    assert torch.equal(model(x), model.decode(z))
    assert {name.partition(".")[0] for name, _ in model.named_parameters()} == {"encoder", "decoder"}


def test_activations_stand_between_layers_only():
    for model in (mlp((5,), 2, hidden=(4, 3), activation=nn.GELU), conv((1, 8, 8), 2, activation=nn.GELU)):
        for part in (model.encoder, model.decoder):
            kinds = [type(m) for m in part.modules() if not isinstance(m, nn.Sequential)]
            assert nn.GELU in kinds
            assert nn.Tanh not in kinds
            assert kinds[-1] in (nn.Linear, nn.Conv2d)


def test_dense_networks_of_vectors_are_plain():
    assert all(isinstance(m, nn.Linear | nn.Tanh) for m in as_a(nn.Sequential, mlp((5,), 2).encoder))
    assert len(as_a(nn.Sequential, mlp((5,), 2, hidden=()).encoder)) == 1


def test_a_pair_of_modules_is_taken_as_it_is():
    encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
    model = build((encoder, decoder), (4,), 2)
    assert isinstance(model, Autoencoder)
    assert model.encoder is encoder
    assert model.decoder is decoder


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=f"unknown network 'resnet': expected one of {', '.join(NETWORKS.visible())}"):
        build("resnet", (4,), 2)
    with pytest.raises(TypeError, match="a pair"):
        build((nn.Linear(1, 1),), (4,), 2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"images of shape \(C, H, W\), got data of shape \(4,\)"):
        conv((4,), 2)
    with pytest.raises(ValueError, match="at least 4x4"):
        conv((1, 3, 8), 2)
    with pytest.raises(ValueError, match="must be odd"):
        conv((1, 8, 8), 2, kernel_size=4)


@pytest.mark.parametrize(
    ("side", "expected"),
    [(28, [32, 64]), (64, [32, 64]), (65, [16, 32, 64]), (128, [16, 32, 64]), (256, [8, 16, 32, 64])],
)
def test_large_images_get_more_and_narrower_convolutions(side, expected):
    """The first dense layer of 256x256 images has 2 million weights, not 33."""
    network = build("conv", (3, side, side), 2)
    channels = [layer.out_channels for layer in network.encoder if isinstance(layer, nn.Conv2d)]  # pyright: ignore
    assert channels == expected
    assert sum(p.numel() for p in network.parameters()) < 10_000_000


@pytest.mark.parametrize(
    ("side", "expected"), [(28, [16, 32]), (64, [16, 32, 64]), (65, [8, 16, 32, 64]), (256, [8, 8, 16, 32, 64])]
)
def test_beside_a_linear_path_strides_take_the_place_of_poolings(side, expected):
    network = build("conv", (1, side, side + 3), 2, linear=True).eval()
    layers = [layer for layer in network.encoder.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in layers] == expected
    assert all(layer.stride == (2, 2) for layer in layers)
    assert not any(isinstance(layer, nn.MaxPool2d) for layer in network.modules())
    x = torch.rand(2, 1, side, side + 3)
    assert network(x).shape == x.shape
