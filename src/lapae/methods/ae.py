"""Plain autoencoder: one network without uncertainty, the baseline of all other methods."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapae.config.methods import MethodOptions
from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import Draws, Method, NetworkFactory, Point
from lapae.methods.step import StepContext


class AE(Method):
    """Autoencoder that minimises -log p(x | f_θ(x)) over θ."""

    stochastic = False

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: MethodOptions, n_data: int) -> None:
        super().__init__(likelihood)
        self.network = network()

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the mean negative log-likelihood of x (B, *shape)."""
        return -self.likelihood.log_prob(self.network(x), x).mean()

    def draw(self, seeds: Sequence[int]) -> Draws:
        """Return the network once: further draws would be equal."""
        return self.draw_mean()

    def draw_mean(self) -> Draws:
        """Return the network."""
        return Point(self.network)
