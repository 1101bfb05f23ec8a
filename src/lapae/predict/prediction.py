"""Inputs and results of a prediction: samples, the quantities that can be requested, and their statistics.

Shapes: N samples, K latent dimensions; x is (N, *shape), in the model's space.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

Quantity = Literal["means", "codes", "covariance", "outputs", "density", "error"]
FIELDS: dict[Quantity, tuple[str, ...]] = {
    "means": ("z_mean", "x_mean"),
    "codes": ("z_mean", "z_var"),
    "covariance": ("z_cov",),
    "outputs": ("x_mean", "x_var", "x_noise"),
    "density": ("log_likelihood",),
    "error": ("squared_error", "squared_error_of_mean"),
}
"""Fields of a prediction for each requested quantity."""


@runtime_checkable
class Epochs(Protocol):
    """Batches in a fixed order (`lapae.data.Batches`)."""

    def epoch(self, epoch: int = 0) -> Iterator[Tensor]:
        """Yield tensors (B, *shape)."""
        ...


Inputs = Tensor | Epochs | Iterable[Tensor]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Prediction:
    """Statistics over draws for N samples, on the CPU. Reading what was not requested raises AttributeError.

    Variances are over networks (unbiased; zero for a single one). The noise of the data around a network's output is
    kept apart in `x_noise`.

    Attributes:
        n_draws: number of different networks used.
        values: tensors by the names of the properties below.
        x_learned: whether `x_noise` was learned by the method.
    """

    n_draws: int
    values: Mapping[str, Tensor]
    x_learned: bool = False

    def replace(self, **values: Tensor) -> Prediction:
        """Return the prediction with other values instead of its own."""
        return Prediction(self.n_draws, {**self.values, **values}, self.x_learned)

    def take(self, index: Tensor) -> Prediction:
        """Return the prediction of the samples at `index` (n,)."""
        return Prediction(self.n_draws, {name: value[index] for name, value in self.values.items()}, self.x_learned)

    def _value(self, name: str) -> Tensor:
        if name not in self.values:
            of = {field: quantity for quantity, names in FIELDS.items() for field in names}
            wanted = of.get(name, name)
            raise AttributeError(f"this prediction has no {name}: ask for {wanted!r}")
        return self.values[name]

    @property
    def z_mean(self) -> Tensor:
        """(N, K), "codes" or "means"."""
        return self._value("z_mean")

    @property
    def z_var(self) -> Tensor:
        """(N, K), "codes"."""
        return self._value("z_var")

    @property
    def z_cov(self) -> Tensor:
        """(N, K, K), "covariance"; absent if K is too large for a matrix."""
        return self._value("z_cov")

    @property
    def x_mean(self) -> Tensor:
        """(N, *shape), "outputs" or "means": mean of the expected sample."""
        return self._value("x_mean")

    @property
    def x_var(self) -> Tensor:
        """(N, *shape), "outputs"."""
        return self._value("x_var")

    @property
    def x_noise(self) -> Tensor:
        """(N, *shape), "outputs": mean variance of the data given a network, learned or that of the likelihood."""
        return self._value("x_noise")

    @property
    def log_likelihood(self) -> Tensor:
        """(N,), "density": log of the mean over networks of p(x | network)."""
        return self._value("log_likelihood")

    @property
    def squared_error(self) -> Tensor:
        """(N,), "error": squared error summed over features, a mean over networks (the paper's "-log p")."""
        return self._value("squared_error")

    @property
    def squared_error_of_mean(self) -> Tensor:
        """(N,), "error" with "outputs": squared error of the mean reconstruction (the paper's "MSE")."""
        return self._value("squared_error_of_mean")


def join(parts: Sequence[Prediction]) -> Prediction:
    """Join predictions of consecutive samples."""
    first = parts[0]
    joined = {name: torch.cat([part.values[name] for part in parts]) for name in first.values}
    return Prediction(first.n_draws, joined, first.x_learned)


def check_quantities(want: Collection[Quantity]) -> None:
    """Raise ValueError if something is requested that is not a `Quantity`."""
    unknown = set(want) - set(FIELDS)
    if unknown:
        raise ValueError(f"cannot predict {', '.join(sorted(unknown))}: expected some of {', '.join(FIELDS)}")


def batches(x: Inputs, batch_size: int) -> Iterable[Tensor]:
    """Return the samples of x in order, in tensors (B, *shape)."""
    if isinstance(x, Tensor):
        return x.split(batch_size) if len(x) else ()
    return x.epoch(0) if isinstance(x, Epochs) else x


def numpy(x: Tensor) -> np.ndarray:
    """Return a tensor as an array."""
    return x.detach().cpu().numpy()
