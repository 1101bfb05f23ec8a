"""What the training loop tells a method about a step, beside the data: its randomness, and its share of the batch.

Several processes may train as one. Each then has a part of every batch; weights, and the noise of weights, are the same
on all of them. A method that sums over data (a curvature) has `Step` sum over the processes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Wait = Callable[[], None]


def alone(tensors: Sequence[Tensor]) -> Wait:
    """`Step.start_sum` of one process: the sum is what the tensors hold."""
    return lambda: None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of training, a batch of validation, or the look at all data that ends training."""

    generator: torch.Generator | None = None
    """Noise of weights, the same on all processes; None is torch's global generator."""
    own: torch.Generator | None = None
    """Where several processes train: noise that differs between them."""
    share: float = 1.0
    """Part of the batch that is in this process."""
    world_size: int = 1
    """Processes that train together."""
    start_sum: Callable[[Sequence[Tensor]], Wait] = alone
    """Begins to sum tensors (of one type, on one device) over all processes, in place; the function that it returns
    waits for the sum."""

    @property
    def noise_of_data(self) -> torch.Generator | None:
        """Noise that every datum has of its own (codes of a VAE, dropout masks), where that of weights is shared."""
        return self.generator if self.own is None else self.own

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all processes, in place."""
        self.start_sum(tensors)()
