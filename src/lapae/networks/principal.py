"""Principal components, and networks that start from them.

A network that is the sum of a linear and a nonlinear path (`lapae.curvature.Sum`) starts as principal component
analysis: the linear paths of encoder and decoder are the projection onto the first K components, scaled to unit
variance, and back; the nonlinear ones end in a layer of zeros. `lapae.train.select` keeps the components if training
finds nothing better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lapae.curvature import Sum

MOST_PCA_ROWS, MOST_PCA_VALUES = 4000, 2**26
"""Maximum number of samples, and of their values, from which components are computed."""
FLOAT64_VALUES = 2**24
"""Number of values up to which components are computed in 64 bits."""
SMALL_MATRIX = 300
"""Side of a matrix up to which all its eigenvalues are computed at once."""
VARIANCE_FLOOR = 1e-4
"""Smallest variance of a component as a share of the largest: below, codes would be amplified noise."""


@dataclass(frozen=True)
class Components:
    """First K principal components of samples with D features.

    Attributes:
        mean: mean of the samples, (D,).
        vectors: orthonormal components, (D, K).
        variances: variances along the components, decreasing, (K,).
    """

    mean: Tensor
    vectors: Tensor
    variances: Tensor


def principal_components(x: Tensor, k: int) -> Components:
    """Return the first k principal components of samples.

    Args:
        x: samples (n, …); missing values count as 0. A random subset of many samples is used.
        k: number of components; those beyond the number of samples are zero.
    """
    enough = max(k, min(MOST_PCA_ROWS, MOST_PCA_VALUES // x[0].numel()))
    if len(x) > enough:
        x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:enough].sort().values]
    flat = x.flatten(1).to(torch.float64 if x.numel() <= FLOAT64_VALUES else torch.float32).nan_to_num()
    mean = flat.mean(0)
    gap = flat.sub_(mean)
    n, d = gap.shape
    k = min(k, d)
    if n < d:  # the smaller of the two matrices has the same eigenvalues
        values, rotation = largest((gap @ gap.T).double(), k)
        vectors = (gap.T @ rotation.to(gap.dtype)).double() / values.clamp_min(1e-12).sqrt()
    else:
        values, vectors = largest((gap.T @ gap).double(), k)
    values = values / n
    if vectors.shape[1] < k:  # fewer samples than components: the others are zero
        missing = k - vectors.shape[1]
        vectors = torch.cat([vectors, vectors.new_zeros(d, missing)], 1)
        values = torch.cat([values, values.new_zeros(missing)])
    return Components(mean.double(), vectors, values.clamp_min(0))


def largest(matrix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest eigenvalues of a symmetric matrix (m, m), decreasing, and their vectors (m, k).

    Few of many are computed by Lanczos iteration, to machine precision: all of them take m³ operations.
    """
    m = len(matrix)
    if m > SMALL_MATRIX and 4 * k <= m:
        from scipy.sparse.linalg import ArpackError, eigsh

        try:
            start = np.random.default_rng(0).standard_normal(m)
            values, vectors = eigsh(matrix.cpu().numpy(), k, which="LA", v0=start)
            order = np.argsort(-values)
            return torch.from_numpy(values[order]).to(matrix), torch.from_numpy(vectors[:, order]).to(matrix)
        except ArpackError:  # no convergence
            pass
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0)[:k], vectors.flip(1)[:, :k]


@torch.no_grad()
def start_at_principal_components(network: nn.Module, x: Tensor) -> None:
    """Set the linear paths of an autoencoder, if it has them, to the principal components of samples x (n, …).

    Inputs of the encoder beyond the features of x (a mask) get weights of 0.
    """
    down, up = (_linear_path(network.get_submodule(half)) for half in ("encoder", "decoder"))
    if down is None or up is None:
        return
    found = principal_components(x, down.out_features)
    scale = found.variances.clamp_min(VARIANCE_FLOOR * float(found.variances.max()) + 1e-12).sqrt()
    k, d = found.vectors.shape[1], len(found.mean)
    inward, outward = (found.vectors / scale).T, found.vectors * scale
    for layer in (down, up):
        layer.weight.zero_()
        layer.bias.zero_()
    # members of an ensemble are stacked, and all start there
    down.weight[..., :k, :d] = inward.to(down.weight)
    down.bias[..., :k] = -(inward @ found.mean).to(down.bias)
    up.weight[..., :k] = outward.to(up.weight)
    up.bias.copy_(found.mean)


def _linear_path(half: nn.Module) -> nn.Linear | None:
    """Return the linear layer parallel to a nonlinear path of an encoder or a decoder; None if there is none."""
    for module in half.modules():
        if isinstance(module, Sum):
            layers = [layer for layer in module.first.modules() if isinstance(layer, nn.Linear)]
            return layers[0] if len(layers) == 1 else None
    return None
