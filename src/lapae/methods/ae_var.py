"""Autoencoder with a learned output variance: x ~ N(μ(z), σ²(z)), z = e(x), and a second decoder for log σ²."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lapae.config.methods import MethodOptions
from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import Draws, Method, NetworkFactory, Output, Point
from lapae.methods.output_variance import gaussian, log_prob, variance
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder


class AEVar(Method):
    """Autoencoder that minimises ½ Σ ((x - μ)² / σ² + log 2πσ²) over θ, the Gaussian negative log-likelihood."""

    stochastic = False
    learns_variance = True

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: MethodOptions, n_data: int) -> None:
        super().__init__(gaussian(likelihood, "ae-var"))
        self.network = network()
        self.log_variance: nn.Module = network().get_submodule("decoder")

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the mean negative log-likelihood of x (B, *shape)."""
        draws = self.draw_mean()
        return -log_prob(self.likelihood, draws.decode(draws.encode(x[None])), x).mean()

    def draw(self, seeds: Sequence[int]) -> Draws:
        """Return the network once: further draws would be equal."""
        return self.draw_mean()

    def draw_mean(self) -> Draws:
        """Return the network with its variance."""
        return PointWithVariance(self.network, self.log_variance)


class PointWithVariance(Point):
    """Draws of one encoder and twin decoders for mean and log variance; S is that of the input."""

    def __init__(self, network: Autoencoder, log_variance: nn.Module) -> None:
        super().__init__(network)
        self.log_variance = log_variance

    def decode(self, z: Tensor) -> Output:
        """Decode codes (S, B, K) into mean and variance, both (S, B, *shape)."""
        log_variance = self.log_variance(z.flatten(0, 1)).unflatten(0, z.shape[:2])
        return Output(super().decode(z).loc, variance(log_variance))
