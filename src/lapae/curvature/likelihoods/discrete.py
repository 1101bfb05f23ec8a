"""Bernoulli and Categorical: logits come out of the network."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from lapae.curvature.likelihoods.base import Likelihood, Skipping, first_feature, register


@register("bernoulli")
@dataclass(frozen=True, eq=False)
class Bernoulli(Skipping):
    """Bernoulli(sigmoid(output)), for binary data or intensities in [0, 1]."""

    missing: bool = field(default=False, repr=False)

    @property
    def support(self) -> tuple[float, float]:
        return 0.0, 1.0

    def log_prob_elements(self, output: Tensor, target: Tensor) -> Tensor:
        missing = target.isnan()
        known = torch.where(missing, 0.0, target).expand_as(output)
        terms = F.binary_cross_entropy_with_logits(output, known, reduction="none")
        return -torch.where(missing, 0.0, terms)

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the log density summed over features, without masks if nothing is missing."""
        if self.missing:
            return super().log_prob(output, target)
        terms = F.binary_cross_entropy_with_logits(output, target.expand_as(output), reduction="none")
        return -terms.flatten(first_feature(output, target)).sum(-1)

    def mean(self, output: Tensor) -> Tensor:
        """The probability of a one."""
        return output.sigmoid()

    def variance(self, output: Tensor) -> Tensor:
        return self.hessian_diag(output)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(output.sigmoid(), generator=generator)

    def residual(self, output: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw a normal number from those above which there is a share of p for a one, from the others for a zero."""
        one = torch.bernoulli(target.nan_to_num(), generator=generator)  # intensities are drawn, too
        zero = (-output).sigmoid()
        chance = uniform_like(output, generator)
        place = torch.where(one > 0, zero + chance * (1 - zero), chance * zero)
        return torch.where(target.isnan(), torch.nan, normal_score(place))

    def at_residual(self, output: Tensor, residual: Tensor) -> Tensor:
        return (torch.special.ndtr(residual) > (-output).sigmoid()).to(output.dtype)

    def hessian_diag(self, output: Tensor) -> Tensor:
        """p (1 - p), with p the probability of a one: (B, *features)."""
        p = output.sigmoid()
        return p * (1 - p)


@register("categorical")
@dataclass(frozen=True, eq=False)
class Categorical(Likelihood):
    """One softmax over dimension 1 of the output for every position; data are one-hot along it, or class indices."""

    diagonal = False

    @property
    def support(self) -> tuple[float, float]:
        return 0.0, 1.0

    def log_prob_elements(self, output: Tensor, target: Tensor) -> Tensor:
        """Log softmax at the observed class, zero at the others; as part of `Mixed` the class may be missing."""
        if not target.is_floating_point():
            target = F.one_hot(target, output.shape[output.ndim - target.ndim]).movedim(-1, 1).to(output.dtype)
        log_probs = output.log_softmax(first_feature(output, target))
        return torch.where(target.isnan(), 0.0, target).expand_as(output) * log_probs

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the log density summed over positions."""
        features = target.ndim - 1 if target.is_floating_point() else target.ndim  # class indices lack their axis
        return self.log_prob_elements(output, target).flatten(output.ndim - features).sum(-1)

    def mean(self, output: Tensor) -> Tensor:
        """Class probabilities, a softmax over dimension 1: (B, classes, *positions)."""
        return output.softmax(1)

    def variance(self, output: Tensor) -> Tensor:
        return self.hessian_diag(output)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One class drawn for every position, one-hot: (B, classes, *positions)."""
        probs = output.softmax(1).movedim(1, -1)
        index = torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1, generator=generator)
        one_hot = torch.zeros_like(probs).reshape(-1, probs.shape[-1]).scatter_(1, index, 1.0)
        return one_hot.reshape(probs.shape).movedim(-1, 1)

    def residual(self, output: Tensor, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One normal number for every position, the same at each class: one of the share that stands for the class,
        the classes having their shares in order."""
        probs = output.softmax(1)
        index = target.nan_to_num().argmax(1, keepdim=True)
        share = probs.gather(1, index)
        place = probs.cumsum(1).gather(1, index) - share * uniform_like(share, generator)
        return torch.where(target.isnan(), torch.nan, normal_score(place))

    def at_residual(self, output: Tensor, residual: Tensor) -> Tensor:
        place = torch.special.ndtr(residual[:, :1])
        index = (place > output.softmax(1).cumsum(1)).sum(1, keepdim=True).clamp_max(output.shape[1] - 1)
        return torch.zeros_like(output).scatter_(1, index, 1.0)

    def hessian_diag(self, output: Tensor) -> Tensor:
        """π (1 - π), the diagonal of diag(π) - π πᵀ: (B, classes, *positions)."""
        probs = output.softmax(1)
        return probs * (1 - probs)

    def hessian_product(self, output: Tensor, t: Tensor) -> Tensor:
        """H t = π t - π (π · t), (R, B, classes, *positions)."""
        scaled = output.softmax(1) * t
        return scaled - output.softmax(1) * scaled.sum(2, keepdim=True)

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        """(diag(√π) - π √πᵀ) eps: the product of this factor with its transpose is diag(π) - π πᵀ, as |√π| = 1."""
        probs = output.softmax(1)
        scaled = probs.sqrt() * eps
        return scaled - probs * scaled.sum(2, keepdim=True)

    def variance_of_mean(self, output: Tensor, variance: Tensor) -> Tensor:
        """The derivative of a softmax is -π_c π_d between classes, π_c (1 - π_c) for a class itself."""
        squares = output.softmax(1).square()
        shared = squares * variance
        own = self.hessian_diag(output).square() * variance
        return own + squares * (shared.sum(1, keepdim=True) - shared)


def uniform_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Numbers between 0 and 1 of the shape, type and device of x."""
    return torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)


def normal_score(place: Tensor) -> Tensor:
    """Return the normal numbers below which there are shares `place`; at most about 5 from 0."""
    return torch.special.ndtri(place.clamp(1e-6, 1 - 1e-6))
