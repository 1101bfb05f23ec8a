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
direction, is worth its bias. The same number decides both, the size of the prior, and how far β exceeds 1 at ρ = 1: in
sample the variance of the data is Σ_t h_t / β = γ / β, out of sample more, and β makes up for the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.posterior.lowrank import LowRankPrecision
from lapae.posterior.precision import eigh

SHARES = (1.0, 0.9, 0.6, 0.3, 0.1, 0.03, 0.01, 0.0)
"""ρ is one of these, sought from above: the bound has one maximum along them."""
WEIGHTS = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
"""β at ρ = 1 is one of these."""
FACTORS = 10.0 ** (torch.arange(-80, 81, dtype=torch.float64) / 20)
"""Factors of the prior precision that are tried where U stands alone, which one decomposition answers."""
ROUNDS = 2
"""Updates of the prior precision at each ρ, at most."""


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
    if weight > 0:
        seen = float((leverage / (weight * (1 - leverage))).sum())
    else:
        seen = float(explained.sum())
    # D is of the same vectors, χ² of T degrees in each weight: 1 / D is too large by 2 / T
    seen += (1 - rho) * 2 / precision.n_vectors * float(explained.square().sum())
    left = float(share.double().sum() - (inverse * k_prior.double()).sum())
    log_ratio = float(2 * root.diagonal().log().sum() - share[free].double().log().sum())
    norm = _squared_norm(mean, precision, free)
    determined = int(free.sum()) - left
    return Bound(-0.5 * (seen + norm - determined + log_ratio), seen, determined, norm)


def fit_shrinkage(mean: Mapping[str, Tensor], precision: LowRankPrecision, *, prior: bool = True) -> Bound:
    """Set ρ, and the size of the prior precision, to the maximum of the bound; return the bound there.

    Args:
        mean: weights θ, {name: *shape}.
        precision: with vectors; its prior precision is multiplied by one factor.
        prior: whether the prior precision is chosen too, or left as it is.
    """
    _check(precision)
    precision.set_rho(1.0)
    factor, weight = _best_alone(mean, precision, FACTORS if prior else torch.ones(1, dtype=torch.float64))
    _scale(precision, factor)
    precision.set_rho(1.0, weight)
    best, rho = bound(mean, precision), 1.0
    for lower in SHARES[1:]:
        precision.set_rho(lower)
        found = bound(mean, precision)
        if found.value <= best.value:
            break
        best, rho, weight = found, lower, lower
        if prior:
            best = _follow(mean, precision, best)
    precision.set_rho(rho, weight)
    return best


def _follow(mean: Mapping[str, Tensor], precision: LowRankPrecision, best: Bound) -> Bound:
    """Take the prior precision γ / |θ|² (MacKay 1992) as long as the bound rises; return the bound there."""
    for _ in range(ROUNDS):
        if not (best.determined > 0 and best.squared_norm > 0):
            break
        before = precision.prior.clone()
        _scale(precision, best.determined / best.squared_norm)
        found = bound(mean, precision)
        if found.value <= best.value:
            precision.set_prior(before)
            break
        best = found
    return best


def _scale(precision: LowRankPrecision, factor: float) -> None:
    precision.set_prior((precision.prior * factor).clamp(1e-8, 1e12))


def _best_alone(mean: Mapping[str, Tensor], precision: LowRankPrecision, factors: Tensor) -> tuple[float, float]:
    """Factor of the prior precision, and β, with the highest bound at ρ = 1: K is in proportion to β / factor."""
    free = precision.base().isfinite()
    zero = precision.h.new_zeros(precision.n_vectors, precision.n_vectors)
    k = sum((w @ w.T for w, _ in precision.scaled()), zero)
    values, vectors = eigh(k.double())
    values, squares, factor = values.clamp_min(0), vectors.square().T, factors.to(values.device)[:, None]
    norm = factor[:, 0] * _squared_norm(mean, precision, free)
    best = (-torch.inf, 1.0, 1.0)
    for weight in WEIGHTS:
        kept = weight * values / (weight * values + factor)  # (F, T)
        leverage = kept @ squares
        seen = (leverage / (1 - leverage)).sum(1) / weight
        value = -0.5 * (seen + norm - kept.sum(1) + (weight * values / factor).log1p().sum(1))
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
