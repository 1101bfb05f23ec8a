"""The precision of a Gaussian over the weights: (H + δ I) / T, with H the curvature of the data.

H is kept as a diagonal, as a block per layer, as Kronecker factors per weight, or as a diagonal and vectors over all
weights (lowrank.py). The four classes have the same methods.
All vectors are flat, (…, P), over the parameters in the order of `shapes`. δ > 0 is the prior precision, one number per
parameter tensor; T is the temperature. Every H is positive semi-definite by construction (sums of squares), so that the
precision is positive whatever happens in float32.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lapae.errors import ConfigError

Shapes = dict[str, torch.Size]

_TINY = 1e-18
"""Prior precisions and temperatures lie between this and its inverse: then δ / T and T / δ are float32 numbers."""


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors; NaN for a matrix that has none, so that the loss shows the divergence."""
    try:
        return torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        return torch.full_like(matrix[0], math.nan), torch.full_like(matrix, math.nan)


class Precision(nn.Module):
    """Precision of a Gaussian over the weights: the methods that all forms share. Its buffers are saved in checkpoints.

    Args:
        shapes: of the parameters, by name.
        prior_precision: δ, one number for all parameters.
        temperature: T.
    """

    prior: Tensor

    def __init__(self, shapes: Mapping[str, torch.Size], prior_precision: float, temperature: float = 1.0) -> None:
        super().__init__()
        for name, value in (("prior_precision", prior_precision), ("temperature", temperature)):
            if not _TINY <= value <= 1 / _TINY:
                raise ConfigError(f"{name}={value!r}: expected a number between {_TINY:g} and {1 / _TINY:g}")
        self.shapes: Shapes = dict(shapes)
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        self.temperature = temperature
        self.register_buffer("prior", torch.full((len(self.shapes),), float(prior_precision)))
        self._uniform: tuple[float | None] | None = None
        self._flat: Tensor | None = None

    @property
    def n_weights(self) -> int:
        return sum(self.sizes)

    def set_prior(self, delta: float | Sequence[float] | Tensor) -> None:
        """Change δ: one number for all, or one for each parameter tensor."""
        numbers = self._each(delta.tolist() if isinstance(delta, Tensor) else delta)
        if not all(_TINY <= number <= 1 / _TINY for number in numbers):
            raise ConfigError(f"prior_precision={delta}: expected numbers between {_TINY:g} and {1 / _TINY:g}")
        self.prior.copy_(torch.tensor(numbers, dtype=self.prior.dtype))
        self._forget()

    def uniform_prior(self) -> float | None:
        """Return δ if all weights have the same, otherwise None. Kept once read: reading it waits for the device."""
        if self._uniform is None:
            values = self.prior.tolist()
            self._uniform = (values[0] if len(set(values)) == 1 else None,)
        return self._uniform[0]

    def flat_prior(self) -> Tensor:
        """Return δ for every weight, (P,). Kept once computed: computing it waits for the device."""
        if self._flat is None:
            self._flat = self.prior.repeat_interleave(torch.tensor(self.sizes, device=self.prior.device))
        return self._flat

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._forget()

    def _apply(self, *args: Any, **kwargs: Any) -> Precision:
        self._forget()  # of another type, or on another device
        return super()._apply(*args, **kwargs)

    def _forget(self) -> None:
        """Drop what was derived from the buffers and kept."""
        self._uniform = self._flat = None

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Split a flat tensor (…, P) into {name: (…, *shape)}, as views."""
        parts = flat.split(self.sizes, dim=-1)
        return {
            name: part.reshape((*flat.shape[:-1], *shape))
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def join(self, params: Mapping[str, Tensor]) -> Tensor:
        """Join {name: *shape} into one flat tensor (P,)."""
        return torch.cat([params[name].detach().reshape(-1) for name in self.shapes])

    @abstractmethod
    def reset(self, value: float | Sequence[float]) -> None:
        """Set H = value I, with one value for all parameter tensors or one for each."""

    def _each(self, value: float | Sequence[float]) -> list[float]:
        """Return one value for each parameter tensor."""
        return list(value) if isinstance(value, Sequence) else [value] * len(self.shapes)

    @abstractmethod
    def update(self, keep: float, gain: float | Tensor, curvature: Any) -> None:
        """Set H = keep H + gain curvature.

        Args:
            keep: factor of the old H.
            gain: factor of the new curvature.
            curvature: what `lapae.curvature` returns for this form.
        """

    def curvature_buffers(self) -> list[Tensor]:
        """Return the tensors that hold H. It is linear in them: those of processes that share the data add up."""
        return [buffer for name, buffer in self.named_buffers() if name != "prior"]

    @abstractmethod
    def scale_noise(self, eps: Tensor) -> Tensor:
        """Return precision^(-1/2) eps with the symmetric root, (…, P) for eps (…, P)."""

    @abstractmethod
    def whiten(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return precision^(-1/2) g up to a rotation; its squared length is the variance gᵀ precision⁻¹ g.

        Args:
            gradients: of the parameters of one layer, {parameter name: (…, n)}.

        Returns:
            (…, total n).
        """

    @abstractmethod
    def quadratic(self, delta: Tensor) -> Tensor:
        """Return deltaᵀ precision delta, (…) for delta (…, P)."""

    @abstractmethod
    def eigenvalues(self) -> dict[str, Tensor]:
        """Return the eigenvalues of H, {parameter or layer name: (n,)}; δ shifts them."""

    def prior_of(self, name: str) -> Tensor:
        """Return δ of a parameter."""
        return self.prior[list(self.shapes).index(name)]

    def log_det(self) -> Tensor:
        """Return the log-determinant of the precision."""
        terms = [(values + self.prior_of(name)).double().log().sum() for name, values in self.eigenvalues().items()]
        return torch.stack(terms).sum() - self.n_weights * math.log(self.temperature)


