"""Deep ensemble of autoencoders (Lakshminarayanan et al. 2017), whose members are trained together.

Members share an architecture and differ in their initialisation. Their parameters are stacked, (members, *shape) under
the names of one network, so that a step of the whole ensemble is one batched pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lapae.config.methods import EnsembleOptions
from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import Draws, Method, NetworkFactory
from lapae.methods.step import StepContext
from lapae.methods.weights import WeightDraws


class Ensemble(Method):
    """Ensemble whose loss is the sum of the members' losses, so each member has the same gradient as if trained
    alone."""

    shared_codes = False

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: EnsembleOptions, n_data: int) -> None:
        super().__init__(likelihood)
        self.members = self.distinct_draws = options.members
        networks = [network() for _ in range(options.members)]
        self.network = networks[0]
        states = [dict(member.named_parameters()) | dict(member.named_buffers()) for member in networks]
        for name, value in states[0].items():
            # Not torch.stack: where tensors have shapes alone, as on loading, it imports torch's compiler for seconds.
            stack = value.detach().new_empty((options.members, *value.shape))
            for i, state in enumerate(states):
                stack[i] = state[name].detach()
            owner, _, key = name.rpartition(".")
            put = nn.Parameter(stack) if isinstance(value, nn.Parameter) else stack
            setattr(self.network.get_submodule(owner), key, put)

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the sum over members of the mean negative log-likelihood."""
        return self._losses(x).sum(0).mean()

    def validate(self, x: Tensor, step: StepContext) -> dict[str, Tensor]:
        """Return the mean over members of the loss, to compare with methods of one network."""
        return {"loss": self._losses(x).mean(0).sum()}

    def _losses(self, x: Tensor) -> Tensor:
        draws = self.draw(range(self.members))
        return -self.likelihood.log_prob(draws.decode(draws.encode(x[None])).loc, x)

    def draw(self, seeds: Sequence[int]) -> Draws:
        """Return member s modulo the number of members for seed s."""
        state = dict(self.network.named_parameters()) | dict(self.network.named_buffers())
        index = [seed % self.members for seed in seeds]
        if index != list(range(self.members)):
            state = {name: value[index] for name, value in state.items()}
        return WeightDraws(self.network, state)

    def draw_mean(self) -> Draws:
        """Return the first member: the mean of the weights of different members is not a useful network."""
        return self.draw([0])
