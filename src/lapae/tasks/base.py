"""What tasks have in common: options, a result, and the table that the command line reads.

A task is a module with a function `run(method, ...) -> Result` on tensors and batches in the model's space. The
function registered under its name takes a trained model and a data set instead, and options whose docstrings are the
help of the command line:

    @task("mine", MyOptions)
    def _mine(model, data, options): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lapae.curvature.likelihoods import Likelihood
from lapae.errors import ConfigError
from lapae.methods.base import Method
from lapae.runs.results import Result

if TYPE_CHECKING:
    from lapae.data import Batches, Data, Split
    from lapae.space import Space


class Model(Protocol):
    """What tasks ask of a trained model."""

    @property
    def method(self) -> Method:
        """The method with its best weights."""
        ...

    @property
    def space(self) -> Space:
        """What its data are."""
        ...

    @property
    def likelihood(self) -> Likelihood:
        """Its likelihood."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a datum."""
        ...


@dataclass(frozen=True)
class Task:
    """An entry of the table of tasks."""

    name: str
    options: type
    """A frozen dataclass with a default for every field."""
    run: Callable[..., Result]
    """(model, data, options) -> result."""


TASKS: dict[str, Task] = {}


def task(name: str, options: type) -> Callable:
    """Enter a function (model, data, options) -> result into the table."""

    def add(function: Callable[..., Result]) -> Callable[..., Result]:
        TASKS[name] = Task(name, options, function)
        return function

    return add


def run_task(name: str, model: Model, data: Data, options: Any = None) -> Result:
    """Run the task `name` on a trained model and data; `options` is its dataclass, a mapping of fields, or None."""
    if name not in TASKS:
        raise ConfigError(f"unknown task {name!r}: expected one of {', '.join(TASKS)}")
    entry = TASKS[name]
    if options is None or isinstance(options, Mapping):
        options = entry.options(**(options or {}))
    if not isinstance(options, entry.options):
        raise TypeError(f"task {name!r} takes {entry.options.__name__}, got {type(options).__name__}")
    if tuple(data.shape) != tuple(model.shape):
        raise ConfigError(f"the model was trained on data of shape {tuple(model.shape)}, got {tuple(data.shape)}")
    return entry.run(model, data, options)


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
    """The data of a split, of the model's `space` or another, or at most `limit` of them, in the model."""
    from lapae.data import Batches

    if limit is not None and limit < len(split.x):
        return tensor(model, split, subset(split, limit, seed), space)
    return Batches(split.x, space or model.space, batch_size, device=device(model))


def labels(split: Split, what: str) -> np.ndarray:
    """The labels of a split; an error that names the task where there are none."""
    if split.y is None:
        raise ConfigError(f"{what} needs labelled data, and these have no labels")
    return np.asarray(split.y)


def size(x: Any) -> int:
    """Number of data of a tensor or of batches; 0 where it is not known."""
    return int(getattr(x, "n_data", 0)) if not isinstance(x, Tensor) else len(x)
