"""Density of latent codes: a mixture of Gaussians over the codes of training samples, for sampling and for weighting.

Codes are rotated to their principal directions and scaled to unit variance, so that one setting works for all data. If
codes have very many numbers, the mixture covers the main directions, and the others are noise around it (probabilistic
PCA). The mixture is fitted by expectation-maximisation with full covariances. Each covariance is shrunk to the mean of
all with the weight of one code per direction, so that components with few codes remain stable. The number of components
is the one that suits held-out codes best.

Shapes: n codes of K numbers, P directions, C components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lapae.networks.principal import principal_components
from lapae.networks.threads import one_thread

COMPONENTS = (1, 3, 10, 30)
PER_COMPONENT = 4
"""Minimum number of codes per component."""
LEAST_VARIANCE = 1e-3
"""Added to the variances of components; the variance of all codes is 1."""
STEPS = 40
DIRECTIONS = 64
"""Maximum number of principal directions of codes that the mixture is over."""
FLAT = 1e-6
"""Share of the largest variance below which a direction counts as constant."""
MOST_CODES, MOST_PRODUCTS = 10_000, 2**23
"""Maximum number of codes to fit to, and of products of two of their numbers in total; see `most_codes`."""


@dataclass(frozen=True)
class CodeDensity:
    """Mixture of Gaussians in the principal directions of codes.

    Attributes:
        center: mean of the codes, (K,).
        basis: principal directions, each with the standard deviation of the codes along it as its length, (K, P).
        noise: standard deviation of codes in each of the other directions, ().
        weights: weights of the components, adding up to 1, (C,).
        means: (C, P).
        factors: lower Cholesky factors of the covariances, (C, P, P).
    """

    center: Tensor
    basis: Tensor
    noise: Tensor
    weights: Tensor
    means: Tensor
    factors: Tensor

    @classmethod
    @one_thread()  # many small operations
    def fit(cls, codes: Tensor, held_out: Tensor) -> CodeDensity:
        """Fit to training codes (n, …), with the number of components that suits held-out codes (m, …) best."""
        dtype, codes, held_out = codes.dtype, codes.flatten(1).double(), held_out.flatten(1).double()
        if not len(held_out):  # use a part of the codes instead
            held_out, codes = (
                (codes[::5], codes[torch.arange(len(codes)) % 5 > 0]) if len(codes) > 20 else (codes, codes)
            )
        found = principal_components(codes, DIRECTIONS)
        kept = max(1, int((found.variances > FLAT * found.variances[0]).sum()))
        center, basis = found.mean, found.vectors[:, :kept] * found.variances[:kept].clamp_min(1e-12).sqrt()
        left = (codes.var(0, correction=0).sum() - found.variances[:kept].sum()).clamp_min(0)
        noise = (left / max(codes.shape[1] - kept, 1)).sqrt()
        place = (codes - center) @ (basis / basis.norm(dim=0).square())
        best: tuple[float, CodeDensity] | None = None
        for n_components in COMPONENTS:
            if n_components > 1 and len(codes) < PER_COMPONENT * n_components:
                break
            mixture = cls(center, basis, noise, *_mixture(place, n_components))
            likely = float(mixture.log_prob(held_out).mean())
            if best is None or likely > best[0]:
                best = likely, mixture
        assert best is not None
        return cls(*(getattr(best[1], own.name).to(dtype) for own in fields(cls)))

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log density (n,) of codes z (n, …)."""
        gap = z.flatten(1) - self.center
        length = self.basis.norm(dim=0)
        place = gap @ (self.basis / length.square())
        inside = _joint(place, self.weights, self.means, self.factors).logsumexp(1) - length.log().sum()
        others = gap.shape[1] - place.shape[1]
        if not others or not self.noise:
            return inside
        away = gap.square().sum(1) - (place * length).square().sum(1)
        scaled = away.clamp_min(0) / self.noise.square() + others * math.log(2 * math.pi)
        return inside - 0.5 * scaled - others * self.noise.log()

    def sample(self, n: int, seed: int = 0) -> Tensor:
        """Draw n codes (n, K)."""
        generator = torch.Generator().manual_seed(seed)
        which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
        noise = torch.randn(n, self.means.shape[1], generator=generator, dtype=self.means.dtype)
        place = self.means[which] + torch.einsum("npq,nq->np", self.factors[which], noise)
        return self.center + place @ self.basis.T


def most_codes(size: int) -> int:
    """Return the maximum number of codes of `size` numbers to fit to."""
    return min(MOST_CODES, MOST_PRODUCTS // min(size, DIRECTIONS) ** 2)


def _mixture(x: Tensor, n_components: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fit weights (C,), means (C, P) and Cholesky factors (C, P, P) to x (n, P) by expectation-maximisation."""
    n, p = x.shape
    least = LEAST_VARIANCE * torch.eye(p, dtype=x.dtype)
    products = (x[:, :, None] * x[:, None]).flatten(1)  # so that scatter and density are one matrix product each
    share = torch.nn.functional.one_hot(torch.cdist(x, _far_apart(x, n_components)).argmin(1), n_components).to(x)
    weights = means = factors = x  # set by the first step
    for _ in range(STEPS if n_components > 1 else 1):
        size = share.sum(0) + 1e-6
        means = share.T @ x / size[:, None]
        second = (share.T @ products).unflatten(1, (p, p)) - size[:, None, None] * means[:, :, None] * means[:, None]
        spread = (second + p * second.sum(0) / n) / (size + p)[:, None, None]
        weights, factors = size / size.sum(), torch.linalg.cholesky(spread + least)
        inverse = torch.cholesky_inverse(factors)
        slope = (inverse @ means[:, :, None])[:, :, 0]
        constant = weights.log() - factors.diagonal(dim1=1, dim2=2).log().sum(1) - 0.5 * (slope * means).sum(1)
        share = (constant + x @ slope.T - products @ (0.5 * inverse).flatten(1).T).softmax(1)
    return weights, means, factors


def _far_apart(x: Tensor, k: int) -> Tensor:
    """Choose k starting points among x (n, P), far apart: each is drawn by its squared distance to those before it."""
    generator = torch.Generator().manual_seed(0)
    chosen = [int(torch.randint(len(x), (1,), generator=generator))]
    square = (x - x[chosen[0]]).square().sum(1)
    for _ in range(k - 1):
        chosen.append(int(torch.multinomial(square + 1e-12, 1, generator=generator)))
        square = torch.minimum(square, (x - x[chosen[-1]]).square().sum(1))
    return x[chosen]


def _joint(x: Tensor, weights: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the log of weight times density of each component: (n, C) for x (n, P)."""
    eye = torch.eye(x.shape[1], dtype=x.dtype).expand_as(factors)
    inverses = torch.linalg.solve_triangular(factors, eye, upper=False)
    square = torch.stack([((x - m) @ inverse.T).square().sum(1) for m, inverse in zip(means, inverses, strict=True)], 1)
    constant = weights.log() - factors.diagonal(dim1=1, dim2=2).log().sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi)
    return constant - 0.5 * square
