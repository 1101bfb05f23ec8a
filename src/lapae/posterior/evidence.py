"""The log marginal likelihood of a Laplace approximation, and the prior precision that maximises it.

    log p(D) ≈ log p(D | θ*) - ½ Σ_l [δ_l ‖θ*_l‖² + Σ_i log(λ_i + δ_l) - n_l log δ_l]

with λ the eigenvalues of the curvature H at the mode θ* (MacKay 1992; Daxberger et al. 2021). A group l is a parameter
of one layer, or all parameters. The derivative of a group's sum with respect to log δ is cheap to evaluate, so that its
maximum is found by bisection: there is no step size, and it always converges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from lapae.posterior.precision import Precision

LOG10_RANGE = (-8.0, 12.0)
"""δ is searched between 10 to these powers."""


def log_marginal_likelihood(log_likelihood: float, mean: Mapping[str, Tensor], precision: Precision) -> float:
    """Return the log evidence of the data.

    Args:
        log_likelihood: of the data at the mode.
        mean: the mode, {parameter name: tensor}.
        precision: at the mode, with temperature 1.
    """
    if precision.temperature != 1:
        raise ValueError(f"the marginal likelihood is that of temperature 1, got {precision.temperature}")
    delta = precision.flat_prior().double()
    theta = precision.join(mean).double()
    log_prior = -0.5 * (delta * theta.square()).sum() + 0.5 * delta.log().sum()
    return float(log_likelihood + log_prior - 0.5 * precision.log_det())


def maximise(mean: Mapping[str, Tensor], precision: Precision, groups: Literal["scalar", "layer"] = "scalar") -> None:
    """Set the prior precision to the maximum of the evidence.

    Args:
        mean: the mode, {parameter name: tensor}.
        precision: whose prior is set, in place.
        groups: "scalar" for one number, "layer" for one per layer.
    """
    if groups not in ("scalar", "layer"):
        raise ValueError(f"prior precision by {groups!r}: expected scalar or layer")

    def group(name: str) -> str:
        """Return the group of a parameter or of a layer."""
        if groups == "scalar":
            return ""
        return name.rpartition(".")[0] if name in precision.shapes else name

    values, norms = defaultdict(list), defaultdict(float)
    for name, eigenvalues in precision.eigenvalues().items():
        values[group(name)].append(eigenvalues)
    for name in precision.shapes:
        norms[group(name)] += float(mean[name].detach().double().square().sum())
    best = {name: _best(torch.cat(members), norms[name]) for name, members in values.items()}
    precision.set_prior([best[group(name)] for name in precision.shapes])


def _best(eigenvalues: Tensor, squared_norm: float) -> float:
    """Return the root of the slope in log δ, γ(δ) - δ ‖θ‖² = 0: γ = Σ λ / (λ + δ) parameters are well determined."""
    values = eigenvalues.double()

    def slope(log10: float) -> float:
        delta = 10.0**log10
        return float((values / (values + delta)).sum()) - delta * squared_norm

    low, high = LOG10_RANGE
    if slope(low) <= 0:
        return 10.0**low
    if slope(high) >= 0:
        return 10.0**high
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return 10.0 ** (0.5 * (low + high))
