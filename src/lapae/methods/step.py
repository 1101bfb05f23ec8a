"""What the training loop tells a method about a step, beside the data: its randomness, and its share of the batch.

Several processes may train as one. Each then has a part of every batch; weights, and the noise of weights, are the same
on all of them. A method that sums over data (a curvature) has `Step` sum over the processes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lapae.data.batches import part_of

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
    common: torch.Generator | None = None
    """Where several processes train: the same on all of them, in place of torch's global generator."""
    n_batch: int | None = None
    """Samples in the batch of all processes; None: all of it is in this process."""
    rank: int = 0
    """Which of the processes this is."""
    world_size: int = 1
    """Processes that train together."""
    start_sum: Callable[[Sequence[Tensor]], Wait] = alone
    """Begins to sum tensors (of one type, on one device) over all processes, in place; the function that it returns
    waits for the sum."""

    @property
    def noise_of_data(self) -> torch.Generator | None:
        """Noise that every datum has of its own (codes of a VAE, dropout masks), where that of weights is shared."""
        return self.generator if self.own is None else self.own

    @property
    def part(self) -> tuple[int, int]:
        """First and last (exclusive) of the samples of the batch that are in this process."""
        return part_of(self.n_batch or 0, self.rank, self.world_size)

    @property
    def share(self) -> float:
        """Part of the batch that is in this process."""
        first, last = self.part
        return (last - first) / self.n_batch if self.n_batch else 1.0

    def of(self, n_batch: int) -> Step:
        """The step on a batch of so many samples, shared by all processes."""
        return replace(self, n_batch=n_batch)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers for each sample of this process, like (B, *F).

        They depend on the seed, the step and the place of a sample in the whole batch, not on who holds it: every
        process draws those of the whole batch and takes its part. That costs less than the noise of the weights, which
        every process draws too, unless the batch has more samples than the network has weights per input.
        """
        return self._drawn(torch.randn, like, self.generator)

    def uniform(self, like: Tensor) -> Tensor:
        """As `normal`, uniform from 0 to 1, from what stands for torch's global generator."""
        return self._drawn(torch.rand, like, self.common)

    def _drawn(self, draw: Callable[..., Tensor], like: Tensor, generator: torch.Generator | None) -> Tensor:
        kind: dict[str, Any] = {"dtype": like.dtype, "device": like.device, "generator": generator}
        if self.n_batch is None:
            return draw(like.shape, **kind)
        first, last = self.part
        whole = draw((self.n_batch, *like.shape[1:]), **kind)
        return whole[first:last] if last > first else torch.zeros_like(like)  # of none: the row that stands in

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all processes, in place."""
        self.start_sum(tensors)()

    def total(self, value: float, like: Tensor) -> float:
        """Sum a number over all processes, on the device of `like`."""
        sums = like.new_tensor([value], dtype=torch.float64)
        self.sum([sums])
        return float(sums)
