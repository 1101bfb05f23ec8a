"""The methods of the curvature, each written once for both backward passes.

A method determines what starts at the output: all of M (`exact`), random vectors with covariance M (`sampled`), or M at
the code (`bottleneck`). The collector determines what is extracted from it in each layer: the diagonal, the block, or
Kronecker factors. All methods take

    work        the network on a batch, recorded or not
    likelihood  gives H, the Hessian at the output
    sampling    how many random vectors to draw, and the source of their randomness
    collect     takes what it wants of each layer
    budget      numbers that may be held at a time
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lapae.curvature.backward import Backward, Halves, Sampling
from lapae.curvature.call import Work
from lapae.curvature.collect import Collect
from lapae.curvature.forms import Dense, random_rows, ranges, seed
from lapae.curvature.forward import Forward, n_features
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.per_sample import cut_passes, planned_passes
from lapae.curvature.walked import Walk

LARGEST_CODE = 1024
"""Maximum size of a code, which needs a row for each of its numbers and a matrix between them."""


def exact(work: Work, likelihood: Likelihood, collect: Collect, budget: int) -> None:
    """Carry all of M, the Hessian at the output, to every layer."""
    for at, samples in _passes(work, budget):
        collect.enter(at.layers(collect.whole_layers))
        at.carry(seed(likelihood.part(samples), at.result), collect, budget)


def sampled(work: Work, likelihood: Likelihood, sampling: Sampling, collect: Collect, budget: int) -> None:
    """Pull back n vectors v ~ N(0, H / n), some at a time, so that E Σ v vᵀ = H."""
    n_rows, generator = sampling
    for at, samples in _passes(work, budget):
        collect.enter(at.layers(collect.whole_layers))
        output, part = at.result, likelihood.part(samples)
        for first, last in ranges(n_rows, max(1, budget // (at.row_floats() * len(output)))):
            at.pull_rows(random_rows(part, output, last - first, generator, of=n_rows), collect)


def bottleneck(
    work: Work, likelihood: Likelihood, name: str | None, sampling: Sampling, collect: Collect, budget: int
) -> None:
    """Carry M from the code: exact, at linear cost, for layers that act only through it; approximate for the others.

    M at the code is Tᵀ H T with T = ∂output/∂code, (K, K) for each sample. The code is the output of the module `name`,
    by default the narrowest; a decoder without rules gets random vectors.
    """
    for at, samples in _cut_passes(work, name, budget):
        check_code(n_features(at.latent))
        part = likelihood.part(samples)
        at.read_decoder(part, sampling, collect)
        if at.has_encoder:
            t = at.tangents()
            m = torch.einsum("rb...,sb...->brs", t, part.hessian_product(at.result, t))
            at.carry_from_code(Dense(m), collect, budget)


def check_code(n_code: int) -> None:
    """Raise ValueError for a code with too many numbers for one row each."""
    if n_code > LARGEST_CODE:
        raise ValueError(
            f"the code has {n_code:,} numbers, and the bottleneck method a row for each of them and a matrix between "
            f"them (at most {LARGEST_CODE:,}): take sketch, which has one row"
        )


def _passes(work: Work, budget: int) -> Iterator[tuple[Backward, slice]]:
    """Yield backward passes and their samples: one for a walked network, several within the budget for any other.

    A recorded walk holds all samples anyway; the graph of any other module is made for some at a time.
    """
    if isinstance(work, Forward):
        yield Walk.of(work), slice(None)
    else:
        yield from planned_passes(work, budget)


def _cut_passes(work: Work, name: str | None, budget: int) -> Iterator[tuple[Halves, slice]]:
    if isinstance(work, Forward):
        yield Walk.of(work).cut(name), slice(None)
    else:
        yield from cut_passes(work, name, budget)
