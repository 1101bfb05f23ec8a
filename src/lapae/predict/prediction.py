"""What a prediction is: the data that go in, the quantities that one may ask for, and the statistics that come out.

Shapes: N data, K latent dimensions; x is (N, *shape), in the model's space.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

Quantity = Literal["codes", "covariance", "outputs", "density", "error"]
QUANTITIES: tuple[Quantity, ...] = ("codes", "covariance", "outputs", "density", "error")


@runtime_checkable
class Epochs(Protocol):
    """Batches that can be gone through in order (`lapae.data.Batches`)."""

    def epoch(self, epoch: int = 0) -> Iterator[Tensor]:
        """Tensors (B, *shape)."""
        ...


Inputs = Tensor | Epochs | Iterable[Tensor]
Progress = Callable[[int], None]
NOT_ASKED: Any = None


@dataclass(frozen=True)
class Prediction:
    """What the draws say about N data, on the CPU; None for what was not asked for, whatever the types say.

    Variances are over networks (unbiased; zero for a single one). The noise of the data around a network's output is
    kept apart in `x_noise`.
    """

    n_draws: int
    """How many different networks were used."""
    z_mean: Tensor = NOT_ASKED
    """(N, K), "codes"."""
    z_var: Tensor = NOT_ASKED
    """(N, K), "codes"."""
    z_cov: Tensor = NOT_ASKED
    """(N, K, K), "covariance"."""
    x_mean: Tensor = NOT_ASKED
    """(N, *shape), "outputs": mean of the expected data."""
    x_var: Tensor = NOT_ASKED
    """(N, *shape), "outputs"."""
    x_noise: Tensor = NOT_ASKED
    """(N, *shape), "outputs": mean variance of the data given a network, learned or that of the likelihood."""
    x_learned: bool = False
    """Whether `x_noise` was learned by the method."""
    log_likelihood: Tensor = NOT_ASKED
    """(N,), "density": log of the mean over networks of p(x | network)."""
    squared_error: Tensor = NOT_ASKED
    """(N,), "error": squared error summed over features, a mean over networks (the paper's "-log p")."""
    squared_error_of_mean: Tensor = NOT_ASKED
    """(N,), "error" with "outputs": squared error of the mean reconstruction (the paper's "MSE")."""


def join(parts: Sequence[Prediction]) -> Prediction:
    """Predictions for some data after another as one."""
    joined = {}
    for field in fields(Prediction):
        values = [getattr(part, field.name) for part in parts]
        joined[field.name] = torch.cat(values) if isinstance(values[0], Tensor) else values[0]
    return Prediction(**joined)


def check_quantities(want: Collection[Quantity]) -> None:
    """ValueError where something is asked for that is no `Quantity`."""
    unknown = set(want) - set(QUANTITIES)
    if unknown:
        raise ValueError(f"cannot predict {', '.join(sorted(unknown))}: expected some of {', '.join(QUANTITIES)}")


def batches(x: Inputs, batch_size: int) -> Iterable[Tensor]:
    """The data of x in order, in tensors (B, *shape)."""
    if isinstance(x, Tensor):
        return x.split(batch_size) if len(x) else ()
    return x.epoch(0) if isinstance(x, Epochs) else x


def numpy(x: Tensor) -> np.ndarray:
    """As an array."""
    return x.detach().cpu().numpy()


def tensors(held: Any) -> dict[str, Tensor]:
    """The fields of a dataclass of tensors by name, to save: it is made from them again."""
    return {field.name: getattr(held, field.name) for field in fields(held)}


def under(name: str, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of saved tensors whose names begin with `name` and a dot, by the rest of their names."""
    return {key.removeprefix(f"{name}."): value for key, value in saved.items() if key.startswith(f"{name}.")}
