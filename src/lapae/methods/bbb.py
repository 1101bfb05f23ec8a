"""Bayes by Backprop (Blundell et al. 2015): a Gaussian of independent weights, fitted by gradient descent.

q(θ) = N(μ, softplus(ρ)²), prior N(0, 1/δ), one sample of the weights per batch:
E_q[-log p(x | f_θ(x))] + KL(q || prior) / N.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lapae.config.methods import BBBOptions
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.stateless import functional_call
from lapae.methods.base import Draws, Method, NetworkFactory, Point
from lapae.methods.step import StepContext
from lapae.methods.weights import WeightDraws, normal_draws
from lapae.networks import Autoencoder

INITIAL_DEVIATION = 0.01
"""Standard deviation of every weight before training: small compared to the weights, so that training starts as that of
a plain autoencoder."""


class BBB(Method):
    """Bayes by Backprop: `network` holds the means μ, `rho` the parameters ρ of the standard deviations."""

    network: Autoencoder
    rho: Autoencoder

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: BBBOptions, n_data: int) -> None:
        super().__init__(likelihood)
        self.network = network()
        self.rho = copy.deepcopy(self.network)
        with torch.no_grad():
            for rho in self.rho.parameters():
                rho.fill_(math.log(math.expm1(INITIAL_DEVIATION)))
        self.prior_precision = options.prior_precision
        self.n_data = n_data

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the mean negative log-likelihood at one sample of the weights, plus KL(q || prior) / N."""
        params = {}
        for name, (mean, std) in self._gaussians().items():
            eps = torch.randn(mean.shape, generator=step.generator, dtype=mean.dtype, device=mean.device)
            params[name] = mean + std * eps
        output = functional_call(self.network, params, (x,))
        return -self.likelihood.log_prob(output, x).mean() + self.kl() / self.n_data

    def kl(self) -> Tensor:
        """Return KL(q || prior), a scalar."""
        terms = [
            0.5 * (self.prior_precision * (mean.square() + std.square()) - 1).sum() - std.log().sum()
            for mean, std in self._gaussians().values()
        ]
        n_weights = sum(mean.numel() for mean in self.network.parameters())
        return torch.stack(terms).sum() - 0.5 * n_weights * math.log(self.prior_precision)

    def _gaussians(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return mean and standard deviation of every parameter."""
        rho = dict(self.rho.named_parameters())
        return {name: (mean, F.softplus(rho[name])) for name, mean in self.network.named_parameters()}

    def draw(self, seeds: Sequence[int]) -> Draws:
        gaussians = self._gaussians()
        noise = normal_draws({name: mean for name, (mean, _) in gaussians.items()}, seeds)
        return WeightDraws(self.network, {k: torch.addcmul(m, std, noise[k]) for k, (m, std) in gaussians.items()})

    def draw_mean(self) -> Draws:
        return Point(self.network)
