"""What decoders that learn a variance have in common: the floor of that variance, and the density of data under it."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lapae.curvature.likelihoods import Gaussian, Likelihood
from lapae.methods.base import Output

MIN_LOG_VARIANCE = -6.0
"""Floor of a learned log variance. Pixels that never change (the border of MNIST) would take it to minus infinity, and
the density with it. It is the authors' floor: a standard deviation of 0.05 on a [0, 1] scale."""


def variance(raw: Tensor) -> Tensor:
    """exp of a network's output, of any shape, with a smooth floor so that gradients pass below it too."""
    return (MIN_LOG_VARIANCE + F.softplus(raw - MIN_LOG_VARIANCE)).exp()


def log_prob(likelihood: Likelihood, output: Output, x: Tensor) -> Tensor:
    """Log density of data x (B, *shape) under outputs (S, B, *shape), summed over features: (S, B)."""
    if output.var is None:
        return likelihood.log_prob(output.loc, x)
    missing = x.isnan()  # left out, before the square: a NaN would come back through the gradient
    gap = torch.where(missing, 0.0, x - output.loc)
    terms = gap.square() / output.var + output.var.log() + math.log(2 * math.pi)
    return -0.5 * torch.where(missing, 0.0, terms).flatten(2).sum(-1)


def gaussian(likelihood: Likelihood, method: str) -> Gaussian:
    """The likelihood, where it is the Gaussian that a learned variance needs; an error otherwise."""
    if not isinstance(likelihood, Gaussian):
        raise ValueError(f"method {method!r} learns a variance: it needs likelihood 'gaussian', got {likelihood!r}")
    return likelihood
