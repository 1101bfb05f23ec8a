"""The share ρ of the outer products in a low-rank posterior, and the prior precision: by the evidence, bounded below.

The posterior q = N(θ, C⁻¹), C = Λ + (1 - ρ) D + β UᵀU, stands for that of the linearised network, N(θ, (Λ + G)⁻¹), of
which U is a sample. For any C the evidence of the linearised network is at least

    log p(D | θ) - ½ [tr(G C⁻¹) + θᵀΛθ + tr(Λ C⁻¹) - P + log det C - log det Λ]

(the evidence lower bound; with equality at C = Λ + G, where it is the Laplace evidence of `evidence.py`). What it asks
of G is tr(G C⁻¹) alone, the variance that q gives the data: a vector u that C has not seen measures it, E uᵀ C⁻¹ u. Of
the T vectors each is left out in turn, which costs nothing: with h_t = β u_tᵀ C⁻¹ u_t the leverage of a vector,

    tr(G C⁻¹) ≈ Σ_t u_tᵀ C₋ₜ⁻¹ u_t = Σ_t (h_t / β) / (1 - h_t)

Where T reaches the rank of G, leverages are small and the bound is highest at ρ = 1: the diagonal would only take
variance from directions that the data leave open. Where T is far below it, a vector that is left out lies outside the
span of the others: at ρ = 1 only the prior holds it, its variance is enormous, and the diagonal, which holds every
direction, is worth its bias. The same number decides both. At ρ = 1 it also gives the size of the prior, and how far β
exceeds 1: in sample the variance of the data is Σ_t h_t / β, out of sample more, and β makes up for the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.posterior.lowrank import LowRankPrecision

SHARES = (1.0, 0.9, 0.6, 0.3, 0.1, 0.03, 0.01, 0.0)
"""ρ is one of these, sought from above: the bound has one maximum along them."""
WEIGHTS = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
"""β at ρ = 1 is one of these."""
FACTORS = 10.0 ** (torch.arange(-80, 81, dtype=torch.float64) / 20)
"""Factors of the prior precision that are tried where U stands alone, which one decomposition answers."""


@dataclass(frozen=True)
class Bound:
    """A lower bound of the log evidence, less the log-likelihood at the mean, and what it says of the prior.

    Attributes:
        value: the bound, less log p(D | θ).
        data_variance: tr(G C⁻¹), by vectors that are left out.
        determined: P - tr(Λ C⁻¹), how many weights the data determine.
        squared_norm: θᵀΛθ.
    """

    value: float
    data_variance: float
    determined: float
    squared_norm: float


def bound(mean: Mapping[str, Tensor], precision: LowRankPrecision) -> Bound:
    """Evidence lower bound of a low-rank posterior with random vectors, at its ρ and prior precision.

    Args:
        mean: weights θ, {name: *shape}.
        precision: at temperature 1, with vectors.
    """
    _check(precision)
    prior, base = precision.flat_prior(), precision.base()
    free = base.isfinite()  # the others are known: they have neither prior nor posterior
    share = torch.where(free, prior / base, 0.0)
    zero = prior.new_zeros(precision.n_vectors, precision.n_vectors)
    k, k_prior = zero.clone(), zero.clone()
    for w, columns in precision.scaled():
        k += w @ w.T
        w *= share[columns].sqrt()
        k_prior += w @ w.T
    rho, weight = float(precision.rho), float(precision.weight)
    inner = k.double() + torch.eye(len(k), dtype=torch.float64, device=k.device)
    root = torch.linalg.cholesky(inner)
    inverse = torch.cholesky_inverse(root)
    leverage = 1 - inverse.diagonal()
    explained = torch.where(free, precision.d / base, 0.0).double()
    seen = float((leverage / (weight * (1 - leverage))).sum()) if weight > 0 else float(explained.sum())
    # D is of the same vectors, χ² of T degrees in each weight: 1 / D is too large by 2 / T
    seen += (1 - rho) * 2 / precision.n_vectors * float(explained.square().sum())
    left = float(share.double().sum() - (inverse * k_prior.double()).sum())
    log_ratio = float(2 * root.diagonal().log().sum() - share[free].double().log().sum())
    norm = _squared_norm(mean, precision, free)
    determined = int(free.sum()) - left
    return Bound(-0.5 * (seen + norm - determined + log_ratio), seen, determined, norm)


def fit_shrinkage(mean: Mapping[str, Tensor], precision: LowRankPrecision, *, prior: bool = True) -> Bound:
    """Set ρ, and where the vectors then stand alone the size of the prior precision, to the maximum of the bound.

    Below ρ = 1 the prior precision stays as it is given: the bound then is far below the evidence, by an amount that a
    larger prior precision lessens, so that its maximum would say more about that gap than about the data.

    Args:
        mean: weights θ, {name: *shape}.
        precision: with vectors; its prior precision is multiplied by one factor.
        prior: whether the prior precision is chosen too, or left as it is.

    Returns:
        The bound at what is chosen.
    """
    _check(precision)
    precision.set_rho(1.0)
    alone = _Alone.of(mean, precision)
    _, weight = alone.best(torch.ones(1, dtype=torch.float64))
    precision.set_rho(1.0, weight)
    best, rho = bound(mean, precision), 1.0
    for lower in SHARES[1:]:
        precision.set_rho(lower)
        found = bound(mean, precision)
        if found.value <= best.value:
            break
        best, rho, weight = found, lower, lower
    if rho == 1 and prior:
        factor, weight = alone.best(FACTORS)
        precision.set_prior((precision.prior * factor).clamp(1e-8, 1e12))
        precision.set_rho(1.0, weight)
        return bound(mean, precision)
    precision.set_rho(rho, weight)
    return best


@dataclass(frozen=True)
class _Alone:
    """The bound at ρ = 1 for all sizes of the prior and all β, from one decomposition: K is in proportion to β / size.

    Attributes:
        values: eigenvalues of K at β = 1 and the prior precision as it is, (T,).
        squares: squares of the eigenvectors, a row each, (T, T).
        squared_norm: θᵀΛθ.
    """

    values: Tensor
    squares: Tensor
    squared_norm: float

    @classmethod
    def of(cls, mean: Mapping[str, Tensor], precision: LowRankPrecision) -> _Alone:
        values, vectors = precision.spectrum()
        norm = _squared_norm(mean, precision, precision.base().isfinite())
        return cls(values, vectors.square().T, norm)

    def best(self, factors: Tensor) -> tuple[float, float]:
        """Factor of the prior precision, and β, with the highest bound."""
        factor = factors.to(self.values.device)[:, None]
        best = (-torch.inf, 1.0, 1.0)
        for weight in WEIGHTS:
            k = weight * self.values / factor  # (F, T)
            kept = k / (1 + k)
            leverage = kept @ self.squares
            seen = (leverage / (1 - leverage)).sum(1) / weight
            value = -0.5 * (seen + factor[:, 0] * self.squared_norm - kept.sum(1) + k.log1p().sum(1))
            found = int(value.argmax())
            best = max(best, (float(value[found]), float(factor[found, 0]), weight))
        return best[1], best[2]


def _squared_norm(mean: Mapping[str, Tensor], precision: LowRankPrecision, free: Tensor) -> float:
    """θᵀΛθ of the weights that are uncertain."""
    theta = precision.join(mean).double()
    return float((precision.flat_prior().double() * theta.square())[free].sum())


def _check(precision: LowRankPrecision) -> None:
    if not precision.n_vectors:
        raise ValueError("the bound is that of vectors, and none have been collected")
