"""Post-hoc Laplacian autoencoder: an autoencoder at its optimum, then one pass for the curvature.

    q(θ) = N(θ*, (Σ_n J_nᵀ H_out J_n + δ I)⁻¹)

with the δ that maximises the marginal likelihood (paper, section 1.1 and appendix A; Daxberger et al. 2021).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lapae.config.methods import PostHocOptions
from lapae.curvature.likelihoods import Likelihood
from lapae.errors import ConfigError
from lapae.methods.base import BatchFactory, Method, NetworkFactory
from lapae.methods.laplace import Laplace
from lapae.methods.step import StepContext
from lapae.methods.vectors import fit_lowrank
from lapae.posterior import log_marginal_likelihood, maximise


class PostHoc(Laplace):
    """Autoencoder that is trained as a plain one; `finish` fits the posterior."""

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: PostHocOptions, n_data: int) -> None:
        super().__init__(network(), likelihood, options)
        self.vectors = options.vectors
        self.optimize_prior: Literal["scalar", "layer", "none"] = options.optimize_prior
        if self.form == "lowrank" and options.optimize_prior == "layer":
            raise ConfigError(
                "hessian='lowrank' has one prior precision for all layers, whose weights have covariances: take "
                "optimize_prior='scalar' or 'none'"
            )
        if options.pretrained is not None:
            self.network.requires_grad_(False)

    def start_from(self, source: Method) -> None:
        """Take the weights of a trained autoencoder."""
        network = getattr(source, "network", None)
        if network is None:
            raise ConfigError("expected a run of a method with one network, such as ae, to take the weights from")
        try:
            self.network.load_state_dict(network.state_dict())
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ConfigError(f"its network differs from that of this run: {reason}") from None

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the mean negative log-likelihood, as a plain autoencoder."""
        return -self.likelihood.log_prob(self.network(x), x).mean()

    @torch.no_grad()
    def finish(self, batches: BatchFactory, n_data: int, step: StepContext) -> dict[str, float]:
        """Sum the GGN over the training set once, then choose the prior precision."""
        if self.form == "lowrank":
            return fit_lowrank(self, batches, n_data, step, self.vectors, prior=self.optimize_prior != "none")
        self.posterior.reset(0.0)
        log_likelihood = 0.0
        for x in batches():
            if self.hessian == "sketch":
                log_likelihood += self._add_sketch(x, step)
            elif len(x):  # else this process has no part of a short batch
                tape = self.run_at_mean(x)
                log_likelihood += float(self.likelihood.log_prob(tape.output, x).sum())
                self.posterior.update(1.0, 1.0, self.curvature(tape))
        if step.world_size > 1:
            log_likelihood = step.total(log_likelihood, self.posterior.prior)
            if self.hessian != "sketch":
                step.sum(self.posterior.curvature_buffers())
        mean = dict(self.network.named_parameters())
        if self.optimize_prior != "none":
            maximise(mean, self.posterior, self.optimize_prior)
        report = {"log_likelihood": log_likelihood, "prior_precision": float(self.posterior.prior.mean())}
        if self.posterior.temperature == 1:
            report["log_marginal_likelihood"] = log_marginal_likelihood(log_likelihood, mean, self.posterior)
        self.pin()  # after the prior precision, which the evidence of all weights chooses
        return report

    def _add_sketch(self, x: Tensor, step: StepContext) -> float:
        """Add the sketch of a batch that processes share to the precision; return the log-likelihood of this part."""
        n = len(x)
        if step.world_size > 1:
            n_all = int(step.total(n, self.posterior.prior))
            step, x = step.of(n_all), x if n else x.new_zeros(1, *x.shape[1:])
        tape = self.run_at_mean(x)
        vector = self.sketch(tape, step)  # pyright: ignore[reportArgumentType]
        step.sum(list(vector.values()))
        self.posterior.update(1.0, 1.0, self.squares(vector))
        return float(self.likelihood.log_prob(tape.output, x).sum()) if n else 0.0
