"""A posterior like that of Noisy Adam (Zhang et al. 2018; paper, appendix C), for comparison with the online one.

Where the online posterior takes the diagonal of the GGN, this takes what Adam calls the second moment: the square of
the mean gradient of a batch at the sampled weights,

    H_{t+1} = (1 - α) H_t + α N g²

so that it costs nothing beyond the gradient. Without Adam's square root, as in their Algorithm 1; the mean is trained
by the same Adam as all other methods here.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.stateless import functional_call
from lapae.errors import ConfigError
from lapae.methods.base import NetworkFactory
from lapae.methods.laplace import Laplace
from lapae.methods.step import StepContext
from lapae.posterior import DiagonalPrecision, update_rule
from lapae_paper.variants import NoisyAdamOptions


class NoisyAdam(Laplace):
    """Mean by the optimiser, precision by squared gradients, one weight sample per step."""

    posterior: DiagonalPrecision

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: NoisyAdamOptions, n_data: int) -> None:
        super().__init__(network(), likelihood, options)
        if self.form != "diagonal":
            raise ConfigError(f"squared gradients make a diagonal precision, hessian {options.hessian!r} does not")
        self.posterior.reset(float(n_data))
        self.rule, self.n_data = update_rule("nng", options.forgetting), n_data
        for name, parameter in self.network.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(self._take, name))

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the mean negative log-likelihood at sampled weights."""
        output = functional_call(self.network, self.sample_params(step.generator), (x,))
        return -self.likelihood.log_prob(output, x).mean()

    @torch.no_grad()
    def _take(self, name: str, parameter: Tensor) -> None:
        """Add the gradient of a parameter, which backward has just computed, to the precision."""
        assert parameter.grad is not None
        h = self.posterior.split(self.posterior.h)[name]
        h.mul_(self.rule.keep).addcmul_(parameter.grad, parameter.grad, value=self.rule.gain * self.n_data)
