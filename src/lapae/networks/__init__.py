"""Encoders and decoders: built-in networks, adapters for a user's modules, missing values, principal components."""

from lapae.networks.builtin import Autoencoder, build, conv, mlp

__all__ = ["Autoencoder", "build", "conv", "mlp"]
