"""What tasks have in common: data of a split in the model's space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lapae.errors import ConfigError

if TYPE_CHECKING:
    from lapae.data import Batches, Split
    from lapae.model import Model
    from lapae.space import Space


def device(model: Model) -> torch.device:
    """Where the model's weights are."""
    return next(model.method.parameters()).device


def subset(split: Split, limit: int | None, seed: int = 0) -> np.ndarray:
    """Sorted indices of at most `limit` data of a split, at random."""
    n = len(split.x)
    if limit is None or limit >= n:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, limit, replace=False))


def tensor(model: Model, split: Split, index: np.ndarray, space: Space | None = None) -> Tensor:
    """The data `index` of a split, of the model's `space` or another, in the model: (n, *shape) on the CPU."""
    return torch.from_numpy(np.ascontiguousarray((space or model.space).convert(np.asarray(split.x[index]))))


def batches(
    model: Model,
    split: Split,
    limit: int | None,
    seed: int = 0,
    batch_size: int = 512,
    space: Space | None = None,
) -> Batches | Tensor:
    """The data of a split in the model's space.

    Args:
        model: the trained model.
        split: of a data set.
        limit: at most so many, at random.
        seed: of that choice.
        batch_size: of the batches.
        space: of the data, where it is another than the model's.
    """
    from lapae.data import Batches

    if limit is not None and limit < len(split.x):
        return tensor(model, split, subset(split, limit, seed), space)
    return Batches(split.x, space or model.space, batch_size, device=device(model))


def labels(split: Split, what: str) -> np.ndarray:
    """The labels of a split; an error that names the task where there are none."""
    if split.y is None:
        raise ConfigError(f"{what} needs labelled data, and these have no labels")
    return np.asarray(split.y)


def size(x: Tensor | Batches) -> int:
    """Number of data of a tensor or of batches."""
    return len(x) if isinstance(x, Tensor) else x.n_data
