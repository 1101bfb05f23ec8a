"""Student's t, for data with outliers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lapae.curvature.likelihoods.base import register
from lapae.curvature.likelihoods.continuous import Location, normal_like


@register("student")
@dataclass(frozen=True, eq=False)
class StudentT(Location):
    """Student's t around the output, for data with outliers, which get less weight.

    The Hessian depends on the data and may be negative far from the output, so its expectation, the Fisher information
    (df + 1) / (df + 3) / sigma², is used instead.
    """

    df: float = 4.0
    """Degrees of freedom: the tails are heavy if it is small; there is no finite variance if it is at most 2."""
    sigma: Any = 1.0
    """Scale, a number or one per feature; the variance is sigma² df / (df - 2)."""
    missing: bool = field(default=False, repr=False)
    _copies: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    exponential = False
    reweights = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.df) and self.df > 0):
            raise ValueError(f"StudentT(df={self.df!r}): expected a finite number above 0")
        self._check_scale()

    def log_prob_elements(self, output: Tensor, target: Tensor) -> Tensor:
        """-(df + 1)/2 log(1 + gap² / (df sigma²)) and the normaliser."""
        gap, missing = self._gap(output, target)
        scale, df = self.scale(output), self.df
        norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
        log_scale = scale.log() if isinstance(scale, Tensor) else math.log(scale)
        return torch.where(missing, 0.0, norm - log_scale - (df + 1) / 2 * torch.log1p(gap.square() / df))

    def variance(self, output: Tensor) -> Tensor:
        """sigma² df / (df - 2), infinite where df is at most 2."""
        ratio = self.df / (self.df - 2) if self.df > 2 else math.inf
        return self._features(self.scale(output) ** 2 * ratio, output).expand_as(output)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The output plus noise: a normal number over the root of a χ² / df, from Gamma(df / 2) of uniform draws."""
        shape = output.new_full(output.shape, self.df / 2)
        chi = 2 * torch._standard_gamma(shape, generator=generator)  # pyright: ignore[reportPrivateImportUsage]
        return output + self.scale(output) * normal_like(output, generator) * (self.df / chi).sqrt()

    def noise_weights(self, square: Tensor) -> Tensor:
        """(df + 1) / (df + square): as in the EM algorithm, the precision expected of a value with this residual.

        The weights have mean 1 at the maximum: to divide by their sum instead of their number leaves it where it is
        and takes fewer rounds (Kent, Tyler and Vardi 1994).
        """
        return (self.df + 1) / (self.df + square)

    def hessian_diag(self, output: Tensor) -> Tensor:
        """The Fisher information (df + 1) / (df + 3) / sigma²: (1, *features)."""
        return self._features((self.df + 1) / (self.df + 3) * self.scale(output) ** -2, output)
