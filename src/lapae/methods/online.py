"""Online Laplacian autoencoder, the paper's method (section 2, "Iterative learning").

Each step draws weights θ ~ N(θ_t, H_t⁻¹), applies the gradient of the log-likelihood at θ to the mean, and adds the
curvature at θ, scaled from the batch to the whole training set, to the precision:

    H_{t+1} = (1 - α) H_t + (N / B) Σ_b J_bᵀ H_out J_b

(or another of the updates in `lapae.posterior.update`). One forward pass serves the gradient and the curvature. With
several processes, the sum over b includes all of them, by one all-reduce while the backward pass runs; for a sketch its
vectors are summed before they are squared, so that the precision is the same as with one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from lapae.config.methods import OnlineOptions
from lapae.curvature import Call, Forward
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.rules.base import NORMS
from lapae.curvature.stateless import functional_call
from lapae.errors import ConfigError
from lapae.methods.base import BatchFactory, NetworkFactory
from lapae.methods.laplace import Laplace
from lapae.methods.step import StepContext, Wait
from lapae.methods.vectors import fit_lowrank
from lapae.posterior import LowRankPrecision, update_rule

DEFAULT_FORGETTING = 1e-3


class Online(Laplace):
    """Online Laplacian autoencoder: mean by the optimiser, precision by the update rule, at sampled weights."""

    steps: Tensor

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: OnlineOptions, n_data: int) -> None:
        super().__init__(network(), likelihood, options)
        frozen = [name for name, p in self.network.named_parameters() if not p.requires_grad]
        if frozen:
            raise ConfigError(
                f"the online posterior learns every weight, but {', '.join(frozen[:3])} … have requires_grad=False: "
                "take method='posthoc', which leaves them as they are and certain"
            )
        self.samples_per_step = options.samples_per_step
        initial = {"prior": 0.0, "data": float(n_data)}  # the posterior adds the prior precision to H
        self.posterior.reset([initial[options.initial_precision] * scale for scale in self.scales])
        self.pin()
        self.n_data = n_data
        self.vectors = options.vectors
        self.hessian_every = options.hessian_every or 1
        forgetting = DEFAULT_FORGETTING if options.forgetting is None else options.forgetting
        self.rule = update_rule(options.update, forgetting).every(self.hessian_every)
        if self.rule.keep == 0 and self.known:
            raise ConfigError(f"update={options.update!r} keeps nothing of the precision, known weights included")
        self.capturable = self.hessian_every == 1 and self.form in ("diagonal", "lowrank")
        if self.hessian_every > 1:  # part of the state: an epoch may have fewer steps than that
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        norms = [layer for layer in self.network.modules() if isinstance(layer, NORMS)]
        self._norms = tuple(norms)
        self._unknown = tuple(layer for layer in norms if layer.training and layer.track_running_stats)
        self._steps: int | None = 0
        self._tapes: Sequence[Forward | Call] = []
        self._wait: Wait | None = None

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and drop the last forward pass. Batch normalisation keeps fixed statistics, because those of a
        batch would couple its samples, and then there is no curvature."""
        self._tapes = []
        super().train(mode)
        for layer in self._norms:
            layer.training = False
        return self

    @torch.no_grad()
    def begin(self, batches: BatchFactory, step: StepContext) -> None:
        """Compute the statistics of batch normalisation in one pass over the training set, with the initial weights.

        Layers that a user passed in evaluation mode keep their own.
        """
        if not self._unknown:
            return
        momenta = [layer.momentum for layer in self._unknown]
        for layer in self._unknown:
            layer.reset_running_stats()
            layer.momentum, layer.training = None, True  # the mean over all batches
        n_batches = 0
        for x in batches():
            if len(x) > 1:  # a variance takes two
                self.network(x.to(next(self.parameters()).device))
                n_batches += 1
        for layer, momentum in zip(self._unknown, momenta, strict=True):
            layer.momentum, layer.training = momentum, False
        sums = [layer.get_buffer(name) for layer in self._unknown for name in ("running_mean", "running_var")]
        for total in sums:
            total.mul_(n_batches)
        count = self.posterior.prior.new_tensor([float(n_batches)])
        step.sum([*sums, count])
        for total in sums:
            total.div_(count[0])
        if not float(count):  # no batch of two: as a new layer
            for layer in self._unknown:
                layer.reset_running_stats()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._steps = None

    def _refreshes(self) -> bool:
        """Count a step; return whether it updates the curvature. Reads the device once, after loading a state."""
        if self.hessian_every == 1:
            return True
        self._steps = (int(self.steps) if self._steps is None else self._steps) + 1
        self.steps.add_(1)
        return self._steps % self.hessian_every == 0

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the mean negative log-likelihood at sampled weights; keep the forward pass for the curvature."""
        if isinstance(self.posterior, LowRankPrecision):
            self.posterior.drop_vectors()  # those of an earlier mean: a fitted model learns on
        self._tapes = []  # before the next graph is made: one that lives on would bind it to an earlier CUDA stream
        tapes = [self.run(x, self.sample_params(step.generator)) for _ in range(self.samples_per_step)]
        losses = [-self.likelihood.log_prob(tape.output, x).mean() for tape in tapes]
        # a sketch goes back through the graph of the loss, the others do without it
        self._tapes = tapes if self.sketches else [replace(t, output=t.output.detach()) for t in tapes]
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    @torch.no_grad()
    def after_forward(self, step: StepContext) -> None:
        """Update the precision by the curvature of the step."""
        if not self._refreshes():
            return
        if self.sketches:
            self._sketch(step)
            return
        keep = self.rule.keep / step.world_size  # every process holds H_t: what they sum is keep H_t and the curvature
        for tape in self._tapes:
            gain = self.rule.gain * self.n_data * step.share / (len(tape.output) * len(self._tapes))
            self.posterior.update(keep, gain, self.curvature(tape, step.noise_of_data))
            keep = 1.0
        if step.world_size > 1:
            self._wait = step.start_sum(self.posterior.curvature_buffers())

    def _sketch(self, step: StepContext) -> None:
        """Update the precision by a sketch; with several processes, after the sum of their vectors has arrived."""
        vectors = [self.sketch(tape, step) for tape in self._tapes]  # pyright: ignore[reportArgumentType]
        gain = self.rule.gain * self.n_data / ((step.n_batch or len(self._tapes[0].output)) * len(vectors))
        wait = step.start_sum([part for vector in vectors for part in vector.values()])

        @torch.no_grad()
        def update() -> None:
            wait()
            keep = self.rule.keep
            for vector in vectors:
                self.posterior.update(keep, gain, self.squares(vector))
                keep = 1.0

        if step.world_size > 1:
            self._wait = update
        else:
            update()

    def after_backward(self, step: StepContext) -> None:
        """Wait until the precision is that of all processes."""
        if self._wait is not None:
            self._wait()
            self._wait = None

    def finish(self, batches: BatchFactory, n_data: int, step: StepContext) -> dict[str, float]:
        """Collect the vectors of a low-rank posterior at the final mean; other forms are already complete.

        The running precision is GGN / α of sampled networks on the way; vectors at the mean are the GGN itself.
        """
        if self.form != "lowrank":
            return {}
        return fit_lowrank(self, batches, n_data, step, self.vectors)

    def validate(self, x: Tensor, step: StepContext) -> dict[str, Tensor]:
        """Return the summed loss of a sampled network, as in training, and that of the mean."""
        sampled = functional_call(self.network, self.sample_params(step.generator), (x,))
        return {
            "loss": -self.likelihood.log_prob(sampled, x).sum(),
            "loss_of_mean": -self.likelihood.log_prob(self.network(x), x).sum(),
        }
