"""Networks, and the layer that takes missing values."""

from lapae.models.networks import Autoencoder, build, conv, mlp, paper_celeba, paper_fashion, paper_mnist

__all__ = ["Autoencoder", "build", "conv", "mlp", "paper_celeba", "paper_fashion", "paper_mnist"]
