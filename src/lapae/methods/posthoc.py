"""The post-hoc Laplacian autoencoder: an autoencoder at its optimum, then one pass for the curvature.

    q(θ) = N(θ*, (Σ_n J_nᵀ H_out J_n + δ I)⁻¹)

with δ by maximising the marginal likelihood (paper, section 1.1 and appendix A; Daxberger et al. 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapae.config import MethodConfig
from lapae.curvature.likelihoods import Likelihood
from lapae.errors import ConfigError
from lapae.methods.base import BatchFactory, NetworkFactory, register
from lapae.methods.laplace import Laplace
from lapae.posterior import log_marginal_likelihood, maximise
from lapae.train.distributed import total

PRIOR_CHOICES = ("scalar", "layer", "none")


@register("posthoc")
class PostHoc(Laplace):
    """Trains as a plain autoencoder; `finish` fits the posterior."""

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, config: MethodConfig, n_data: int) -> None:
        super().__init__(network(), likelihood, config)
        if config.optimize_prior not in PRIOR_CHOICES:
            raise ConfigError(f"optimize_prior={config.optimize_prior!r}: expected one of {', '.join(PRIOR_CHOICES)}")
        self.optimize_prior = config.optimize_prior
        if config.pretrained is not None:
            self._take(config.pretrained)

    def _take(self, run: str) -> None:
        """Weights of a trained run; they are not trained further."""
        from lapae.model import load_run

        source = load_run(run).method
        network = getattr(source, "network", None)
        if network is None:
            raise ConfigError(f"pretrained={run!r}: a run of method ae has one network to take, this one has not")
        try:
            self.network.load_state_dict(network.state_dict())
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ConfigError(f"pretrained={run!r}: its network is another than this run's: {reason}") from None
        self.network.requires_grad_(False)

    def forward(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Mean negative log-likelihood, as a plain autoencoder's."""
        return -self.likelihood.log_prob(self.network(x), x).mean()

    @torch.no_grad()
    def finish(self, batches: BatchFactory, n_data: int) -> dict[str, float]:
        """Sum the GGN over the training data once, then choose the prior precision."""
        self.posterior.reset(0.0)
        log_likelihood = 0.0
        for x in batches():
            if not len(x):  # this process's part of a short batch
                continue
            tape = self.run_at_mean(x)
            log_likelihood += float(self.likelihood.log_prob(tape.output, x).sum())
            self.posterior.update(1.0, 1.0, self.curvature(tape))
        whole = self.posterior.start_sum()
        if whole is not None:
            whole.wait()
            log_likelihood = float(total(self.posterior.prior.new_tensor(log_likelihood, dtype=torch.float64)))
        mean = dict(self.network.named_parameters())
        if self.optimize_prior != "none":
            maximise(mean, self.posterior, self.optimize_prior)  # pyright: ignore[reportArgumentType]
        report = {"log_likelihood": log_likelihood, "prior_precision": float(self.posterior.prior.mean())}
        if self.posterior.temperature == 1:
            report["log_marginal_likelihood"] = log_marginal_likelihood(log_likelihood, mean, self.posterior)
        self.pin()  # after the prior precision, which the evidence of all weights chooses
        return report
