"""Adam, and the schedule that halves its learning rate.

The constructor of `torch.optim.Adam` imports torch's compiler, and with it sympy and torch.onnx, which takes two
seconds in every process that trains. The function that it calls in each step imports nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

SMALLEST_CHANGE = 1e-8
"""A learning rate is not changed by less than this."""


class Adam:
    """Adam (Kingma & Ba 2015) by `torch.optim.adam.adam`, with the numbers of `torch.optim.Adam(fused=True)`.

    Args:
        groups: dictionaries with "params", a list of tensors, and "lr", their learning rate: a number or, for a step
            that is captured on a GPU, a tensor there. They are kept as `param_groups`.

    Attributes:
        state: {index of a parameter: {"step": (), "exp_avg": *shape, "exp_avg_sq": *shape}}, for parameters that have
            had a gradient.
    """

    def __init__(self, groups: Sequence[dict[str, Any]]) -> None:
        self.param_groups = list(groups)
        self.state: dict[int, dict[str, Tensor]] = {}
        self._parameters: list[Tensor] = [p for group in self.param_groups for p in group["params"]]

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        first = 0
        for group in self.param_groups:
            given = [(first + i, p, p.grad) for i, p in enumerate(group["params"]) if p.grad is not None]
            first += len(group["params"])
            states = [self._state_of(index) for index, _, _ in given]
            adam(
                [parameter for _, parameter, _ in given],
                [gradient for _, _, gradient in given],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=group["lr"],
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )

    def _state_of(self, index: int) -> dict[str, Tensor]:
        """Return the state of a parameter, zeros before its first step."""
        if index not in self.state:
            p = self._parameters[index]
            step = torch.zeros((), dtype=torch.float32, device=p.device)
            self.state[index] = {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        return self.state[index]

    def load(self, state: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Continue from the state of another optimiser.

        Args:
            state: as `self.state`; a ValueError says which part does not fit these parameters.
        """
        for index, held in state.items():
            if not 0 <= index < len(self._parameters):
                raise ValueError(f"there is no parameter {index}")
            own = self._state_of(index)
            if held.keys() != own.keys() or any(held[name].shape != own[name].shape for name in own):
                raise ValueError(f"the optimiser's state of parameter {index} is not Adam's")
            for name, tensor in own.items():
                tensor.copy_(held[name])


@dataclass
class Plateau:
    """Halve the learning rate after more than `patience` epochs without a smaller loss.

    Any smaller loss is an improvement, as for early stopping: a relative threshold means nothing for a log-density.
    """

    optimizer: Adam
    patience: int = 5
    factor: float = 0.5
    best: float = math.inf
    num_bad_epochs: int = 0

    def step(self, loss: float) -> None:
        """Take note of the validation loss of an epoch."""
        if loss < self.best:
            self.best, self.num_bad_epochs = loss, 0
        else:
            self.num_bad_epochs += 1
        if self.num_bad_epochs <= self.patience:
            return
        self.num_bad_epochs = 0
        for group in self.optimizer.param_groups:
            rate = float(group["lr"])
            if rate * (1 - self.factor) > SMALLEST_CHANGE:
                set_rate(group, rate * self.factor)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a parameter group; in place if it is a tensor, which a captured step reads."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
