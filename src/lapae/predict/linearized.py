"""The closed-form predictive of the network linearised in its weights (paper, section 2, "Linearization").

    Cov[z] = J_z Σ J_zᵀ          with J_z = ∂z/∂(encoder weights): K rows pulled back through the encoder
    Var[x̂] = diag(J_x Σ J_xᵀ)    with rows pulled back through the decoder, and Cov[z] entering at the code

Σ is the posterior covariance. Some data and some rows of the output go at a time, under a memory budget. Exact for the
linearised network, at the cost of a backward pass of the decoder per output: for small outputs or few data. Networks
that cannot be walked layer by layer, and large codes, are in linearized_any.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vjp, vmap

from lapae.curvature import Forward, Leaf
from lapae.curvature.any_module import LARGEST_CODE
from lapae.curvature.backward import pull_rows
from lapae.curvature.extract import row_floats
from lapae.curvature.forms import Rows
from lapae.curvature.forward import Node, leaves, n_features
from lapae.curvature.rules import identity_rows
from lapae.curvature.rules.affine import Linear
from lapae.methods.laplace import Laplace
from lapae.posterior import DiagonalPrecision, Precision
from lapae.predict.closed_form import ClosedForm, weight_variances
from lapae.predict.linearized_any import of_any_module

MEMORY_BUDGET = 1 << 28
"""Bytes for the rows and their gradients."""


def linearized(method: Laplace, x: Tensor, *, outputs: bool = True, memory_budget: int = MEMORY_BUDGET) -> ClosedForm:
    """Mean and variance of codes and (unless `outputs` is False) of reconstructions for a batch x (B, *shape)."""
    tape = method.begin(x)
    budget = memory_budget // x.element_size()
    if not isinstance(tape, Forward):
        return of_any_module(method, x, outputs, budget)
    n_encoder = sum(node.name.startswith("encoder") for node in tape.nodes)
    z = tape.nodes[n_encoder - 1].y
    if n_features(z) > LARGEST_CODE:
        return of_any_module(method, x, outputs, budget)
    variances = weight_variances(method) if isinstance(method.posterior, DiagonalPrecision) else None
    spread = _Spread(method.posterior, variances)
    # all rows of the code go at once, as they have a covariance; of the output one at least
    floats = spread.row_floats(tape.nodes[:n_encoder]) * n_features(z), spread.row_floats(tape.nodes[n_encoder:])
    size = max(1, budget // max(floats))
    chunks = [tape.part(slice(i, i + size)) for i in range(0, len(x), size)]
    z_cov, x_var = zip(
        *(_closed_form(method, part, n_encoder, spread, outputs, budget) for part in chunks), strict=True
    )
    covariance = torch.cat(z_cov)
    z_var = covariance.diagonal(dim1=1, dim2=2).reshape(z.shape)
    return ClosedForm(z, z_var, covariance, tape.output, torch.cat(x_var) if outputs else None)


def _closed_form(
    method: Laplace, tape: Forward, n_encoder: int, spread: _Spread, outputs: bool, budget: int
) -> tuple[Tensor, Tensor]:
    """Cov[z] (B, K, K) and Var[x̂] (B, *shape), empty where it is not asked for."""
    encoder, decoder = tape.nodes[:n_encoder], tape.nodes[n_encoder:]
    z = encoder[-1].y
    covariance = _Covariance(spread)
    rows = Rows(identity_rows(z))
    for k in range(n_encoder - 1, -1, -1):
        rows = pull_rows(encoder[k], rows, covariance.read, need_input=k > 0)
    z_cov = covariance.take(n_features(z), len(z), z)
    if not outputs:
        return z_cov, z_cov.new_empty(0)

    pull_mean = vjp(method.likelihood.mean, tape.output)[1]
    n_out = n_features(tape.output)
    size = max(1, min(n_out, budget // (len(z) * spread.row_floats(decoder))))
    x_var = []
    for first in range(0, n_out, size):
        eye = identity_rows(tape.output, first, min(first + size, n_out))
        rows = Rows(vmap(lambda v: pull_mean(v)[0])(eye))
        variance = _Variance(spread)
        for k in range(len(decoder) - 1, -1, -1):
            rows = pull_rows(decoder[k], rows, variance.read)
        into_code = rows.v.flatten(2)
        through_code = torch.einsum("rbk,bkl,rbl->rb", into_code, z_cov, into_code)
        x_var.append(variance.total + through_code)
    return z_cov, torch.cat(x_var).T.reshape(tape.output.shape)


@dataclass(frozen=True)
class _Spread:
    """The posterior, and where it is diagonal the variances of the weights."""

    posterior: Precision
    variances: Mapping[str, Tensor] | None

    def has_independent_units(self, leaf: Leaf) -> bool:
        """Whether the units of a layer have their own independent weights: then no gradient needs to be formed."""
        return self.variances is not None and isinstance(leaf.rule, Linear) and leaf.x.ndim == 2

    def row_floats(self, nodes: Sequence[Node]) -> int:
        """Numbers in memory for one row of one datum, at most."""
        return max(
            2 * max(n_features(leaf.x), n_features(leaf.y))
            if self.has_independent_units(leaf)
            else row_floats(leaf.rule, leaf)
            for leaf in leaves(nodes)
        )


class _Covariance:
    """Reads Σ_layers G Σ Gᵀ between all rows: (B, R, R)."""

    def __init__(self, spread: _Spread) -> None:
        self.spread = spread
        self.total: Tensor | float = 0.0

    def take(self, n_rows: int, n_data: int, like: Tensor) -> Tensor:
        """The sum, zero where no layer has weights."""
        return self.total if isinstance(self.total, Tensor) else like.new_zeros(n_data, n_rows, n_rows)

    def read(self, leaf: Leaf, rows: Rows) -> None:
        if self.spread.has_independent_units(leaf):
            part = torch.einsum("rbo,bo,sbo->brs", rows.v, self._unit_variance(leaf), rows.v)
        else:
            w = self._whitened(leaf, rows)
            part = torch.einsum("rbn,sbn->brs", w, w)
        self.total = self.total + part

    def _unit_variance(self, leaf: Leaf) -> Tensor:
        """Variance of each unit of a linear layer from its own weights, (B, out)."""
        assert self.spread.variances is not None
        var = {key: self.spread.variances[f"{leaf.name}.{key}"] for key in leaf.params}
        return leaf.rule.apply(leaf.layer, var, leaf.x.square())

    def _whitened(self, leaf: Leaf, rows: Rows) -> Tensor:
        """Σ^(1/2) applied to the gradients of the rows: (R, B, n)."""
        gradients = leaf.rule.gradients(leaf, rows.v)
        return self.spread.posterior.whiten({f"{leaf.name}.{key}": gradients[key].flatten(2) for key in leaf.trainable})


class _Variance(_Covariance):
    """The diagonal alone: (R, B)."""

    def read(self, leaf: Leaf, rows: Rows) -> None:
        if self.spread.has_independent_units(leaf):
            part = (rows.v.square() * self._unit_variance(leaf)).sum(-1)
        else:
            part = self._whitened(leaf, rows).square().sum(-1)
        self.total = self.total + part
