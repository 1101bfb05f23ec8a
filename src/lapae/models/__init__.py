"""Networks, and the layer that takes missing values."""

from lapae.models.networks import NETWORKS, Autoencoder, build, conv, mlp, paper_celeba, paper_fashion, paper_mnist

__all__ = ["NETWORKS", "Autoencoder", "build", "conv", "mlp", "paper_celeba", "paper_fashion", "paper_mnist"]
