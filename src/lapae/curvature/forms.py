"""The forms in which M travels between layers.

    Diagonal  m (B or 1, *F)            the diagonal alone
    Rows      v (R, B, *F), c (B, R, R)  M = Σ_rs v_r c_rs v_sᵀ; c None stands for the identity
    Dense     c (B or 1, F, F)           M itself

Rows are pulled by one vjp of a layer each, a dense M by products on both sides. Rows are cheap if there are fewer of
them than features (from the latent code back to the input), the dense form if there are fewer features than rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.rules.base import identity_rows


@dataclass(frozen=True)
class Rows:
    """M = Σ_rs v_r c_rs v_sᵀ, of rank at most R."""

    v: Tensor
    """(R, B, *F)"""
    c: Tensor | None = None
    """(B, R, R); None: the identity."""

    def dense(self) -> Tensor:
        """Return M, (B, F, F)."""
        v = self.v.flatten(2).movedim(0, 1)  # (B, R, F)
        return v.mT @ (v if self.c is None else self.c @ v)


@dataclass(frozen=True)
class Diagonal:
    """M = diag(m)."""

    m: Tensor

    def part(self, samples: slice) -> Diagonal:
        return self if len(self.m) == 1 else Diagonal(self.m[samples])

    def rows(self, first: int, last: int, y: Tensor) -> Rows:
        """Return rows √m_r e_r for the features first … last, at an output y (B, *F)."""
        return Rows(identity_rows(y, first, last) * self.m.sqrt())


@dataclass(frozen=True)
class Dense:
    """M as a matrix per sample, or one matrix for all."""

    c: Tensor
    """(B or 1, F, F)"""

    def part(self, samples: slice) -> Dense:
        return self if len(self.c) == 1 else Dense(self.c[samples])

    def rows(self, first: int, last: int, y: Tensor) -> Rows:
        """Return all rows of the identity, with c between them; to pass some at a time, take the `factor` first."""
        n = self.c.shape[-1]
        if (first, last) == (0, n):
            return Rows(identity_rows(y), self.c.expand(len(y), n, n))
        raise AssertionError("a part of the rows of a matrix needs its factor")

    def factor(self) -> Factor:
        """Return s with M = s sᵀ."""
        return Factor(root(self.c))


@dataclass(frozen=True)
class Factor:
    """M = s sᵀ per sample, or one for all."""

    s: Tensor
    """(B or 1, F, F)"""

    def rows(self, first: int, last: int, y: Tensor) -> Rows:
        """Return columns first … last of s as rows, at an output y (B, *F)."""
        v = self.s[:, :, first:last].permute(2, 0, 1).expand(-1, len(y), -1)
        return Rows(v.reshape(last - first, *y.shape))


@dataclass(frozen=True)
class Seed:
    """M at the output of a likelihood whose Hessian is not diagonal: rows of its factor."""

    likelihood: Likelihood
    output: Tensor

    def part(self, samples: slice) -> Seed:
        return Seed(self.likelihood.part(samples), self.output[samples])

    def rows(self, first: int, last: int, y: Tensor) -> Rows:
        """Return S e_r for the features first … last, with S Sᵀ = M."""
        return Rows(self.likelihood.hessian_factor(self.output, identity_rows(y, first, last)))


Form = Diagonal | Dense | Seed


def root(c: Tensor) -> Tensor:
    """Return s with s sᵀ = c (B, F, F), by eigenvalues: c may be singular."""
    values, vectors = torch.linalg.eigh(c)
    return vectors * values.clamp_min(0).sqrt()[:, None, :]


def random_rows(
    likelihood: Likelihood, output: Tensor, n: int, generator: torch.Generator | None, of: int | None = None
) -> Tensor:
    """Draw v ~ N(0, H / n) at the output, so that E Σ v vᵀ = H.

    Args:
        likelihood: gives H.
        output: of the network, (B, *out).
        n: number of vectors to draw.
        generator: source of randomness.
        of: the n in the formula, if these are only some of the vectors.

    Returns:
        (n, B, *out).
    """
    eps = torch.randn(n, *output.shape, dtype=output.dtype, device=output.device, generator=generator)
    count = of or n
    return likelihood.hessian_factor(output, eps if count == 1 else eps * count**-0.5)


def seed(likelihood: Likelihood, output: Tensor) -> Form:
    """Return M at the output (B, *out) of the network: the Hessian of the negative log-likelihood."""
    return Diagonal(likelihood.hessian_diag(output)) if likelihood.diagonal else Seed(likelihood, output)


def ranges(n: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield first and last (exclusive) of n items, at most `size` at a time."""
    return ((i, min(i + size, n)) for i in range(0, n, size))
