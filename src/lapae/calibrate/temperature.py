"""The temperature of a posterior: its width, chosen by the predictive likelihood of samples not used in training.

The curvature gives the posterior its shape; its size depends on what the method makes of the curvature (the online
update forgets, which is a temperature of its own). At temperature T sampled networks give each value a mean and a
variance v(T); with the noise s² that then is left, the log density of held-out values is

    Σ log N(x; mean(T), s_j² + v(T)),    s_j² = mean of (x - mean)² - v(T) over held-out samples, at least a tenth of it

and T is the best of a few candidates. Of two that are equally good, the one nearer to 1 is chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapae.methods import Method
from lapae.predict.predictive import predict
from lapae.predict.rows import evenly

FACTOR = 10.0
FARTHEST = 4
"""Maximum number of steps of a factor to either side."""
ROWS, VALUES, LEAST_ROWS = 200, 25_000, 16
"""Maximum number of held-out samples and of their values; at least LEAST_ROWS samples even of large images."""
NETWORKS = 16
GAIN = 2.0
"""Number of standard errors by which another temperature must be better."""
LEAST_NOISE_SHARE = 0.1
"""Smallest share of the squared residual of a feature that is attributed to noise."""


def fit_temperature(method: Method, x: Tensor, *, seed: int = 0) -> float:
    """Set the temperature of the posterior, and return it.

    Args:
        method: the trained method; the search starts at its temperature, which is left as it is if outputs are logits.
        x: held-out samples (n, *shape) in the model's space.
        seed: seed of the networks.
    """
    own = method.temperature
    assert own is not None
    if method.likelihood.name in ("bernoulli", "categorical"):
        return own
    n = min(len(x), ROWS, max(LEAST_ROWS, VALUES // x[0].numel()))
    if n < 2:
        return own
    x = evenly(x, n)
    best, value = own, _density(method, x, own, seed)
    for factor in (FACTOR, 1 / FACTOR):
        for _ in range(FARTHEST):
            here = best * factor
            density = _density(method, x, here, seed)
            gain = density - value
            if not gain.mean() > GAIN * gain.std() / len(gain) ** 0.5:
                break
            best, value = here, density
        if best != own:
            break
    method.temperature = best
    return best


def _density(method: Method, x: Tensor, temperature: float, seed: int) -> Tensor:
    """Return the log density (n,) of each sample of x under networks of a posterior with this temperature."""
    method.temperature = temperature
    found = predict(method, x, n_samples=NETWORKS, seed=seed, want=("outputs",))
    square = (x - found.x_mean).square()
    noise = torch.maximum((square - found.x_var).nanmean(0), LEAST_NOISE_SHARE * square.nanmean(0)) + 1e-12
    total = noise + found.x_var
    return -0.5 * (square / total + total.log()).flatten(1).nansum(1)
