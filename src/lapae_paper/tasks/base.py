"""Helpers of the paper's tasks: samples of a split in the model's space."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lapae.data import Batches, Split
from lapae.errors import ConfigError
from lapae.model import Model
from lapae.space import Space


def device(model: Model) -> torch.device:
    """Return the device of the model's weights."""
    return next(model.method.parameters()).device


def tensor(model: Model, split: Split, index: np.ndarray, space: Space | None = None) -> Tensor:
    """Return the samples `index` (n,) of a split in the model's space: (n, *model_shape) on the CPU.

    `space` is that of the data, by default the model's.
    """
    return torch.from_numpy(np.ascontiguousarray((space or model.space).convert(np.asarray(split.x[index]))))


def batches(
    model: Model,
    split: Split,
    limit: int | None,
    seed: int = 0,
    space: Space | None = None,
) -> Batches | Tensor:
    """Return the samples of a split in the model's space, or at most `limit` of them, chosen at random by a seed.

    `space` is that of the data, by default the model's.
    """
    from lapae.data import Batches

    if limit is not None and limit < len(split.x):
        return tensor(model, split, split.some(limit, seed), space)
    return Batches(split.x, space or model.space, 512, device=device(model))


def labels(split: Split, what: str) -> np.ndarray:
    """Return the labels of a split; an error that names the task if there are none."""
    if split.y is None:
        raise ConfigError(f"{what} needs labelled data, and these have no labels")
    return np.asarray(split.y)


def size(x: Tensor | Batches) -> int:
    """Return the number of samples of a tensor or of batches."""
    return len(x) if isinstance(x, Tensor) else x.n_data
