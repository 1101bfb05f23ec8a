"""Everything that is fitted once, at the selected weights: the noise of each feature and a post-hoc posterior."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from lapae.config import TrainConfig
from lapae.data import Batches
from lapae.methods import Method
from lapae.methods.seeds import seed_all
from lapae.train.distributed import rank, together, world_size
from lapae.train.held_out import HeldOut


@dataclass(frozen=True)
class Finished:
    """Final numbers of training."""

    report: dict[str, float]
    """What `Method.finish` reported."""
    explained: float | None
    """Share of the variance of held-out samples that their reconstructions explain: 0 or less is no better than their
    mean. None if they do not vary."""


def finish(
    method: Method,
    batches: Batches,
    options: TrainConfig,
    held_out: HeldOut,
    refit: Callable[[Method], None] | None = None,
) -> Finished:
    """Fit what depends on the final weights of a method.

    Args:
        method: at its final weights.
        batches: batches of the training set.
        options: epochs and seed.
        held_out: the samples that the noise is fitted to.
        refit: changes the weights once more, after the held-out samples have been used; the posterior is that of these
            weights.

    Returns:
        What the method reports, and the share of variance explained. A warning says if it is none.
    """
    numbers: Any = options.filled()
    held_out.set_noise(method, per_feature=True)
    error = held_out.error(method)
    explained = held_out.explained(error)
    if refit is not None:
        refit(method)
    method.eval()
    common = torch.Generator(held_out.device) if world_size() > 1 else None
    seed_all(numbers.seed, "finish", common=common, rank=rank())
    report = method.finish(batches.every, batches.n_data, replace(together(), generator=common))
    if explained is not None and explained <= 0 and rank() == 0:
        advice = "nothing was learned. Try a smaller learning_rate or more epochs"
        if numbers.epochs == 0:
            advice = "the network is of other data, or X is in other units than it was trained on; it gets X as it is"
        warnings.warn(
            f"held-out samples are reconstructed no better than by their mean (squared error {error:.4g}, of the mean "
            f"{held_out.variance:.4g}): {advice}",
            stacklevel=2,
        )
    return Finished(report, explained)
