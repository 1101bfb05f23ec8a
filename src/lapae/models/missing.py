"""Missing values (NaN) in training and prediction.

A missing value enters the network as zero, which is the mean of a standardised feature, and is left out of the
likelihood and of the curvature: the model is that of the observed values alone. One layer at the head of the encoder
does the first, a likelihood that skips NaN targets the second.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapae.curvature import Elementwise, Leaf, Tape, register
from lapae.curvature.likelihoods import Bernoulli, Gaussian, Likelihood
from lapae.errors import ConfigError
from lapae.models import Autoencoder

LAYER = "missing"


class FillMissing(nn.Module):
    """Zero in place of NaN."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, *shape) -> the same."""
        return torch.where(x.isnan(), torch.zeros((), dtype=x.dtype, device=x.device), x)


@register(FillMissing)
class _Fill(Elementwise):
    """1 where there is a value. The input is kept: it says what is observed."""

    uses_y = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        """1 where observed, else 0."""
        return (~x.isnan()).to(x.dtype)


@dataclass(frozen=True)
class PartialGaussian(Gaussian):
    """The Gaussian of the observed values: NaN targets are marginalised."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """As Gaussian.log_prob, over the observed features of each datum."""
        missing = target.isnan()
        # the gap is masked before it is squared: a NaN would come back through the gradient
        gap = torch.where(missing, 0.0, target - output)
        n_observed = (~missing).flatten(1).sum(1)
        normaliser = 0.5 * math.log(2 * math.pi) + math.log(self.sigma)
        squared_error = gap.square().flatten(output.ndim - target.ndim + 1).sum(-1)
        return -0.5 * squared_error / self.sigma**2 - n_observed * normaliser


@dataclass(frozen=True)
class PartialBernoulli(Bernoulli):
    """The Bernoulli of the observed values."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """As Bernoulli.log_prob, over the observed features of each datum."""
        missing = target.isnan()
        known = torch.where(missing, 0.0, target).expand_as(output)
        terms = F.binary_cross_entropy_with_logits(output, known, reduction="none")
        return -torch.where(missing, 0.0, terms).flatten(output.ndim - target.ndim + 1).sum(-1)


@dataclass(frozen=True)
class _Observed:
    """A likelihood whose Hessian is zero at missing outputs: what the curvature asks for, for one batch."""

    inner: Likelihood
    observed: Tensor
    """(B, *features), 0 or 1."""

    @property
    def diagonal(self) -> bool:
        return self.inner.diagonal

    def hessian_diag(self, output: Tensor) -> Tensor:
        return self.inner.hessian_diag(output) * self.observed

    def hessian_product(self, output: Tensor, t: Tensor) -> Tensor:
        return self.inner.hessian_product(output, t * self.observed) * self.observed

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        return self.inner.hessian_factor(output, eps) * self.observed


def of_observed(likelihood: Likelihood, tape: Tape) -> Likelihood:
    """The likelihood as the curvature of a recorded batch must see it: without the outputs whose data are missing."""
    first = tape.nodes[0]
    if not (isinstance(first, Leaf) and isinstance(first.layer, FillMissing)):
        return likelihood
    return _Observed(likelihood, (~first.x.isnan()).to(first.x.dtype))  # pyright: ignore[reportReturnType]


def takes_missing(likelihood: Likelihood) -> bool:
    """Whether there is a form of the likelihood that skips NaN targets."""
    return type(likelihood) in (Gaussian, Bernoulli, PartialGaussian, PartialBernoulli)


def partial(likelihood: Likelihood) -> Likelihood:
    """The likelihood that skips NaN targets."""
    if isinstance(likelihood, PartialGaussian | PartialBernoulli):
        return likelihood
    if type(likelihood) is Gaussian:
        return PartialGaussian(likelihood.sigma)
    if type(likelihood) is Bernoulli:
        return PartialBernoulli()
    raise ConfigError(f"missing values need the gaussian or the bernoulli likelihood, got {likelihood!r}")


def filling(network: Callable[[], Autoencoder]) -> Callable[[], Autoencoder]:
    """Networks whose encoder takes missing values. Names of parameters stay as they are in a `Sequential`."""

    def build() -> Autoencoder:
        plain = network()
        encoder = plain.get_submodule("encoder")
        # not named_children, which leaves out a layer's second place
        rest = encoder._modules.items() if type(encoder) is nn.Sequential else [("network", encoder)]
        layers: OrderedDict[str, nn.Module] = OrderedDict([(LAYER, FillMissing()), *rest])
        return Autoencoder(nn.Sequential(layers), plain.get_submodule("decoder"))

    return build
