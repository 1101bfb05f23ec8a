"""Networks, and the layer that takes missing values."""

from lapae.networks.builtin import Autoencoder, build, conv, mlp, paper_celeba, paper_fashion, paper_mnist

__all__ = ["Autoencoder", "build", "conv", "mlp", "paper_celeba", "paper_fashion", "paper_mnist"]
