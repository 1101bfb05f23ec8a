"""The share ρ of the outer products in a low-rank posterior, and the prior precision, chosen by an evidence bound.

The posterior q = N(θ, C⁻¹), C = Λ + (1 - ρ) D + ρ UᵀU, approximates that of the linearised network, N(θ, (Λ + G)⁻¹),
where U is a sample of G. For any C the evidence of the linearised network is at least

    log p(D | θ) - ½ [tr(G C⁻¹) + θᵀΛθ + tr(Λ C⁻¹) - P + log det C - log det Λ]

(the evidence lower bound; with equality at C = Λ + G, where it is the Laplace evidence of `evidence.py`). It depends on
G only through tr(G C⁻¹), the variance that q gives the data. A vector u that is not part of C estimates it, as
E uᵀ C⁻¹ u. So each of the T vectors is left out in turn, which has a closed form: with h_t = ρ u_tᵀ C⁻¹ u_t the
leverage of a vector,

    tr(G C⁻¹) ≈ Σ_t u_tᵀ C₋ₜ⁻¹ u_t = Σ_t (h_t / ρ) / (1 - h_t)

If T reaches the rank of G, leverages are small, and the vectors are used alone (ρ = 1): the diagonal would only remove
variance from directions that the data leave open. The prior precision then maximises the Laplace evidence of UᵀU. If T
is far below the rank, a vector that is left out lies outside the span of the others: at ρ = 1 only the prior constrains
it, its variance is enormous, and the diagonal, which constrains every direction, is worth its bias. The two cases are
distinguished by tr(G C⁻¹), the total variance of the data's own values in units of their noise. The vectors are used
alone if it is at most MOST_VARIANCE per value. If it is more, and there are at most ALONE weights per vector, as in
networks of tables, the prior precision is raised until it is not; in larger networks a tenth of the vectors is combined
with the diagonal (any share from a tenth to a half serves as well).

The diagonal then bounds the variance of the data by one unit of noise for each weight, tr(D M⁻¹) <= P / (1 - ρ),
however weak the prior is. The prior determines the variance along weights that the data have not used, and this is the
variance that shows where the data end. So the prior is weakened, to a thousandth at most, as long as the data's own
values get no more variance than their noise (`benchmarks/ood_settings.md`).

Maximising the bound would choose the diagonal more often, also for tables whose intervals then cover less where the
data end and are no better elsewhere: the diagonal removes variance from all directions alike (`benchmarks/shift.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.posterior.lowrank import ALONE, LowRankPrecision

SHARE = 0.1
"""ρ if the vectors do not reach the rank of the curvature; otherwise it is 1."""
FACTORS = 10.0 ** (torch.arange(-80, 81, dtype=torch.float64) / 20)
"""Factors of the prior precision that are tried if U is used alone; one decomposition serves for all of them."""
MOST_VARIANCE = 4.0
"""Variance of the data's own values over networks, in units of their noise, up to which the vectors are used alone."""
WEAKER = 10.0 ** (-torch.arange(7, dtype=torch.float64) / 2)
"""Factors of the prior precision that are tried together with the diagonal."""
MOST_PRODUCTS = 1 << 30
"""Maximum number of multiplications for K; beyond it, a bound uses some of the weights, evenly spaced."""


@dataclass(frozen=True)
class Bound:
    """A lower bound of the log evidence, without the log-likelihood at the mean, and the terms that set the prior.

    Attributes:
        value: the bound minus log p(D | θ).
        data_variance: tr(G C⁻¹), estimated with vectors that are left out.
        determined: P - tr(Λ C⁻¹), how many weights the data determine.
        squared_norm: θᵀΛθ.
    """

    value: float
    data_variance: float
    determined: float
    squared_norm: float


