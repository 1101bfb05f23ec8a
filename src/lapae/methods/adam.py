"""Adam and the schedule that halves its rate.

torch's own optimisers import torch's compiler when they are made, and with it sympy and torch.onnx: two seconds in
every process that trains. What they compute is one call of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LEAST_CHANGE = 1e-8
"""A learning rate that would change by less is left as it is."""


class Adam:
    """Adam (Kingma & Ba 2015) by torch's fused kernel, the same numbers as `torch.optim.Adam(fused=True)`.

    Args:
        groups: each with "params" and "lr", a number or, for a step that is captured on a GPU, a tensor there.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.param_groups = list(groups)
        self.betas, self.eps = betas, eps
        self.state: dict[int, dict[str, Tensor]] = {}
        """Of each parameter that has had a gradient, by its place among all: "step", "exp_avg" and "exp_avg_sq"."""
        self._parameters: list[Tensor] = [p for group in self.param_groups for p in group["params"]]

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        first = 0
        for group in self.param_groups:
            places = [first + i for i, p in enumerate(group["params"]) if p.grad is not None]
            first += len(group["params"])
            if not places:
                continue
            held = [self._of(i) for i in places]
            lists = [[state[name] for state in held] for name in ("exp_avg", "exp_avg_sq", "step")]
            parameters = [self._parameters[i] for i in places]
            gradients = [p.grad for p in parameters]
            torch._foreach_add_(lists[2], 1)  # pyright: ignore[reportPrivateImportUsage]
            torch._fused_adam_(  # pyright: ignore
                parameters,
                gradients,  # pyright: ignore[reportArgumentType]
                lists[0],
                lists[1],
                [],
                lists[2],
                lr=group["lr"],
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=0.0,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )

    def _of(self, index: int) -> dict[str, Tensor]:
        if index not in self.state:
            p = self._parameters[index]
            step = torch.zeros((), dtype=torch.float32, device=p.device)
            self.state[index] = {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        return self.state[index]

    def load(self, state: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Continue from the state of another; ValueError where it is not that of these parameters."""
        for index, held in state.items():
            if not 0 <= index < len(self._parameters):
                raise ValueError(f"there is no parameter {index}")
            own = self._of(index)
            if held.keys() != own.keys() or any(held[name].shape != own[name].shape for name in own):
                raise ValueError(f"the optimiser's state of parameter {index} is not Adam's")
            for name, tensor in own.items():
                tensor.copy_(held[name])


@dataclass
class Plateau:
    """Halves the learning rate when the loss has not become smaller for more than `patience` epochs.

    Any smaller loss is better, as for early stopping: a relative threshold means nothing for a log-density.
    """

    optimizer: Adam
    patience: int = 5
    factor: float = 0.5
    best: float = math.inf
    num_bad_epochs: int = 0

    def step(self, loss: float) -> None:
        if loss < self.best:
            self.best, self.num_bad_epochs = loss, 0
        else:
            self.num_bad_epochs += 1
        if self.num_bad_epochs <= self.patience:
            return
        self.num_bad_epochs = 0
        for group in self.optimizer.param_groups:
            rate = float(group["lr"])
            if rate * (1 - self.factor) > LEAST_CHANGE:
                set_rate(group, rate * self.factor)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """In place where it is a tensor: a captured step reads it."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
