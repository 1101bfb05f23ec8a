"""Learned output variance: its floor, and the log density of samples under it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import Output

MIN_LOG_VARIANCE = -6.0
"""Floor of a learned log variance. Pixels that never change (the border of MNIST) would take it to minus infinity, and
the density with it. It is the authors' floor: a standard deviation of 0.05 on a [0, 1] scale."""


def variance(raw: Tensor) -> Tensor:
    """Return exp of a network's output, of any shape, with a smooth floor so that gradients pass below it too."""
    return (MIN_LOG_VARIANCE + F.softplus(raw - MIN_LOG_VARIANCE)).exp()


def log_prob(likelihood: Likelihood, output: Output, x: Tensor) -> Tensor:
    """Return the log density of samples x (B, *shape) under outputs (S, B, *shape), summed over features: (S, B)."""
    known = likelihood if output.var is None else likelihood.with_variance(output.var)
    return known.log_prob(output.loc, x)


def gaussian(likelihood: Likelihood, method: str) -> Likelihood:
    """Return the likelihood if it is the Gaussian that a learned variance needs; raise ValueError otherwise."""
    if not likelihood.free_variance:
        raise ValueError(f"method {method!r} learns a variance: it needs likelihood 'gaussian', got {likelihood!r}")
    return likelihood