def bound(
    mean: Mapping[str, Tensor], precision: LowRankPrecision, most: int = MOST_PRODUCTS, *, n_squares: int | None = None
) -> Bound:
    """Return the evidence lower bound of a low-rank posterior with random vectors, at its ρ and prior precision.

    Args:
        mean: weights θ, {name: *shape}.
        precision: at temperature 1, with vectors.
        most: maximum number of multiplications for a matrix of products between vectors.
        n_squares: number of vectors that the diagonal is of; default: T.
    """
    _check(precision)
    prior, base = precision.flat_prior(), precision.base()
    free = base.isfinite()  # the others are known: they have neither prior nor posterior
    share = torch.where(free, prior / base, 0.0)
    zero = prior.new_zeros(precision.n_vectors, precision.n_vectors, dtype=torch.float64)
    k, k_prior = zero.clone(), zero.clone()
    step = max(1, -(-(precision.n_vectors**2) * precision.n_weights // most))
    for w, columns in precision.scaled():
        w = w[:, ::step] * step**0.5
        k += w @ w.T
        w *= share[columns][::step].sqrt()
        k_prior += w @ w.T
    rho = float(precision.rho)
    inner = k.double() + torch.eye(len(k), dtype=torch.float64, device=k.device)
    root = torch.linalg.cholesky(inner)
    inverse = torch.cholesky_inverse(root)
    leverage = 1 - inverse.diagonal()
    explained = torch.where(free, precision.d / base, 0.0).double()
    seen = float((leverage / (rho * (1 - leverage))).sum()) if rho > 0 else float(explained.sum())
    # D is a sample too, χ² with n degrees of freedom in each weight: 1 / D is too large by 2 / n
    seen += (1 - rho) * 2 / (n_squares or precision.n_vectors) * float(explained.square().sum())
    left = float(share.double().sum() - (inverse * k_prior.double()).sum())
    log_ratio = float(2 * root.diagonal().log().sum() - share[free].double().log().sum())
    norm = _squared_norm(mean, precision, free)
    determined = int(free.sum()) - left
    return Bound(-0.5 * (seen + norm - determined + log_ratio), seen, determined, norm)


def fit_shrinkage(
    mean: Mapping[str, Tensor],
    precision: LowRankPrecision,
    n_values: int,
    *,
    prior: bool = True,
    n_squares: int | None = None,
) -> Bound:
    """Set ρ to 1 or to SHARE, and the size of the prior precision.

    If there are few vectors for the network of a table, the prior precision is raised beyond that of the highest
    evidence. For ρ < 1 it is not chosen by the highest bound: the bound is then far below the evidence, by a gap that
    shrinks as the prior precision grows, so that its maximum would say more about the gap than about the data.

    Args:
        mean: weights θ, {name: *shape}.
        precision: with vectors; its prior precision is multiplied by one factor.
        n_values: number of values in all the data: samples times outputs.
        prior: whether the prior precision is chosen too, or left as it is.
        n_squares: number of vectors that the diagonal was computed from; default: T.

    Returns:
        The bound at the chosen values.
    """
    _check(precision)
    precision.set_rho(1.0)
    values, vectors = precision.spectrum()
    free = precision.base().isfinite()
    norm = _squared_norm(mean, precision, free)
    factors = FACTORS.to(values.device) if prior else values.new_ones(1)
    evidence = -0.5 * (factors * norm + (values / factors[:, None]).log1p().sum(1))
    k = values / factors[:, None]
    kept = k / (1 + k)
    leverage = vectors.square() @ kept.T
    variance = (leverage / (1 - leverage)).sum(0)  # of the data's values, for each factor
    best, enough = int(evidence.argmax()), variance <= MOST_VARIANCE * n_values
    if prior and int(free.sum()) <= ALONE * precision.n_vectors:
        best = next((i for i in range(best, len(factors)) if enough[i]), best)
    if not enough[best]:
        precision.set_rho(SHARE)
        if prior:
            _weaken(precision, n_values)
        return bound(mean, precision, n_squares=n_squares)
    factor, k = factors[best], k[best]
    seen, determined, norm = float(variance[best]), float(kept[best].sum()), float(factor) * norm
    if prior:
        precision.set_prior((precision.prior * factor).clamp(1e-8, 1e12))
        precision.keep_spectrum(values / float(factor), vectors)
    return Bound(-0.5 * (seen + norm - determined + float(k.log1p().sum())), seen, determined, norm)


def _weaken(precision: LowRankPrecision, n_values: int) -> None:
    """Lower the prior precision while the diagonal gives the data's values no more variance than their noise."""
    first = precision.prior.clone()
    for factor in WEAKER.tolist():
        precision.set_prior(first * factor)
        base = precision.base()
        variance = torch.where(base.isfinite(), precision.d / base, 0.0).sum(dtype=torch.float64)
        if variance > n_values:
            precision.set_prior(first * min(1.0, factor * 10**0.5))
            return


def _squared_norm(mean: Mapping[str, Tensor], precision: LowRankPrecision, free: Tensor) -> float:
    """Return θᵀΛθ over the weights that are uncertain."""
    theta = precision.join(mean).double()
    return float((precision.flat_prior().double() * theta.square())[free].sum())


def _check(precision: LowRankPrecision) -> None:
    if not precision.n_vectors:
        raise ValueError("the bound is that of vectors, and none have been collected")
