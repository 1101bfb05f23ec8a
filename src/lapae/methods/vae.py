"""Variational autoencoder: twin encoders for mean and log variance of the code, twin decoders for the data.

Its loss is the evidence lower bound of paper eq. (1), with the KL term weighted as in its appendix A:
E_q(z|x)[-log p(x|z)] + β KL(q(z|x) || N(0, I)).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lapae.config.methods import VAEOptions
from lapae.curvature.likelihoods import Likelihood
from lapae.methods.ae_var import PointWithVariance
from lapae.methods.base import Draws, Method, NetworkFactory, Output, Point
from lapae.methods.output_variance import log_prob, variance
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder


class VAE(Method):
    """Variational autoencoder, q(z|x) = N(μ(x), σ²(x)), with one sampled code per sample and step.

    `learned_variance` is for the Gaussian likelihood: the others have no variance apart from their mean.
    """

    latent_prior = True

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: VAEOptions, n_data: int) -> None:
        super().__init__(likelihood)
        self.network: Autoencoder = network()
        twin = network()
        self.code_log_variance: nn.Module = twin.get_submodule("encoder")
        self.learns_variance = options.learned_variance and likelihood.free_variance
        self.log_variance: nn.Module | None = twin.get_submodule("decoder") if self.learns_variance else None
        self.kl_weight = options.kl_weight

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the negative evidence lower bound, a mean over samples."""
        reconstruction, kl = self._terms(x, step)
        return (reconstruction + self.kl_weight * kl).mean()

    def validate(self, x: Tensor, step: StepContext) -> dict[str, Tensor]:
        """Return the bound and its two terms, summed over the batch."""
        reconstruction, kl = self._terms(x, step)
        return {
            "loss": (reconstruction + self.kl_weight * kl).sum(),
            "reconstruction": reconstruction.sum(),
            "kl": kl.sum(),
        }

    def _terms(self, x: Tensor, step: StepContext) -> tuple[Tensor, Tensor]:
        """Return -log p(x|z) at a sampled code, and the KL divergence: (B,) each."""
        mean, var = self.network.encode(x), variance(self.code_log_variance(x))
        eps = torch.randn(mean.shape, generator=step.noise_of_data, dtype=mean.dtype, device=mean.device)
        output = self.draw_mean().decode((mean + var.sqrt() * eps)[None])
        kl = 0.5 * (mean.square() + var - var.log() - 1).sum(1)
        return -log_prob(self.likelihood, output, x)[0], kl

    def draw(self, seeds: Sequence[int]) -> Draws:
        """Return draws of codes from q(z|x), one stream of noise per seed."""
        return CodeDraws(self.draw_mean(), self.code_log_variance, seeds)

    def draw_mean(self) -> Draws:
        if self.log_variance is None:
            return Point(self.network)
        return PointWithVariance(self.network, self.log_variance)


class CodeDraws:
    """S sampled codes for every sample; successive calls continue each seed's stream of noise."""

    def __init__(self, point: Draws, code_log_variance: nn.Module, seeds: Sequence[int]) -> None:
        self.point = point
        self.code_log_variance = code_log_variance
        device = next(code_log_variance.parameters()).device
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def encode(self, x: Tensor) -> Tensor:
        """Sample codes (S, B, K) from q(z|x) for x (S or 1, B, *shape)."""
        mean = self.point.encode(x)
        var = variance(self.code_log_variance(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        shape, kind = mean.shape[1:], {"dtype": mean.dtype, "device": mean.device}
        eps = torch.stack([torch.randn(shape, generator=generator, **kind) for generator in self.generators])
        return mean + var.sqrt() * eps

    def decode(self, z: Tensor) -> Output:
        loc, var = self.point.decode(z)
        n_draws = len(self.generators)
        return Output(loc.expand(n_draws, *loc.shape[1:]), None if var is None else var.expand(n_draws, *var.shape[1:]))
