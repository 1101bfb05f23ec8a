"""Precisions of a small network, and the same as explicit matrices, built from the buffers alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lapae.curvature import ggn_blocks, ggn_diagonal, ggn_kfac
from lapae.methods.laplace import make_precision
from lapae.networks import Autoencoder
from lapae.posterior import BlockPrecision, DiagonalPrecision, KronPrecision, LowRankPrecision, Precision

HESSIANS = {"diagonal": "exact", "block": "block", "kron": "kfac"}
"""Form of the precision -> a hessian that yields it, by layers."""
EVERY = {**HESSIANS, "lowrank": "lowrank"}
"""With the form that has covariances between layers."""


def network() -> Autoencoder:
    """Dense layers, a convolution and a transposed one, whose weight has its axes the other way round: 120 weights."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))
    decoder = nn.Sequential(
        nn.Linear(2, 8), nn.Tanh(), nn.Unflatten(1, (2, 2, 2)), nn.ConvTranspose2d(2, 3, 2), nn.Tanh(),
        nn.Conv2d(3, 1, 1, bias=False),
    )  # fmt: skip
    return Autoencoder(encoder, decoder).double()


def data(n: int = 5, seed: int = 1) -> Tensor:
    return torch.randn(n, 1, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def curvature_of(form: str, module: nn.Module, x: Tensor) -> dict[str, Any]:
    """As the update of a precision of that form takes it."""
    if form == "diagonal":
        return ggn_diagonal(module, x, method="exact")
    return ggn_blocks(module, x) if form == "block" else ggn_kfac(module, x, n_samples=None)


def fitted(form: str, prior: str = "one", temperature: float = 1.0) -> tuple[Autoencoder, Precision]:
    """A precision after two updates, with one δ or with one per parameter."""
    module = network()
    precision = make_precision(module, EVERY[form], 0.7, temperature).double()
    precision.set_prior(0.7)
    if isinstance(precision, LowRankPrecision):
        vectors = torch.randn(7, precision.n_weights, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        precision.set_vectors(vectors, rho=0.4)
    else:
        precision.update(1.0, 1.0, curvature_of(form, module, data()))
        precision.update(0.9, 1.3, curvature_of(form, module, data(seed=2)))
    if prior == "many":
        precision.set_prior(torch.linspace(0.3, 2.0, len(precision.shapes), dtype=torch.float64))
    return module, precision


def curvature_matrix(precision: Precision) -> Tensor:
    """H, (P, P), over the flat weights."""
    if isinstance(precision, DiagonalPrecision):
        return torch.diag(precision.h)
    if isinstance(precision, BlockPrecision):
        return torch.block_diag(*(precision.get_buffer(f"h{i}") for i in range(len(precision.layers))))
    if isinstance(precision, LowRankPrecision):
        outer = precision.u.T @ precision.u
        return (1 - precision.rho) * torch.diag(outer.diagonal()) + precision.rho * outer
    assert isinstance(precision, KronPrecision)
    blocks = []
    for i, (name, shape) in enumerate(precision.shapes.items()):
        g = precision.get_buffer(f"g{i}")
        if not hasattr(precision, f"a{i}"):
            blocks.append(g)
            continue
        block = torch.kron(g, precision.get_buffer(f"a{i}") / precision.get_buffer(f"n{i}"))
        if name in precision.transposed:  # rows and columns are in the order (out, in, taps), the weight's is (in, out)
            order = torch.arange(shape.numel()).reshape(shape[1], shape[0], -1).transpose(0, 1).reshape(-1)
            block = block[order][:, order]
        blocks.append(block)
    return torch.block_diag(*blocks)


def quadratic(precision: Precision, delta: Tensor) -> Tensor:
    """deltaᵀ precision delta, (…, P) -> (…): from the root that draws are made with."""
    root = precision.scale_noise(torch.eye(precision.n_weights, dtype=delta.dtype))
    return torch.linalg.solve(root, delta[..., None])[..., 0].square().sum(-1)


def matrix(precision: Precision) -> Tensor:
    """(H + δ) / T, (P, P)."""
    sizes = torch.tensor([shape.numel() for shape in precision.shapes.values()])
    prior = precision.prior.repeat_interleave(sizes)
    return (curvature_matrix(precision) + torch.diag(prior)) / precision.temperature


def whole_root(precision: Any, seeds: range) -> Iterator[Tensor]:
    """Directions in place of drawn ones whose mean square is exactly the covariance, (P, P)."""
    n = precision.n_weights
    yield precision.scale_noise(torch.eye(n, dtype=precision.prior.dtype)) * len(seeds) ** 0.5
