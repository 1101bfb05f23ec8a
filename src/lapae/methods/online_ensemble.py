"""An ensemble of online Laplacian autoencoders: several modes of the posterior, each with a width of its own.

A Laplace approximation knows the surroundings of one optimum, an ensemble knows several optima and nothing around them.
Members differ in their initial weights and in the weights that are drawn in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from lapae.config.methods import OnlineEnsembleOptions, OnlineOptions
from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import BatchFactory, Draws, Method, NetworkFactory
from lapae.methods.online import Online
from lapae.methods.step import Step
from lapae.methods.weights import WeightDraws


class OnlineEnsemble(Method):
    """The sum of the members' losses: the gradient of a member is the one it would have alone."""

    shared_codes = False
    capturable = False  # members take their turns

    def __init__(
        self, network: NetworkFactory, likelihood: Likelihood, options: OnlineEnsembleOptions, n_data: int
    ) -> None:
        super().__init__(likelihood)
        own = OnlineOptions(**{field.name: getattr(options, field.name) for field in fields(OnlineOptions)})
        self.members = nn.ModuleList(Online(network, likelihood, own, n_data) for _ in range(options.members))

    @property
    def temperature(self) -> float:
        """Of all members."""
        return self._online(0).temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        for i in range(len(self.members)):
            self._online(i).temperature = value

    def _online(self, i: int) -> Online:
        """A member, with the noise that all have learned together."""
        member: Any = self.members[i]
        member._likelihood = self.likelihood
        return member

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Sum over members of the mean negative log-likelihood at sampled weights."""
        return torch.stack([self._online(i)(x, step) for i in range(len(self.members))]).sum()

    def after_forward(self, step: Step) -> None:
        """Let the curvature of the step into the precisions."""
        for i in range(len(self.members)):
            self._online(i).after_forward(step)

    def after_backward(self, step: Step) -> None:
        for i in range(len(self.members)):
            self._online(i).after_backward(step)

    def validate(self, x: Tensor, step: Step) -> dict[str, Tensor]:
        """The mean member's, to compare with methods of one network."""
        found = [self._online(i).validate(x, step) for i in range(len(self.members))]
        return {name: torch.stack([one[name] for one in found]).mean(0) for name in found[0]}

    def finish(self, batches: BatchFactory, n_data: int, step: Step) -> dict[str, float]:
        for i in range(len(self.members)):
            self._online(i).finish(batches, n_data, step)
        return {}

    def draw(self, seeds: Sequence[int]) -> Draws:
        """Seed s draws from the posterior of member s modulo their number."""
        n = len(self.members)
        parts = [[place for place, seed in enumerate(seeds) if seed % n == i] for i in range(n)]
        drawn = [self._online(i).draw_params([seeds[p] for p in part]) for i, part in enumerate(parts) if part]
        back = torch.tensor([place for part in parts for place in part]).argsort()
        stacked = {name: torch.cat([one[name] for one in drawn])[back] for name in drawn[0]}
        return WeightDraws(self._online(0).network, stacked)

    def draw_mean(self) -> Draws:
        """The first member's mean: weights of different members do not average to a network."""
        return self._online(0).draw_mean()
