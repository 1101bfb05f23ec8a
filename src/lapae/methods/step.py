"""Context of a training step: the random generators of a method, and this process's share of the batch.

Several processes may train as one. Each then has a part of every batch; weights, and the noise of weights, are equal on
all of them. A method that sums over samples (a curvature) lets the context sum over processes as well.
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
    """Sum tensors over one process, which leaves them as they are."""
    return lambda: None


@dataclass(frozen=True, slots=True)
class StepContext:
    """Context of a training step, of a validation batch, or of the pass over the training set that ends training."""

    generator: torch.Generator | None = None
    """Draws the noise of weights, equal on all processes; None: torch's global generator."""
    own: torch.Generator | None = None
    """With several processes: draws noise that differs between them."""
    common: torch.Generator | None = None
    """With several processes: equal on all of them, in place of torch's global generator."""
    n_batch: int | None = None
    """Size of the batch over all processes; None: all of it is in this process."""
    rank: int = 0
    """Rank of this process."""
    world_size: int = 1
    """Number of processes that train together."""
    start_sum: Callable[[Sequence[Tensor]], Wait] = alone
    """Begins to sum tensors (of one type, on one device) over all processes, in place; returns a function that waits
    for the sum."""

    @property
    def noise_of_data(self) -> torch.Generator | None:
        """Generator of noise that each sample has of its own (codes of a VAE, dropout masks)."""
        return self.generator if self.own is None else self.own

    @property
    def part(self) -> tuple[int, int]:
        """First and last (exclusive) index of the samples of the batch that are in this process."""
        return part_of(self.n_batch or 0, self.rank, self.world_size)

    @property
    def share(self) -> float:
        """Share of the batch that is in this process."""
        first, last = self.part
        return (last - first) / self.n_batch if self.n_batch else 1.0

    def of(self, n_batch: int) -> StepContext:
        """Return the context of a batch of `n_batch` samples that all processes share."""
        return replace(self, n_batch=n_batch)

    def normal(self, like: Tensor) -> Tensor:
        """Draw standard normal numbers for each sample of this process.

        They depend on the seed, the step and the index of a sample in the whole batch, not on its process: every
        process draws those of the whole batch and takes its part. That costs less than the noise of the weights, which
        every process draws too, unless the batch has more samples than the network has weights per input.

        Args:
            like: tensor (B, *F) with the shape, type and device of the result.
        """
        return self._drawn(torch.randn, like, self.generator)

    def uniform(self, like: Tensor) -> Tensor:
        """Draw uniform numbers from 0 to 1 like (B, *F), as `normal`, from `common` or torch's global generator."""
        return self._drawn(torch.rand, like, self.common)

    def _drawn(self, draw: Callable[..., Tensor], like: Tensor, generator: torch.Generator | None) -> Tensor:
        kind: dict[str, Any] = {"dtype": like.dtype, "device": like.device, "generator": generator}
        if self.n_batch is None:
            return draw(like.shape, **kind)
        first, last = self.part
        whole = draw((self.n_batch, *like.shape[1:]), **kind)
        return whole[first:last] if last > first else torch.zeros_like(like)  # without samples: one row of zeros

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all processes, in place."""
        self.start_sum(tensors)()

    def total(self, value: float, like: Tensor) -> float:
        """Sum a number over all processes, on the device of `like`."""
        sums = like.new_tensor([value], dtype=torch.float64)
        self.sum([sums])
        return float(sums)
