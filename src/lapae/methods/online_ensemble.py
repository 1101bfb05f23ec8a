"""Ensemble of online Laplacian autoencoders: several modes of the posterior, each with its own width.

A Laplace approximation describes the surroundings of one optimum; an ensemble has several optima without their
surroundings. Members differ in their initial weights and in the weights that are drawn in training.
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
from lapae.methods.step import StepContext
from lapae.methods.weights import WeightDraws


class OnlineEnsemble(Method):
    """Ensemble whose loss is the sum of the members' losses, so each member has the same gradient as if trained
    alone."""

    shared_codes = False
    capturable = False  # members take their turns

    def __init__(
        self, network: NetworkFactory, likelihood: Likelihood, options: OnlineEnsembleOptions, n_data: int
    ) -> None:
        super().__init__(likelihood)
        own = OnlineOptions(**{field.name: getattr(options, field.name) for field in fields(OnlineOptions)})
        self.members = nn.ModuleList(Online(network, likelihood, own, n_data) for _ in range(options.members))

    @property
    def _online(self) -> list[Any]:
        """Return the members, with the noise that they learned together."""
        for member in self.members:
            member._likelihood = self.likelihood  # pyright: ignore[reportArgumentType]
        return list(self.members)

    @property
    def temperature(self) -> float:
        """Temperature of all members."""
        return self._online[0].temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        for member in self._online:
            member.temperature = value

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the sum over members of the mean negative log-likelihood at sampled weights."""
        return torch.stack([member(x, step) for member in self._online]).sum()

    def begin(self, batches: BatchFactory, step: StepContext) -> None:
        for member in self._online:
            member.begin(batches, step)

    def after_forward(self, step: StepContext) -> None:
        for member in self._online:
            member.after_forward(step)

    def after_backward(self, step: StepContext) -> None:
        for member in self._online:
            member.after_backward(step)

    def finish(self, batches: BatchFactory, n_data: int, step: StepContext) -> dict[str, float]:
        """Finish the members; return what the last one reports."""
        return [member.finish(batches, n_data, step) for member in self._online][-1]

    def validate(self, x: Tensor, step: StepContext) -> dict[str, Tensor]:
        """Return means over members, to compare with methods of one network."""
        found = [member.validate(x, step) for member in self._online]
        return {name: torch.stack([one[name] for one in found]).mean(0) for name in found[0]}

    def draw(self, seeds: Sequence[int]) -> Draws:
        """Draw from the posterior of member s modulo the number of members for seed s."""
        members = self._online
        turns = [[place for place, seed in enumerate(seeds) if seed % len(members) == i] for i in range(len(members))]
        drawn = [
            member.draw_params([seeds[p] for p in turn]) for member, turn in zip(members, turns, strict=True) if turn
        ]
        back = torch.tensor([place for turn in turns for place in turn]).argsort()
        stacked = {name: torch.cat([one[name] for one in drawn])[back] for name in drawn[0]}
        return WeightDraws(members[0].network, stacked)

    def draw_mean(self) -> Draws:
        """Return the mean of the first member: the mean over different members is not a useful network."""
        return self._online[0].draw_mean()
