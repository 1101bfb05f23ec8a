"""Scikit-learn's conventions over a `Model`."""

from lapae.estimator.estimator import LaplacianAutoencoder

__all__ = ["LaplacianAutoencoder"]
