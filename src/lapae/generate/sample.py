"""New samples, decoded from the density of latent codes.

Shapes: n generated samples, (n, *shape), in the model's space.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import Method, Output
from lapae.predict.decode import encode_mean
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.rows import evenly
from lapae.predict.statistics import expected
from lapae.score.latent_codes import LatentCodes

INDEPENDENT = 5.0
"""Held-out rows that noise which is independent between features counts for."""
PER_NUMBER = 10
"""Rows for each number of a code, at least, to learn from how residuals depend on codes."""
MOST_VALUES = 2**23
"""Values of held-out rows whose residuals are taken, at most."""
CHAINS = 8
"""Sampled networks that share the samples to be generated, at most."""


def _chains(method: Method, n: int) -> int:
    return min(n, n_distinct(method, CHAINS))


def from_codes(
    method: Method,
    codes: LatentCodes,
    n: int,
    *,
    rows: Tensor | None = None,
    known: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """n data (n, *shape) decoded from the density of codes: by up to `CHAINS` sampled networks, or with the residuals
    of data about the mean network, which account for what networks do not agree about, too.

    Args:
        method: the trained method.
        codes: codes of training samples and their density.
        n: how many data.
        rows: held-out data (R, *shape), NaN where missing: samples lie as far from what is decoded as these do.
            Default: samples are what is expected at their codes.
        known: training data, whose residuals serve too, scaled to the size of those of `rows`.
        seed: of codes, networks and noise.
    """
    if n < 1:
        raise ValueError(f"n={n}: expected at least 1")
    weight = next(method.parameters())
    z = codes.density.sample(n, seed).unflatten(1, codes.codes.shape[1:]).to(weight.device, weight.dtype)
    if rows is not None:
        generator = torch.Generator(weight.device).manual_seed(seed)
        given = [_encoded(method, part) for part in (rows, known) if part is not None and len(part)]
        with evaluating(method, n):
            draws, likelihood = method.draw_mean(), method.likelihood
            held = [_residual(likelihood, draws.decode(theirs[None]), x, generator) for x, theirs in given]
            size = [part.square().nanmean().sqrt().nan_to_num(1.0).clamp_min(1e-12) for part in held]
            bank = torch.cat([part * (size[0] / theirs) for part, theirs in zip(held, size, strict=True)])
            bank, trend = _by_code(bank, torch.cat([theirs for _, theirs in given]), z)
            return _as_far(likelihood, draws.decode(z[None]), bank, trend, generator).cpu()
    # members of an ensemble have a latent space each: that of the first
    seeds = draw_seeds(seed, _chains(method, n)) if method.shared_codes else []
    made = []
    with evaluating(method, n // max(len(seeds), 1)):
        networks = (method.draw([s]) for s in seeds) if seeds else [method.draw_mean()]
        for draws, part in zip(networks, z.tensor_split(max(len(seeds), 1)), strict=True):
            made.append(expected(method.likelihood, draws.decode(part[None]))[0])
    return torch.cat(made).cpu()


def _encoded(method: Method, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (R, *shape), not too many, and their codes, where the method works."""
    weight = next(method.parameters())
    rows = evenly(rows, max(1, MOST_VALUES // rows[0].numel()))
    return rows.to(weight.device, weight.dtype), encode_mean(method, rows).to(weight.device, weight.dtype)


def _around(likelihood: Likelihood, output: Output) -> Likelihood:
    return likelihood if output.var is None else likelihood.with_variance(output.var[0])


def _residual(likelihood: Likelihood, output: Output, rows: Tensor, generator: torch.Generator) -> Tensor:
    return _around(likelihood, output).residual(output.loc[0], rows, generator)


def _by_code(residuals: Tensor, codes: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Residuals (R, *shape) without what follows linearly from the codes of their rows, and what follows from z (B, …).

    A network that reconstructs a column too flat, or lets a constant vary, has residuals that make up for it.
    """
    center = codes.flatten(1).mean(0)
    theirs, ours = codes.flatten(1) - center, z.flatten(1) - center
    if len(theirs) < PER_NUMBER * theirs.shape[1]:
        return residuals, residuals.new_zeros(len(z), *residuals.shape[1:])
    square = theirs.T @ theirs
    ridge = INDEPENDENT * square.diagonal().mean() / len(theirs) + 1e-12
    slope = torch.linalg.solve(
        square + ridge * torch.eye(len(square)).to(square), theirs.T @ residuals.flatten(1).nan_to_num()
    )
    shape = residuals.shape[1:]
    return residuals - (theirs @ slope).unflatten(1, shape), (ours @ slope).unflatten(1, shape)


def _as_far(likelihood: Likelihood, output: Output, bank: Tensor, trend: Tensor, generator: torch.Generator) -> Tensor:
    """Data (B, *shape) as far from `output` as rows are by their residuals `bank` (R, *shape), and `trend` (B, *shape).

    The residuals of a row are taken together, as columns depend on each other. So that few rows do not say more than
    they know, a share of the noise, and all of missing values, is of another row for each feature; the likelihood
    speaks for features without a residual.
    """
    ours, at = _around(likelihood, output), output.loc[0]
    alone = bank.gather(0, torch.randint(len(bank), at.shape, generator=generator, device=at.device))
    alone = torch.where(alone.isnan(), ours.residual(at, ours.sample(at, generator), generator), alone)
    picked = bank[torch.randint(len(bank), (len(at),), generator=generator, device=at.device)]
    share = INDEPENDENT / (len(bank) + INDEPENDENT)
    noise = (1 - share) ** 0.5 * picked + share**0.5 * alone
    return ours.at_residual(at, trend + torch.where(picked.isnan(), alone, noise))
