"""Directions in which residuals are uncorrelated and of unit variance."""

from __future__ import annotations

import torch
from torch import Tensor

DIRECTIONS = 64
"""Maximum number of principal directions of residuals for the Mahalanobis distance."""
TINY = 1e-12


def whitening(scaled: Tensor) -> Tensor:
    """Return rows V such that VᵀV is the inverse of the shrunk covariance (about 0) of scaled residuals (n, D); with
    many features, in their main directions only."""
    n, d = scaled.shape
    covariance = scaled.T @ scaled / n if d <= 4 * DIRECTIONS or d <= n else None
    if covariance is not None and d <= 4 * DIRECTIONS:
        # Ledoit and Wolf's shrinkage towards a multiple of the identity
        mean = covariance.trace() / d
        spread = (covariance - mean * torch.eye(d, dtype=scaled.dtype)).square().sum()
        noise = (scaled.square().sum(1).square().sum() / n - covariance.square().sum()) / n
        share = (noise / spread.clamp_min(TINY)).clamp(0, 1)
        shrunk = (1 - share) * covariance + share * mean * torch.eye(d, dtype=scaled.dtype)
        values, vectors = torch.linalg.eigh(shrunk)
        return (vectors * values.clamp_min(1e-6 * float(values.max()) + TINY).rsqrt()).T
    k = min(DIRECTIONS, n, d)
    _, sizes, vectors = torch.linalg.svd(scaled / n**0.5, full_matrices=False)
    return vectors[:k] / sizes[:k, None].square().add(1e-3 * float(sizes[0]) ** 2).sqrt()