class RunningDiagonal(Precision):
    """A diagonal H that is updated: the state of the diagonal form, and of the low-rank one during training."""

    h: Tensor

    def __init__(self, shapes: Mapping[str, torch.Size], prior_precision: float, temperature: float = 1.0) -> None:
        super().__init__(shapes, prior_precision, temperature)
        self.register_buffer("h", torch.zeros(self.n_weights))

    def reset(self, value: float | Sequence[float]) -> None:
        for part, number in zip(self.split(self.h).values(), self._each(value), strict=True):
            part.fill_(number)

    def update(self, keep: float, gain: float | Tensor, curvature: Mapping[str, Tensor]) -> None:
        self.h.mul_(keep)
        new = [curvature[name] for name in self.shapes]
        if isinstance(gain, Tensor):
            new = torch._foreach_mul(new, gain)  # pyright: ignore[reportPrivateImportUsage]
            gain = 1.0
        parts = list(self.split(self.h).values())
        torch._foreach_add_(parts, new, alpha=gain)  # pyright: ignore[reportPrivateImportUsage]

    def pin(self, names: Collection[str]) -> None:
        """Treat weights as known: their H is infinite, and stays infinite through updates that keep a share of it."""
        for name, part in self.split(self.h).items():
            if name in names:
                part.fill_(math.inf)


class DiagonalPrecision(RunningDiagonal):
    """H as a diagonal: the paper's form."""

    def diagonal(self) -> Tensor:
        """Return the precision itself, (P,)."""
        prior = self.uniform_prior()
        return (self.h + (self.flat_prior() if prior is None else prior)).div_(self.temperature)

    def scale_noise(self, eps: Tensor) -> Tensor:
        deviation = self.diagonal().rsqrt_()
        return deviation.mul_(eps) if eps.ndim == 1 else deviation * eps

    def whiten(self, gradients: Mapping[str, Tensor]) -> Tensor:
        precision = self.split(self.diagonal())
        return torch.cat([g * precision[name].reshape(-1).rsqrt() for name, g in gradients.items()], dim=-1)

    def quadratic(self, delta: Tensor) -> Tensor:
        """Return Σ precision delta²."""
        return (self.diagonal() * delta.square()).sum(-1)

    def eigenvalues(self) -> dict[str, Tensor]:
        """Return the diagonal, by parameter."""
        return {name: part.reshape(-1) for name, part in self.split(self.h).items()}
