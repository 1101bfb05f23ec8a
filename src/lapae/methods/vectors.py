"""Fit a low-rank posterior: vectors at the mean weights, by one ordinary backward pass of a batch each.

Every vector is the sketch of a batch, u = Σ_b J_bᵀ v_b with v_b ~ N(0, H_b), kept instead of squared. The batches of an
epoch together are the data, so the outer products of E epochs, divided by E, have the GGN as their mean. If an epoch
has more batches than there is room for vectors, each vector is the sum of several batches, while the diagonal, which
needs no room, is that of every batch: where it is 0, no sample has used the weight. The first `MOST_BATCHES` represent
larger data. If there are too few vectors to be used alone, an epoch before gives the diagonal its coordinates
(`posterior/lowrank.py`). If several processes share a batch, their parts of a vector are summed: numbers are drawn by
sample, so that the vectors are the same as with one process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from lapae.methods.base import BatchFactory
from lapae.methods.laplace import Laplace
from lapae.methods.step import StepContext
from lapae.posterior import LowRankPrecision, fit_shrinkage
from lapae.posterior.lowrank import ALONE
from lapae.posterior.precision import eigh

MOST_VECTORS = 500
"""Default number of vectors: for tables of up to some thousand rows it reaches the rank of what the data determine."""
MOST_BYTES = 1 << 30
"""Maximum size of all vectors, in memory and in a saved run; beyond half of it they are kept in bfloat16."""
MOST_PRODUCTS = 1 << 31
"""Maximum number of multiplications for a T x T matrix of products of vectors on a CPU: a tenth of a second."""
MOST_BATCHES = 4096
"""Maximum number of batches that vectors are collected from: more would take longer than training did."""
FEW_VECTORS = 32
"""Default number of vectors if there cannot be enough to use them without the diagonal: with it, more of them change
only time and memory (`benchmarks/ood_settings.md`, `benchmarks/shift.md`)."""
SAMPLES_PER_INPUT = 2
"""Minimum number of samples per input of the widest layer for coordinates of its own: fewer do not determine them. So
wide tables of few rows do without, for whose intervals they made no difference."""


@dataclass(frozen=True)
class Collected:
    """Vectors at the mean.

    Attributes:
        u: (T, P), with UᵀU an unbiased estimate of the GGN of the data; in bfloat16 where P is large. In the
            coordinates of the precision.
        d: its diagonal, (P,), by the squares of `n_squares` vectors; None if they are those of u.
        n_squares: number of vectors that the diagonal is of.
        log_likelihood: of all data at the mean, estimated from those that were seen.
        n_values: numbers in all of the data, samples times outputs.
    """

    u: Tensor
    d: Tensor | None
    n_squares: int
    log_likelihood: float
    n_values: int


def how_many(n_weights: int, device: torch.device, wanted: int | None = None) -> tuple[int, torch.dtype | None]:
    """Number of vectors over `n_weights`, and the type that they are kept in (None: that of the weights).

    Args:
        n_weights: P.
        device: where they are; a CPU takes fewer by default.
        wanted: the number that the user asks for, which memory may limit; default: MOST_VECTORS or fewer.
    """
    n = wanted or MOST_VECTORS
    if wanted is None and device.type == "cpu":
        n = min(n, math.isqrt(MOST_PRODUCTS // n_weights))
    if wanted is None and n_weights > 2 * ALONE * n:  # nor for the encoder, about half of them
        return min(FEW_VECTORS, MOST_BYTES // (2 * n_weights)) or 1, torch.bfloat16
    if 4 * n * n_weights <= MOST_BYTES:
        return n, None
    return max(1, min(n, MOST_BYTES // (2 * n_weights))), torch.bfloat16


@torch.no_grad()
def collect(
    method: Laplace, batches: BatchFactory, n_data: int, step: StepContext, wanted: int | None = None
) -> Collected:
    """Collect vectors over the training data.

    Args:
        method: at its final mean, in evaluation mode.
        batches: makes an iterator over (this process's part of) the batches of an epoch.
        n_data: samples in all.
        step: draws the numbers, and sums over processes.
        wanted: number of vectors; default: as many as `how_many` allows.
    """
    precision, prior = method.posterior, method.posterior.prior
    assert isinstance(precision, LowRankPrecision)
    most, kind = how_many(precision.n_weights, prior.device, wanted)
    n_free = sum(size for name, size in zip(precision.shapes, precision.sizes, strict=True) if name not in method.known)
    turned = n_free > ALONE * most and n_data >= SAMPLES_PER_INPUT * max(precision.sides)
    precision.set_bases(bases(method, batches, step) if turned else None)
    u = torch.empty(most, method.posterior.n_weights, dtype=kind or prior.dtype, device=prior.device)
    d = torch.zeros_like(method.posterior.flat_prior())
    n_batches, n_seen, n_outputs, log_likelihood = 0, 0, 1, 0.0
    for x in islice(batches(), MOST_BATCHES):
        (vector,), n, found = method.vectors_of(x, step, 1)
        vector = precision.turn(vector)
        row = n_batches % most
        u[row] = vector if n_batches < most else u[row] + vector
        d.addcmul_(vector, vector)
        n_batches, n_seen, log_likelihood = n_batches + 1, n_seen + n, log_likelihood + found
        n_outputs = x[0].numel() if len(x) else n_outputs
    n_vectors = min(n_batches, most)
    repeats = most // n_batches - 1 if n_batches else 0
    for x in batches() if repeats > 0 else ():  # further vectors of a batch share its forward pass
        u[n_vectors : n_vectors + repeats] = precision.turn(method.vectors_of(x, step, repeats)[0])
        n_vectors += repeats
    share = n_data / max(1, n_seen)  # 1 unless there are more than MOST_BATCHES
    u = u[:n_vectors].mul_(math.sqrt(share / (1 + max(0, repeats))))
    if step.world_size > 1:
        log_likelihood = step.total(log_likelihood, prior)
    summed = n_batches > most
    return Collected(
        u if n_vectors == most else u.clone(),
        d.mul_(share) if summed else None,
        n_batches if summed else n_vectors,
        log_likelihood * share,
        n_data * n_outputs,
    )


@torch.no_grad()
def bases(method: Laplace, batches: BatchFactory, step: StepContext) -> dict[str, Tensor]:
    """Return the eigenvectors of Σ uᵀ u of every weight tensor that is to have its own, {name: (n, n)}.

    Args:
        method: as for `collect`.
        batches: as for `collect`.
        step: as for `collect`.
    """
    precision = method.posterior
    assert isinstance(precision, LowRankPrecision)
    sums = {
        name: precision.prior.new_zeros(side, side)
        for name, side in zip(precision.shapes, precision.sides, strict=True)
        if side
    }
    for x in islice(batches(), MOST_BATCHES):
        for name, u in precision.split(method.vectors_of(x, step, 1)[0][0]).items():
            if name in sums:
                u = u.flatten(1)
                sums[name].addmm_(u.mT, u)
    return {name: eigh(found.double())[1] for name, found in sums.items()}


def fit_lowrank(
    method: Laplace,
    batches: BatchFactory,
    n_data: int,
    step: StepContext,
    wanted: int | None = None,
    *,
    prior: bool = True,
) -> dict[str, float]:
    """Collect vectors at the mean, then choose ρ and the prior precision by the evidence; return numbers to report.

    Args:
        method: at its final mean, with a low-rank precision.
        batches: as for `collect`.
        n_data: samples in all.
        step: as for `collect`.
        wanted: number of vectors.
        prior: whether the prior precision is chosen too.
    """
    precision = method.posterior
    assert isinstance(precision, LowRankPrecision)
    method.pin()
    found = collect(method, batches, n_data, step, wanted)
    precision.set_vectors(found.u, found.d)
    precision.n_values.fill_(found.n_values)
    mean = dict(method.network.named_parameters())
    evidence = fit_shrinkage(mean, precision, found.n_values, prior=prior, n_squares=found.n_squares)
    return {
        "log_likelihood": found.log_likelihood,
        "log_marginal_likelihood": found.log_likelihood + evidence.value,
        "prior_precision": float(precision.prior.mean()),
        "low_rank_share": float(precision.rho),
        "determined_weights": evidence.determined,
        "vectors": len(found.u),
        "vectors_gb": found.u.numel() * found.u.element_size() / 1e9,
    }
