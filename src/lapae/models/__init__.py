"""Networks and likelihoods."""

from lapae.models.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, likelihood
from lapae.models.networks import NETWORKS, Autoencoder, build, conv, mlp, paper_celeba, paper_fashion, paper_mnist

__all__ = [
    "NETWORKS",
    "Autoencoder",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "build",
    "conv",
    "likelihood",
    "mlp",
    "paper_celeba",
    "paper_fashion",
    "paper_mnist",
]
