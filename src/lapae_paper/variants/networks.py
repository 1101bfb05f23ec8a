"""The paper's three networks (tanh everywhere, linear codes and outputs)."""

from __future__ import annotations

from lapae.networks import Autoencoder, conv, mlp

Shape = tuple[int, ...]


def paper_mnist(shape: Shape = (1, 28, 28), latent_dim: int = 2) -> Autoencoder:
    """Build the dense network for MNIST, 784-512-256-K and mirrored: 1,068,306 weights."""
    return mlp(shape, latent_dim, hidden=(512, 256))


def paper_fashion(shape: Shape = (1, 28, 28), latent_dim: int = 2) -> Autoencoder:
    """Build the convolutional network for FashionMNIST: 17,164,739 weights."""
    return conv(shape, latent_dim, channels=(64, 64), hidden=(2048, 1024))


def paper_celeba(shape: Shape = (3, 64, 64), latent_dim: int = 64) -> Autoencoder:
    """Build the network for CelebA: five 5x5 convolutions of 128 channels, no hidden dense layer."""
    return conv(shape, latent_dim, channels=(128,) * 5, hidden=(), kernel_size=5)
