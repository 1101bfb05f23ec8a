"""Columns of different kinds: each span of a flat feature axis has its own likelihood."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lapae.curvature.likelihoods.base import Likelihood, likelihood, register
from lapae.curvature.likelihoods.discrete import Categorical


@register("mixed")
@dataclass(frozen=True, eq=False)
class Mixed(Likelihood):
    """Independent parts over the features of (B, D), in their order and without gaps.

        Mixed((("gaussian", 0, 3), (Gaussian([0.1, 0.5]), 3, 5), ("bernoulli", 5, 6), ("categorical", 6, 10)))

    A categorical part is one variable, one-hot over its span; where it is missing, all of its span is NaN.
    """

    parts: Any = ()
    """(likelihood or its name, start, stop) for each span."""
    missing: bool = field(default=False, repr=False)

    takes_missing = True

    def __post_init__(self) -> None:
        parts = tuple((likelihood(which), int(start), int(stop)) for which, start, stop in self.parts)
        place = 0
        for _, start, stop in parts:
            if start != place or stop <= start:
                raise ValueError(f"Mixed: expected spans without gaps, got one from {start} to {stop} at {place}")
            place = stop
        if not parts:
            raise ValueError("Mixed: expected at least one part")
        object.__setattr__(self, "parts", parts)

    @property
    def n_features(self) -> int:
        return self.parts[-1][2]

    @property
    def diagonal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(which.diagonal for which, _, _ in self.parts)

    @property
    def exponential(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(which.exponential for which, _, _ in self.parts)

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        bounds = [torch.tensor(which.support).expand(stop - start, 2) for which, start, stop in self.parts]
        low, high = torch.cat(bounds).unbind(1)
        return low, high

    def log_prob_elements(self, output: Tensor, target: Tensor) -> Tensor:
        """Return log densities part by part; that of a category is at its observed class."""
        return self._each("log_prob_elements", output, target)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        terms = [which.log_prob(*slices) for which, slices in self._slices(output, target)]
        return torch.stack(terms).sum(0)

    def mean(self, output: Tensor) -> Tensor:
        return self._each("mean", output)

    def variance(self, output: Tensor) -> Tensor:
        return self._each("variance", output)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.cat([which.sample(part, generator) for which, (part,) in self._slices(output)], -1)

    def residual(self, output: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return noise part by part; a category has one number, at each of its classes."""
        parts = self._slices(output, target)
        return torch.cat([which.residual(part, values, generator) for which, (part, values) in parts], -1)

    def at_residual(self, output: Tensor, residual: Tensor) -> Tensor:
        return self._each("at_residual", output, residual)

    def hessian_diag(self, output: Tensor) -> Tensor:
        """Return the diagonal part by part, (B, D)."""
        parts = [which.hessian_diag(part) for which, (part,) in self._slices(output)]
        n_batch = max(map(len, parts))
        return torch.cat([part.expand(n_batch, -1) for part in parts], -1)

    def hessian_product(self, output: Tensor, t: Tensor) -> Tensor:
        return self._each("hessian_product", output, t)

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        return self._each("hessian_factor", output, eps)

    def tangent_of_mean(self, output: Tensor, t: Tensor) -> Tensor:
        return self._each("tangent_of_mean", output, t)

    def variance_of_mean(self, output: Tensor, variance: Tensor) -> Tensor:
        return self._each("variance_of_mean", output, variance)

    @property
    def noisy(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(which.noisy for which, _, _ in self.parts)

    def with_noise(self, sigma: Tensor) -> Mixed:
        """Return the likelihood with noise part by part, for sigma (D,)."""
        other = object.__new__(Mixed)
        parts = tuple((which.with_noise(sigma[..., a:b]), a, b) for which, a, b in self.parts)
        vars(other).update(vars(self) | {"parts": parts})
        return other

    @property
    def reweights(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(which.reweights for which, _, _ in self.parts)

    def noise_weights(self, square: Tensor) -> Tensor:
        """Return weights part by part."""
        return self._each("noise_weights", square)

    def for_missing(self) -> Mixed:
        """Return the likelihood whose parts leave out NaN targets."""
        # a categorical one does so as it is: the axis of its classes is its span
        parts = tuple((w if isinstance(w, Categorical) else w.for_missing(), a, b) for w, a, b in self.parts)
        return self if self.missing else Mixed(parts, missing=True)

    def _each(self, name: str, *tensors: Tensor) -> Tensor:
        def of(which: Likelihood) -> Callable[..., Tensor]:
            return getattr(which, name)

        return torch.cat([of(which)(*slices) for which, slices in self._slices(*tensors)], -1)

    def _slices(self, *tensors: Tensor) -> Iterator[tuple[Likelihood, list[Tensor]]]:
        if tensors[0].shape[-1] != self.n_features:
            raise ValueError(f"Mixed covers {self.n_features} features, got an output of {tuple(tensors[0].shape)}")
        for which, start, stop in self.parts:
            yield which, [t[..., start:stop] for t in tensors]
