"""Networks, and the layer that takes missing values."""

from lapae.networks.builtin import Autoencoder, build, conv, mlp

__all__ = ["Autoencoder", "build", "conv", "mlp"]
