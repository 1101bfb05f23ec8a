"""Likelihoods p(x | network output): log density, mean, sampling, and the Hessian that seeds the curvature.

The Hessian is that of the negative log density with respect to the network output, the matrix M at the last layer
(paper, appendix E.4). All three likelihoods are exponential families in their natural parameter, so it does not depend
on the data and is positive semi-definite.

| likelihood  | output                         | Hessian at the output   |
|-------------|--------------------------------|-------------------------|
| Gaussian    | mean                           | I / sigma²              |
| Bernoulli   | one logit an element           | diag(p (1 - p))         |
| Categorical | logits, one softmax over dim 1 | diag(π) - π πᵀ a position |

Shapes: output and target are (B, *features); `hessian_diag` may have a batch axis of 1 where it is the same for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F


@runtime_checkable
class Likelihood(Protocol):
    """What training, curvature and prediction ask of a likelihood."""

    @property
    def diagonal(self) -> bool:
        """Whether the Hessian at the output is a diagonal matrix."""
        ...

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log density of `target`, summed over features: (..., B)."""
        ...

    def mean(self, output: Tensor) -> Tensor:
        """Expected data under `output`, of its shape."""
        ...

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw data from `output`, of its shape."""
        ...

    def hessian_diag(self, output: Tensor) -> Tensor:
        """Diagonal of the Hessian: (B or 1, *features)."""
        ...

    def hessian_product(self, output: Tensor, t: Tensor) -> Tensor:
        """H t for t of (R, B, *features)."""
        ...

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        """S eps, where S Sᵀ is the Hessian; eps is (R, B, *features)."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """N(output, sigma² I): the paper's likelihood, with sigma = 1. For tables, and for images and series of floats."""

    sigma: float = 1.0
    """Standard deviation of the observation noise."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise ValueError(f"Gaussian(sigma={self.sigma!r}): expected a finite number above 0")

    @property
    def diagonal(self) -> bool:
        """The Hessian is diagonal."""
        return True

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """-||target - output||² / (2 sigma²) - D log(sqrt(2π) sigma), a number for each datum."""
        n_features = math.prod(target.shape[1:])
        squared_error = (target - output).square().flatten(output.ndim - target.ndim + 1).sum(-1)
        return -0.5 * squared_error / self.sigma**2 - n_features * (0.5 * math.log(2 * math.pi) + math.log(self.sigma))

    def mean(self, output: Tensor) -> Tensor:
        """The output itself, (B, *features)."""
        return output

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The output plus noise of deviation sigma, (B, *features)."""
        return output + self.sigma * _normal_like(output, generator)

    def hessian_diag(self, output: Tensor) -> Tensor:
        """1 / sigma², the same for every datum: (1, *features)."""
        return output.new_full((1, *output.shape[1:]), self.sigma**-2)

    def hessian_product(self, output: Tensor, t: Tensor) -> Tensor:
        """H t = t / sigma², (R, B, *features)."""
        return t / self.sigma**2

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        """S eps = eps / sigma, (R, B, *features)."""
        return eps / self.sigma


@dataclass(frozen=True)
class Bernoulli:
    """Bernoulli(sigmoid(output)), for binary data or intensities in [0, 1]."""

    @property
    def diagonal(self) -> bool:
        """The Hessian is diagonal."""
        return True

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Negative binary cross-entropy, a number for each datum."""
        terms = F.binary_cross_entropy_with_logits(output, target.expand_as(output), reduction="none")
        return -terms.flatten(output.ndim - target.ndim + 1).sum(-1)

    def mean(self, output: Tensor) -> Tensor:
        """The probability of a one, (B, *features)."""
        return output.sigmoid()

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Zeros and ones drawn from `output`, (B, *features)."""
        return torch.bernoulli(output.sigmoid(), generator=generator)

    def hessian_diag(self, output: Tensor) -> Tensor:
        """p (1 - p), with p the probability of a one: (B, *features)."""
        p = output.sigmoid()
        return p * (1 - p)

    def hessian_product(self, output: Tensor, t: Tensor) -> Tensor:
        """H t = p (1 - p) t, (R, B, *features)."""
        return self.hessian_diag(output) * t

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        """S eps = sqrt(p (1 - p)) eps, (R, B, *features)."""
        return self.hessian_diag(output).sqrt() * eps


@dataclass(frozen=True)
class Categorical:
    """One softmax over dimension 1 of the output for every position; data are one-hot along it, or class indices."""

    @property
    def diagonal(self) -> bool:
        """The Hessian couples the classes of a position."""
        return False

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log softmax at the observed class, summed over positions."""
        if not target.is_floating_point():
            target = F.one_hot(target, output.shape[output.ndim - target.ndim]).movedim(-1, 1).to(output.dtype)
        class_dim = output.ndim - target.ndim + 1
        return (target * output.log_softmax(class_dim)).flatten(class_dim).sum(-1)

    def mean(self, output: Tensor) -> Tensor:
        """Class probabilities, a softmax over dimension 1: (B, classes, *positions)."""
        return output.softmax(1)

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One class drawn for every position, one-hot: (B, classes, *positions)."""
        probs = output.softmax(1).movedim(1, -1)
        index = torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1, generator=generator)
        one_hot = torch.zeros_like(probs).reshape(-1, probs.shape[-1]).scatter_(1, index, 1.0)
        return one_hot.reshape(probs.shape).movedim(-1, 1)

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


_BY_NAME = {"gaussian": Gaussian, "bernoulli": Bernoulli, "categorical": Categorical}


def likelihood(which: str | Likelihood) -> Likelihood:
    """Take a likelihood as it is, or make one from its name ("gaussian", "bernoulli", "categorical")."""
    if isinstance(which, str):
        if which.lower() not in _BY_NAME:
            raise ValueError(f"unknown likelihood {which!r}: expected one of {', '.join(_BY_NAME)}")
        return _BY_NAME[which.lower()]()
    if not isinstance(which, Likelihood):
        raise TypeError(f"expected a likelihood or its name, got {type(which).__name__}")
    return which


def _normal_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
