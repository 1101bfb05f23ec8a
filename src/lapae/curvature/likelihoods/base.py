"""Likelihoods p(x | network output), as training, curvature and prediction use them.

Shapes: output and target are (B, *features); where a log density is asked for, the output may have further axes in
front, (S, B, *features). `hessian_diag` may have a batch axis of 1 where it is the same for all samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor


class Likelihood(ABC):
    """A density of data given the network's output, and the Hessian of its negative logarithm at that output.

    A likelihood of your own defines `log_prob_elements`, `mean`, `variance`, `sample` and `hessian_diag` and, if the
    Hessian is not diagonal, also `hessian_product`, `hessian_factor` and `variance_of_mean`.
    """

    name: ClassVar[str] = ""
    """Name by which it is registered."""
    diagonal: bool = True
    """Whether the Hessian at the output is a diagonal matrix."""
    exponential: ClassVar[bool] = True
    """Whether the output is the natural parameter of an exponential family: then the Hessian does not depend on the
    data. Otherwise the expected Hessian (the Fisher information) is used."""
    free_variance: ClassVar[bool] = False
    """Whether the variance is a second parameter, which a network may learn: see `with_variance`."""
    noisy: bool = False
    """Whether there is noise around the mean whose scale may be learned: see `with_noise`."""
    reweights: bool = False
    """Whether the scale of the noise is found by iteration: see `noise_weights`."""
    takes_missing: ClassVar[bool] = False
    """Whether there is a form for missing values: see `for_missing`."""
    missing: bool = False
    """Whether this is that form, whose `log_prob` leaves out NaN targets."""

    @property
    def support(self) -> tuple[float | Tensor, float | Tensor]:
        """Smallest and largest value that data may have; tensors (*features,) if features differ."""
        return -math.inf, math.inf

    @abstractmethod
    def log_prob_elements(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density feature by feature, (..., B, *features); zero where the target is missing (NaN)."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of `target`, summed over features: (..., B)."""
        return self.log_prob_elements(output, target).flatten(first_feature(output, target)).sum(-1)

    @abstractmethod
    def mean(self, output: Tensor) -> Tensor:
        """Expected data under `output`, (B, *features)."""

    @abstractmethod
    def variance(self, output: Tensor) -> Tensor:
        """Variance of the data under `output`, (B, *features)."""

    @abstractmethod
    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Data drawn from `output`, (B, *features)."""

    def residual(self, output: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the noise (B, *features), in standard units, that leads from `output` to `target`; NaN where the
        target is missing.

        Features that are not continuous have normal numbers, drawn among those that make this value.
        """
        return (target - self.mean(output)) / self.variance(output).clamp_min(1e-30).sqrt()

    def at_residual(self, output: Tensor, residual: Tensor) -> Tensor:
        """Return the data (B, *features) that follow from `output` and noise in standard units: the inverse of
        `residual`."""
        return self.mean(output) + self.variance(output).clamp_min(1e-30).sqrt() * residual

    def with_noise(self, sigma: Tensor) -> Likelihood:
        """Return the likelihood with noise of scale `sigma` (*features), which may change in place.

        A likelihood without noise returns itself.
        """
        return self

    def noise_weights(self, square: Tensor) -> Tensor:
        """Weights of squared residuals (..., *features), which are in units of sigma².

        The maximum likelihood estimate of sigma² is their weighted mean; by default all weights are 1.
        """
        return torch.ones_like(square)

    @abstractmethod
    def hessian_diag(self, output: Tensor) -> Tensor:
        """Diagonal of the Hessian, (B or 1, *features)."""

    def hessian_product(self, output: Tensor, t: Tensor) -> Tensor:
        """H t for t of (R, B, *features)."""
        return self.hessian_diag(output) * t

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        """S eps, where S Sᵀ is the Hessian; eps is (R, B, *features)."""
        return self.hessian_diag(output).sqrt() * eps

    def tangent_of_mean(self, output: Tensor, t: Tensor) -> Tensor:
        """Tangents of the expected data for tangents t (R, B, *features) of the output (B, *features).

        In an exponential family ∂mean/∂output is the Hessian.
        """
        return self.hessian_product(output, t)

    def variance_of_mean(self, output: Tensor, variance: Tensor) -> Tensor:
        """Variance of the expected data from independent variances of the output, to first order; (B, *features) all.

        Σ_d (∂mean_c/∂output_d)² variance_d; in an exponential family ∂mean/∂output is the Hessian.
        """
        return self.hessian_diag(output).square() * variance

    def with_variance(self, variance: Tensor) -> Likelihood:
        """Return the likelihood with another variance of the data, which broadcasts to the output, if the variance is
        free."""
        raise ValueError(f"the variance of {self!r} follows from its mean")

    def for_missing(self) -> Likelihood:
        """Return the likelihood that leaves out NaN targets."""
        raise ValueError(f"missing values need a likelihood that has a form for them, such as gaussian, got {self!r}")

    def observed(self, mask: Tensor) -> Likelihood:
        """Return the likelihood of a batch with missing values: its Hessian is zero where `mask` is False."""
        return Observed(self, mask)

    def part(self, samples: slice) -> Likelihood:
        """Return the likelihood of some samples of a batch, if it belongs to one batch."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return its name and fields as numbers, lists and strings, from which `likelihood` can restore it."""
        if LIKELIHOODS.get(self.name) is not type(self):
            raise ValueError(f"{self!r} is not registered by name: it cannot be written down")
        return {"name": self.name, **{f.name: _plain(getattr(self, f.name)) for f in _fields(self)}}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            _same(getattr(self, f.name), getattr(other, f.name)) for f in _fields(self)
        )

    def __hash__(self) -> int:
        return hash(type(self))


