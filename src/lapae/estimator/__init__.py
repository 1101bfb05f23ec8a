"""The scikit-learn front."""

from lapae.estimator.autoencoder import LaplacianAutoencoder

__all__ = ["LaplacianAutoencoder"]
