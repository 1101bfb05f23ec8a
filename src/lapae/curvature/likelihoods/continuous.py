"""Likelihoods whose output is the mean of the data; the Gaussian.

Their scale is a number, or a tensor (*features,) that broadcasts over the features: a noise for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from lapae.curvature.likelihoods.base import Skipping, first_feature, register


class Location(Skipping):
    """Base of the Gaussian and Student's t: data scatter around the output with the scale `sigma`."""

    sigma: Any
    noisy = True

    def _check_scale(self) -> None:
        """Return a checked scale: a number stays one, anything else becomes a tensor."""
        sigma = self.sigma
        if isinstance(sigma, Real):
            sigma = float(sigma)
            good = math.isfinite(sigma) and sigma > 0
        elif isinstance(sigma, Tensor):
            # a look at values on a GPU would wait for it, and is not possible in a captured step
            good = sigma.device.type != "cpu" or bool(((sigma > 0) & sigma.isfinite()).all())
        else:
            sigma = torch.as_tensor(sigma, dtype=torch.float64)
            good = bool(((sigma > 0) & sigma.isfinite()).all())
        if not good:
            raise ValueError(
                f"{type(self).__name__}(sigma={self.sigma!r}): expected a finite number above 0, or one per feature"
            )
        object.__setattr__(self, "sigma", sigma)

    def scale(self, like: Tensor) -> float | Tensor:
        """Return sigma as a number, or on the device and in the dtype of `like`.

        A copy is kept, so that a step that runs on a GPU does not fetch it again.
        """
        sigma = self.sigma
        if isinstance(sigma, float) or (sigma.device == like.device and sigma.dtype == like.dtype):
            return sigma
        place = (like.device, like.dtype, None if sigma.is_inference() else sigma._version)
        if self._copies.get("place") != place:
            self._copies.update(place=place, sigma=sigma.to(like.device, like.dtype))
        return self._copies["sigma"]

    _copies: dict[str, Any]

    def _features(self, value: float | Tensor, output: Tensor) -> Tensor:
        """Return a scale as (1, *features) of an output (B, *features)."""
        shape = (1, *output.shape[1:])
        return value.expand(shape) if isinstance(value, Tensor) else output.new_full(shape, value)

    def with_noise(self, sigma: Tensor) -> Location:
        """Return the likelihood with another scale, which is looked at when it is used: it may be learned in place."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        vars(other).update(sigma=sigma, _copies={})
        return other

    def mean(self, output: Tensor) -> Tensor:
        return output

    def tangent_of_mean(self, output: Tensor, t: Tensor) -> Tensor:
        return t

    def variance_of_mean(self, output: Tensor, variance: Tensor) -> Tensor:
        return variance

    def residual(self, output: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return (target - output) / self.scale(output)

    def at_residual(self, output: Tensor, residual: Tensor) -> Tensor:
        return output + self.scale(output) * residual

    def _gap(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals in units of the scale, zero where missing, and what is missing."""
        missing = target.isnan()
        # masked before anything is made of it: a NaN would come back through the gradient
        return torch.where(missing, 0.0, target - output) / self.scale(output), missing


@register("gaussian")
@dataclass(frozen=True, eq=False)
class Gaussian(Location):
    """N(output, sigma² I): the paper's likelihood, with sigma = 1. For tables, and for images and series of floats."""

    sigma: Any = 1.0
    """Standard deviation of the observation noise: a number, or one per feature."""
    missing: bool = field(default=False, repr=False)
    _copies: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    free_variance = True

    def __post_init__(self) -> None:
        self._check_scale()

    def log_prob_elements(self, output: Tensor, target: Tensor) -> Tensor:
        """-(target - output)² / (2 sigma²) - log(sqrt(2π) sigma)."""
        gap, missing = self._gap(output, target)
        return torch.where(missing, 0.0, -0.5 * gap.square() - self._log_norm(output))

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the log density summed over features, without masks if nothing is missing."""
        if self.missing:
            return super().log_prob(output, target)
        first, scale = first_feature(output, target), self.scale(output)
        if isinstance(scale, float):
            squared_error = (target - output).square().flatten(first).sum(-1)
            return -0.5 * squared_error / scale**2 - math.prod(target.shape[1:]) * self._log_norm(output)
        terms = 0.5 * ((target - output) / scale).square() + self._log_norm(output)
        return -terms.flatten(first).sum(-1)

    def _log_norm(self, output: Tensor) -> float | Tensor:
        scale = self.scale(output)
        return 0.5 * math.log(2 * math.pi) + (scale.log() if isinstance(scale, Tensor) else math.log(scale))

    def variance(self, output: Tensor) -> Tensor:
        return self._features(self.scale(output) ** 2, output).expand_as(output)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return output + self.scale(output) * normal_like(output, generator)

    def hessian_diag(self, output: Tensor) -> Tensor:
        """Return 1 / sigma², equal for all samples: (1, *features)."""
        return self._features(self.scale(output) ** -2, output)

    def hessian_product(self, output: Tensor, t: Tensor) -> Tensor:
        return t / self.scale(output) ** 2

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        return eps / self.scale(output)

    def with_variance(self, variance: Tensor) -> Gaussian:
        """N(output, variance), NaN targets left out; nothing is checked."""
        wide = object.__new__(Gaussian)
        for name, value in (("sigma", variance.sqrt()), ("missing", True), ("_copies", {})):
            object.__setattr__(wide, name, value)
        return wide


def normal_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers of the shape, type and device of x."""
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
