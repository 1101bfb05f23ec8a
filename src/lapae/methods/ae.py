"""The plain autoencoder: one network, no uncertainty. The baseline of everything."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapae.config.methods import MethodOptions
from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import Draws, Method, NetworkFactory, Point
from lapae.methods.step import Step


class AE(Method):
    """min over θ of -log p(x | f_θ(x))."""

    stochastic = False

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: MethodOptions, n_data: int) -> None:
        super().__init__(likelihood)
        self.network = network()

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return -self.likelihood.log_prob(self.network(x), x).mean()

    def draw(self, seeds: Sequence[int]) -> Draws:
        """The network, once: further draws would be the same."""
        return Point(self.network)

    def draw_mean(self) -> Draws:
        return Point(self.network)
