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
"""Weight, in held-out rows, of noise that is independent between features."""
PER_NUMBER = 10
"""Minimum number of rows per number of a code, to learn how residuals depend on codes."""
MOST_VALUES = 2**23
"""Maximum number of values of held-out rows whose residuals are used."""
CHAINS = 8
"""Maximum number of sampled networks among which the samples to be generated are divided."""


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
    """Decode n samples (n, *shape) from the density of codes: with up to `CHAINS` sampled networks or, given `rows`, by
    the mean network and residuals of data around it, which include the differences between networks.

    Args:
        method: the trained method.
        codes: codes of training samples and their density.
        n: number of samples.
        rows: held-out samples (R, *shape), NaN where missing: generated samples are as far from their decoded means as
            these are. Default: generated samples are the decoded means.
        known: training samples, whose residuals are used, too, scaled to the size of those of `rows`.
        seed: seed of codes, networks and noise.
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
    # each member of an ensemble has its own latent space: use that of the first
    seeds = draw_seeds(seed, _chains(method, n)) if method.shared_codes else []
    made = []
    with evaluating(method, n // max(len(seeds), 1)):
        networks = (method.draw([s]) for s in seeds) if seeds else [method.draw_mean()]
        for draws, part in zip(networks, z.tensor_split(max(len(seeds), 1)), strict=True):
            made.append(expected(method.likelihood, draws.decode(part[None]))[0])
    return torch.cat(made).cpu()


def _encoded(method: Method, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return a limited number of rows (R, *shape) and their codes, on the device of the method."""
    weight = next(method.parameters())
    rows = evenly(rows, max(1, MOST_VALUES // rows[0].numel()))
    return rows.to(weight.device, weight.dtype), encode_mean(method, rows).to(weight.device, weight.dtype)


def _around(likelihood: Likelihood, output: Output) -> Likelihood:
    return likelihood if output.var is None else likelihood.with_variance(output.var[0])


def _residual(likelihood: Likelihood, output: Output, rows: Tensor, generator: torch.Generator) -> Tensor:
    return _around(likelihood, output).residual(output.loc[0], rows, generator)


def _by_code(residuals: Tensor, codes: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return residuals (R, *shape) minus their linear regression on codes, and the regression at z (B, …).

    If a network reconstructs a column with too little variation, or a constant with some, residuals make up for it.
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
    """Return samples (B, *shape): `output` plus `trend` (B, *shape) plus residuals drawn from `bank` (R, *shape).

    The residuals of a row are used together, as columns depend on each other. As few rows do not show all of this
    dependence, a share of the noise, and the noise of missing values, is drawn from another row for each feature;
    features without a residual get their noise from the likelihood.
    """
    ours, at = _around(likelihood, output), output.loc[0]
    alone = bank.gather(0, torch.randint(len(bank), at.shape, generator=generator, device=at.device))
    alone = torch.where(alone.isnan(), ours.residual(at, ours.sample(at, generator), generator), alone)
    picked = bank[torch.randint(len(bank), (len(at),), generator=generator, device=at.device)]
    share = INDEPENDENT / (len(bank) + INDEPENDENT)
    noise = (1 - share) ** 0.5 * picked + share**0.5 * alone
    return ours.at_residual(at, trend + torch.where(picked.isnan(), alone, noise))