def _fields(which: Any) -> list[Field[Any]]:
    """Return the fields from which it was made."""
    return [f for f in fields(which) if f.init]


def _plain(value: Any) -> Any:
    if isinstance(value, Likelihood):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value.tolist() if isinstance(value, Tensor) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a.cpu(), b.cpu())
    return a == b


class Skipping(Likelihood):
    """A dataclass with a field `missing`: its form for missing values is itself with that field set."""

    takes_missing = True

    def for_missing(self) -> Likelihood:
        return self if self.missing else replace(self, missing=True)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, eq=False)
class Observed(Likelihood):
    """A likelihood for one batch whose Hessian is zero at missing outputs, for the curvature."""

    inner: Likelihood
    mask: Tensor
    """(B, *features): what is observed."""

    @property
    def diagonal(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.diagonal

    def log_prob_elements(self, output: Tensor, target: Tensor) -> Tensor:
        return self.inner.log_prob_elements(output, target) * self.mask

    def mean(self, output: Tensor) -> Tensor:
        return self.inner.mean(output)

    def variance(self, output: Tensor) -> Tensor:
        return self.inner.variance(output)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.inner.sample(output, generator)

    def part(self, samples: slice) -> Observed:
        return Observed(self.inner, self.mask[samples])

    def hessian_diag(self, output: Tensor) -> Tensor:
        return self.inner.hessian_diag(output) * self.mask

    def hessian_product(self, output: Tensor, t: Tensor) -> Tensor:
        return self.inner.hessian_product(output, t * self.mask) * self.mask

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        return self.inner.hessian_factor(output, eps) * self.mask


def first_feature(output: Tensor, target: Tensor) -> int:
    """The first axis of features of an output (..., B, *features) for a target (B, *features)."""
    return output.ndim - target.ndim + 1


LIKELIHOODS: dict[str, type[Likelihood]] = {}
L = TypeVar("L", bound=Likelihood)


def register(name: str) -> Callable[[type[L]], type[L]]:
    """Make a likelihood known by name."""

    def add(cls: type[L]) -> type[L]:
        LIKELIHOODS[name] = cls
        cls.name = name
        return cls

    return add


def likelihood(which: str | Mapping[str, Any] | Likelihood) -> Likelihood:
    """Take a likelihood as it is, or make one from its name ("gaussian", "bernoulli", …) or from its `to_dict`."""
    if isinstance(which, Mapping):
        options = dict(which)
        return _by_name(options.pop("name"))(**options)
    if isinstance(which, str):
        return _by_name(which)()
    if not isinstance(which, Likelihood):  # pyright: ignore[reportUnnecessaryIsInstance] (not all callers are typed)
        raise TypeError(f"expected a likelihood or its name, got {type(which).__name__}")
    return which


def _by_name(name: str) -> type[Likelihood]:
    if name.lower() not in LIKELIHOODS:
        raise ValueError(f"unknown likelihood {name!r}: expected one of {', '.join(LIKELIHOODS)}")
    return LIKELIHOODS[name.lower()]
