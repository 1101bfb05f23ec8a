"""Encoders and decoders of plain `torch.nn` layers: dense and convolutional.

A network is an `Autoencoder`, a `Sequential` of an encoder and a decoder, so that the curvature engine can walk it.
Activations are between layers; codes and outputs are linear. Shapes: x is (B, *shape), z is (B, K).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lapae.config import NETWORKS
from lapae.curvature import Sum

Shape = tuple[int, ...]
LARGEST_PLAIN = 64
"""Side in pixels up to which the default number of convolutions is enough."""


class Autoencoder(nn.Sequential):
    """Autoencoder decoder ∘ encoder, as a `Sequential` with these two names."""

    encoder: nn.Module
    decoder: nn.Module

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__(OrderedDict(encoder=encoder, decoder=decoder))

    def encode(self, x: Tensor) -> Tensor:
        """Return codes: (B, *shape) -> (B, K)."""
        return self.encoder(x)

    def decode(self, z: Tensor) -> Tensor:
        """Return outputs, the parameters of the likelihood: (B, K) -> (B, *shape)."""
        return self.decoder(z)


def mlp(
    shape: Shape,
    latent_dim: int,
    *,
    hidden: Sequence[int] = (512, 256),
    activation: type[nn.Module] = nn.Tanh,
    linear: bool = False,
    mask: bool = False,
) -> Autoencoder:
    """Build a dense autoencoder: D - hidden - K - reversed hidden - D.

    Args:
        shape: shape of a sample.
        latent_dim: size K of the latent code.
        hidden: widths of the encoder's hidden layers.
        activation: class of the activations between layers.
        linear: add a linear path to encoder and decoder, which may start from principal components
            (`lapae.networks.principal`); the nonlinear paths then start at zero.
        mask: the encoder takes the mask of missing values as a second input (`lapae.networks.missing.Observe`).

    Returns:
        The network, with torch's initial weights.
    """
    d = math.prod(shape)
    encoder = dense(((1 + mask) * d, *hidden, latent_dim), activation)
    decoder = dense((latent_dim, *hidden[::-1], d), activation)
    if linear:
        encoder, decoder = (
            _beside(encoder, nn.Linear((1 + mask) * d, latent_dim)),
            _beside(decoder, nn.Linear(latent_dim, d)),
        )
    if len(shape) != 1:
        encoder.insert(0, nn.Flatten())
        decoder.append(nn.Unflatten(1, shape))
    return Autoencoder(encoder, decoder)


def conv(
    shape: Shape,
    latent_dim: int,
    *,
    channels: Sequence[int] | None = None,
    hidden: Sequence[int] = (128,),
    kernel_size: int = 3,
    activation: type[nn.Module] = nn.Tanh,
    linear: bool = False,
) -> Autoencoder:
    """Build a convolutional autoencoder for images.

    Encoder: for each of `channels` a convolution, the activation and a 2x2 max-pool; then dense layers of `hidden`. The
    decoder mirrors it with nearest upsampling, and ends in a convolution to the image's channels. With a linear path,
    convolutions of stride 2 replace the poolings, at a quarter of the cost.

    Args:
        shape: (C, H, W) of an image.
        latent_dim: size K of the latent code.
        channels: channels of the convolutions. Default: (32, 64); with a linear path (16, 32) up to 32 pixels and
            (16, 32, 64) up to 64. Each doubling above 64 pixels adds one with half the channels before them, so that
            neither feature maps nor the first dense layer fill the memory.
        hidden: widths of the dense layers.
        kernel_size: side of the kernels, odd.
        activation: class of the activations between layers.
        linear: add a linear path, as in `mlp`.

    Returns:
        The network, with torch's initial weights.
    """
    if len(shape) != 3:
        raise ValueError(f"a convolutional network needs images of shape (C, H, W), got data of shape {shape}")
    if channels is None:
        side = min(shape[1:])
        plain = (32, 64) if not linear else (16, 32) if side <= LARGEST_PLAIN // 2 else (16, 32, 64)
        more = max(0, math.ceil(math.log2(side / LARGEST_PLAIN)))
        channels = (*(max(8, plain[0] >> k) for k in range(more, 0, -1)), *plain)
    smallest = 2 ** len(channels)
    if min(shape[1:]) < smallest:
        raise ValueError(f"{len(channels)} poolings need images of at least {smallest}x{smallest}, got {shape}")
    if kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd to keep the size of the image, got {kernel_size}")

    def convolution(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
        return nn.Conv2d(n_in, n_out, kernel_size, padding=kernel_size // 2, stride=stride)

    down: list[nn.Module] = []
    sizes = [shape[1:]]
    n_in = shape[0]
    for n_out in channels:
        if linear:
            down += [convolution(n_in, n_out, stride=2), activation()]
            sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
        else:
            down += [convolution(n_in, n_out), activation(), nn.MaxPool2d(2)]
            sizes.append((sizes[-1][0] // 2, sizes[-1][1] // 2))
        n_in = n_out
    features = (n_in, *sizes[-1])
    sizes_dense = (math.prod(features), *hidden, latent_dim)

    up: list[nn.Module] = [activation(), nn.Unflatten(1, features)]
    for n_out, size in zip((*channels[-2::-1], channels[0]), sizes[-2::-1], strict=True):
        # either order is the same function; before upsampling there are a quarter of the values
        last = [activation(), nn.Upsample(size=size)] if linear else [nn.Upsample(size=size), activation()]
        up += [convolution(n_in, n_out), *last]
        n_in = n_out
    up.append(convolution(n_in, shape[0]))

    encoder = nn.Sequential(*down, nn.Flatten(), *dense(sizes_dense, activation))
    decoder = nn.Sequential(*dense(sizes_dense[::-1], activation), *up)
    if linear:
        d = math.prod(shape)
        encoder = _beside(encoder, nn.Sequential(nn.Flatten(), nn.Linear(d, latent_dim)))
        decoder = _beside(decoder, nn.Sequential(nn.Linear(latent_dim, d), nn.Unflatten(1, shape)))
    return Autoencoder(encoder, decoder)


def build(network: str | tuple[nn.Module, nn.Module], shape: Shape, latent_dim: int, **options: Any) -> Autoencoder:
    """Build a network by name, or join a pair of modules.

    Args:
        network: a name of `NETWORKS`, or (encoder, decoder).
        shape: shape of a sample.
        latent_dim: size K of the latent code.
        options: further arguments of the named network.

    Returns:
        The autoencoder.
    """
    if isinstance(network, str):
        return NETWORKS.find(network).load()(tuple(shape), latent_dim, **options)
    if not (isinstance(network, tuple | list) and len(network) == 2 and all(isinstance(m, nn.Module) for m in network)):
        raise TypeError(f"expected the name of a network or a pair (encoder, decoder) of modules, got {network!r}")
    return Autoencoder(*network)


def dense(sizes: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Return linear layers from each of `sizes` to the next, with activations between them."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), activation()]
    return nn.Sequential(*layers[:-1])


def _beside(nonlinear: nn.Sequential, linear: nn.Module) -> nn.Sequential:
    """Return the sum of a linear and a nonlinear path, whose last layer is zero: the sum starts as the linear path."""
    last = [layer for layer in nonlinear.modules() if isinstance(layer, nn.Linear | nn.Conv2d)][-1]
    with torch.no_grad():
        last.weight.zero_()
        if last.bias is not None:
            last.bias.zero_()
    return nn.Sequential(Sum(linear, nonlinear))
