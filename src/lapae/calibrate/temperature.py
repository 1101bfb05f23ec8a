"""The temperature of a posterior: its width, chosen by the predictive likelihood of samples not used in training.

The curvature gives the posterior its shape; its size depends on what the method makes of the curvature (the online
update forgets, which is a temperature of its own). At temperature T sampled networks give each value a mean and a
variance v(T); with the noise s² that then is left, the log density of held-out values is

    Σ log N(x; mean(T), s_j² + v(T)),    s_j² = mean of (x - mean)² - v(T) over held-out samples, at least a tenth of it

and T is the best of a few candidates. Of two that are equally good, the one nearer to 1 is chosen.

With the linearised predictive the mean is that of the network at its mean weights, and v(T) = T v(1): one v(1) answers
for all T. The natural T is 1 there; one far below says that the posterior is not that of the network, and is warned of.
(Networks that are drawn and evaluated as they are need a small T for another reason: far from the mean they break.
`fit_drawn` finds theirs where the posterior is a low-rank one, whose own T has nothing to do with that.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from lapae.methods import Method
from lapae.methods.laplace import Laplace, with_posterior
from lapae.posterior import LowRankPrecision
from lapae.predict.linearized_lowrank import draws, tangents
from lapae.predict.mc import evaluating
from lapae.predict.predictive import predict
from lapae.predict.rows import evenly

FACTOR = 10.0
FARTHEST = 4
"""Maximum number of steps of a factor to either side."""
ROWS, VALUES, LEAST_ROWS = 200, 25_000, 16
"""Maximum number of held-out samples and of their values; at least LEAST_ROWS samples even of large images."""
NETWORKS = 16
TANGENTS, BUDGET = 64, 1 << 26
"""Directions for the variance of a linearised network, and numbers in memory for them."""
LEAST_NATURAL = 0.1
"""Temperature of a linearised network below which a warning says that the posterior is too wide for its data."""
DEAREST = 1.2
"""Largest error of drawn networks, as a multiple of that of the mean network."""
NARROWER = 10.0**-0.25
"""Factor from one temperature of drawn networks to the next."""
NARROWEST = 1e-8
GAIN = 2.0
"""Number of standard errors by which another temperature must be better."""
LEAST_NOISE_SHARE = 0.1
"""Smallest share of the squared residual of a feature that is attributed to noise."""


def fit_temperature(method: Method, x: Tensor, *, seed: int = 0, linearized: bool = False) -> float:
    """Set the temperature of the posterior, and return it.

    Args:
        method: the trained method; the search starts at its temperature, which is left as it is if outputs are logits.
        x: held-out samples (n, *shape) in the model's space.
        seed: seed of the networks.
        linearized: whether networks are linearised in their weights, or evaluated as they are drawn.
    """
    own = method.temperature
    assert own is not None
    if method.likelihood.name in ("bernoulli", "categorical"):
        return own
    n = min(len(x), ROWS, max(LEAST_ROWS, VALUES // x[0].numel()))
    if n < 2:
        return own
    x = evenly(x, n)
    density_at = _of_linearized(method, x, own) if linearized else _of_networks(method, x, seed)
    best, value = own, density_at(own)
    for factor in (FACTOR, 1 / FACTOR):
        for _ in range(FARTHEST):
            here = best * factor
            density = density_at(here)
            gain = density - value
            if not gain.mean() > GAIN * gain.std() / len(gain) ** 0.5:
                break
            best, value = here, density
        if best != own:
            break
    method.temperature = best
    if linearized and best < LEAST_NATURAL:
        warnings.warn(
            f"held-out rows are predicted best at temperature {best:g}, where 1 is natural: a diagonal posterior "
            "overstates the uncertainty of all weights together. hessian='lowrank' has their covariances",
            stacklevel=2,
        )
    return best


def fit_drawn(method: Method, x: Tensor, *, seed: int = 0) -> float:
    """Set the temperature of networks that a low-rank posterior draws, and return it, at most that of the posterior.

    It is the highest at which the squared error of drawn networks is at most `DEAREST` times that of the mean network.
    Networks that were drawn in training, from the running diagonal, have a temperature already.

    Args:
        method: the trained method; other posteriors are left as they are.
        x: held-out samples (n, *shape) in the model's space.
        seed: seed of the networks.
    """
    precision = method.posterior if isinstance(method, Laplace) else None
    if not isinstance(precision, LowRankPrecision) or not precision.n_vectors or precision.has_trained or not len(x):
        return 1.0
    x = evenly(x, min(len(x), ROWS, max(LEAST_ROWS, VALUES // x[0].numel())))
    with evaluating(method, len(x)), torch.no_grad():
        rows = x.to(precision.prior.device, precision.prior.dtype)
        least = float((rows - method.likelihood.mean(method.network(rows))).square().nansum())  # pyright: ignore
    value = 1.0
    while value > NARROWEST:
        precision.drawn.copy_(torch.tensor(value, dtype=torch.float32))  # as it is saved
        found = predict(method, x, n_samples=NETWORKS, seed=seed, want=("outputs",))
        if float(((x - found.x_mean).square() + found.x_var).nansum()) <= DEAREST * least:
            break
        value *= NARROWER
    return float(precision.drawn)


def _of_networks(method: Method, x: Tensor, seed: int) -> Callable[[float], Tensor]:
    """Return the log density (n,) of samples x under drawn networks as a function of the temperature."""

    def density_at(temperature: float) -> Tensor:
        method.temperature = temperature
        found = predict(method, x, n_samples=NETWORKS, seed=seed, want=("outputs",))
        return _density(x, found.x_mean, found.x_var)

    return density_at


@torch.no_grad()
def _of_linearized(method: Method, x: Tensor, temperature: float) -> Callable[[float], Tensor]:
    """Return the log density (n,) of samples x under linearised networks as a function of the temperature."""
    laplace, weight = with_posterior(method, "linearized"), next(method.parameters())
    with evaluating(method, len(x)):
        rows = x.to(weight.device, weight.dtype)
        mean = method.likelihood.mean(laplace.network(rows)).cpu()
        moves = tangents(laplace, rows, draws(laplace.posterior, range(TANGENTS)), BUDGET)
        variance = sum((y.square().sum(0) for _, y in moves), torch.zeros_like(rows)).cpu() / TANGENTS
    return lambda here: _density(x, mean, variance * (here / temperature))


def _density(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return the log density (n,) of samples x with mean and variance over networks (n, *shape), noise added."""
    square = (x - mean).square()
    noise = torch.maximum((square - variance).nanmean(0), LEAST_NOISE_SHARE * square.nanmean(0)) + 1e-12
    total = noise + variance
    return -0.5 * (square / total + total.log()).flatten(1).nansum(1)
