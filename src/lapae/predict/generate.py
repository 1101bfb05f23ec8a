"""New data: decoded from the density of codes, which is the default; from noise, which is imputation with everything
missing (the paper's way); or from the latent prior where a method has one.

Shapes: n generated data, (n, *shape), in the model's space.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapae.curvature.likelihoods.continuous import normal_like
from lapae.methods.base import Method
from lapae.predict.complete import impute
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.memory import Memory
from lapae.predict.prediction import Progress
from lapae.predict.statistics import expected

CHAINS = 8
"""Sampled networks that share the data to be generated from noise, at most."""


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
    """n data (n, *shape), each from its own noise.

    Args:
        method: the trained method.
        shape: of one datum in the model's space.
        n: how many data.
        steps: encodings and decodings by each chain of networks; up to 8 chains share the data.
        average: networks averaged after the last step.
        seed: of the noise and of the networks.
        value_range: range of the data, which the noise fills.
        progress: called with the number of data done, `n_progress(method, n, average)` in all.
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
    """What `from_noise` tells its progress in all."""
    return -(-n // _chains(method, n)) * average


def _chains(method: Method, n: int) -> int:
    return min(n, n_distinct(method, CHAINS))


def from_prior(method: Method, latent_dim: int, n: int, *, seed: int = 0) -> Tensor:
    """n data (n, *shape) decoded from codes of the standard normal prior."""
    if not method.latent_prior:
        raise ValueError(f"{type(method).__name__} has no prior over codes: generate from noise")
    weight = next(method.parameters())
    z = torch.randn(n, latent_dim, generator=torch.Generator().manual_seed(seed)).to(weight.device, weight.dtype)
    with evaluating(method, n):
        draws = method.draw(draw_seeds(seed, 1))
        return expected(method.likelihood, draws.decode(z[None]))[0].cpu()


def from_codes(method: Method, memory: Memory, n: int, *, noise: bool = False, seed: int = 0) -> Tensor:
    """n data (n, *shape) decoded from the density of codes, by up to `CHAINS` sampled networks.

    Args:
        method: the trained method.
        memory: of its codes.
        n: how many data.
        noise: values are drawn from the likelihood; its mean otherwise.
        seed: of codes, networks and noise.
    """
    if n < 1:
        raise ValueError(f"n={n}: expected at least 1")
    weight = next(method.parameters())
    z = memory.density.sample(n, seed).unflatten(1, memory.codes.shape[1:]).to(weight.device, weight.dtype)
    # members of an ensemble have a latent space each: that of the first
    seeds = draw_seeds(seed, _chains(method, n)) if method.shared_codes else []
    generator = torch.Generator(weight.device).manual_seed(seed)
    made = []
    with evaluating(method, n // max(len(seeds), 1)):
        networks = (method.draw([s]) for s in seeds) if seeds else [method.draw_mean()]
        for draws, part in zip(networks, z.tensor_split(max(len(seeds), 1)), strict=True):
            output = draws.decode(part[None])
            if not noise:
                made.append(expected(method.likelihood, output)[0])
            elif output.var is not None:
                made.append(output.loc[0] + output.var[0].sqrt() * normal_like(output.loc[0], generator))
            else:
                made.append(method.likelihood.sample(output.loc[0], generator))
    return torch.cat(made).cpu()
