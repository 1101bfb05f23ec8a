"""New samples from noise, which is completion with everything missing (the paper's way), and from a latent prior.

Shapes: n generated samples, (n, *shape), in the model's space.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapae.impute.chains import impute
from lapae.methods.base import Method
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.prediction import Progress
from lapae.predict.statistics import expected

CHAINS = 8
"""Maximum number of sampled networks that share the samples to be generated."""


def from_noise(
    method: Method,
    shape: tuple[int, ...],
    n: int,
    *,
    steps: int = 10,
    average: int = 5,
    seed: int = 0,
    value_range: tuple[float, float] = (0.0, 1.0),
    progress: Progress | None = None,
) -> Tensor:
    """Generate n samples (n, *shape), each from noise of its own.

    Args:
        method: the trained method.
        shape: shape of a sample in the model's space.
        n: number of samples.
        steps: encodings and decodings by each chain of networks; up to 8 chains share the samples.
        average: number of networks averaged after the last step.
        seed: seed of the noise and of the networks.
        value_range: range of the data, which the noise fills.
        progress: called with the number of samples done, `n_progress(method, n, average)` in all.
    """
    if n < 1:
        raise ValueError(f"n={n}: expected at least 1")
    chains = _chains(method, n)
    x = torch.full((-(-n // chains), *shape), torch.nan, dtype=next(method.parameters()).dtype)
    found = impute(
        method,
        x,
        modes=chains,
        average=average,
        steps=steps,
        seed=seed,
        value_range=value_range,
        progress=progress,
    )
    return found.samples.transpose(0, 1).flatten(0, 1)[:n]


def n_progress(method: Method, n: int, average: int) -> int:
    """Return the total that `from_noise` reports as progress."""
    return -(-n // _chains(method, n)) * average


def _chains(method: Method, n: int) -> int:
    return min(n, n_distinct(method, CHAINS))


def from_prior(method: Method, latent_dim: int, n: int, *, seed: int = 0) -> Tensor:
    """Generate n samples (n, *shape), decoded from codes of the standard normal prior."""
    if not method.latent_prior:
        raise ValueError(f"{type(method).__name__} has no prior over codes: generate from noise")
    weight = next(method.parameters())
    z = torch.randn(n, latent_dim, generator=torch.Generator().manual_seed(seed)).to(weight.device, weight.dtype)
    with evaluating(method, n):
        draws = method.draw(draw_seeds(seed, 1))
        return expected(method.likelihood, draws.decode(z[None]))[0].cpu()
