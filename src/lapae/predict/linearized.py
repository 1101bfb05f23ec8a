"""The closed-form predictive of the network linearised in its weights (paper, section 2, "Linearization").

    Cov[z] = J_z Σ J_zᵀ          with J_z = ∂z/∂(encoder weights): K rows pulled back through the encoder
    Var[x̂] = diag(J_x Σ J_xᵀ)    with rows pulled back through the decoder, and Cov[z] entering at the code

Σ is the posterior covariance. Rows of the output are pulled back some at a time, under a memory budget. Exact for the
linearised network, at the cost of a backward pass of the decoder an output: for small outputs or few data.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vjp, vmap

from lapae.curvature import Leaf
from lapae.curvature.messages import Rows
from lapae.curvature.rules import Params, identity_rows
from lapae.curvature.rules.affine import Linear
from lapae.curvature.tape import leaves, n_features
from lapae.curvature.walk import pull_rows
from lapae.methods.laplace import Laplace
from lapae.posterior import DiagonalPrecision
from lapae.predict.closed_form import ClosedForm, weight_variances

MEMORY_BUDGET = 1 << 28
"""Bytes for the rows and their gradients."""


def linearized(method: Laplace, x: Tensor, *, outputs: bool = True, memory_budget: int = MEMORY_BUDGET) -> ClosedForm:
    """Mean and variance of codes and (unless `outputs` is False) of reconstructions for a batch x (B, *shape)."""
    tape = method.record(x)
    n_encoder = sum(node.name.startswith("encoder") for node in tape.nodes)
    encoder, decoder = tape.nodes[:n_encoder], tape.nodes[n_encoder:]
    z = encoder[-1].y
    covariance = _Covariance(method)
    rows = Rows(identity_rows(z))
    for k in range(n_encoder - 1, -1, -1):
        rows = pull_rows(encoder[k], rows, covariance, need_input=k > 0)
    z_cov = covariance.take(z.shape[1], len(x), z)
    if not outputs:
        return ClosedForm(z, z_cov, tape.output, None)

    pull_mean = vjp(method.likelihood.mean, tape.output)[1]
    n_out = n_features(tape.output)
    floats = len(x) * max(leaf.rule.row_floats(leaf) for leaf in leaves(decoder)) * x.element_size()
    size = max(1, min(n_out, memory_budget // floats))
    x_var = []
    for first in range(0, n_out, size):
        eye = identity_rows(tape.output, first, min(first + size, n_out))
        rows = Rows(vmap(lambda v: pull_mean(v)[0])(eye))
        variance = _Variance(method)
        for k in range(len(decoder) - 1, -1, -1):
            rows = pull_rows(decoder[k], rows, variance)
        through_code = torch.einsum("rbk,bkl,rbl->rb", rows.v, z_cov, rows.v)
        x_var.append(variance.total + through_code)
    shape = tape.output.shape
    return ClosedForm(z, z_cov, tape.output, torch.cat(x_var).T.reshape(shape))


class _Covariance:
    """Reads Σ_layers G Σ Gᵀ between all rows: (B, R, R)."""

    takes_squares = False

    def __init__(self, method: Laplace) -> None:
        self.posterior = method.posterior
        self.variances = weight_variances(method) if isinstance(self.posterior, DiagonalPrecision) else None
        self.total: Tensor | float = 0.0

    def squared(self, leaf: Leaf, h: Params) -> None:
        """Not asked for: rows are exact."""
        raise AssertionError

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        """Not asked for: rows are exact."""
        raise AssertionError

    def take(self, n_rows: int, n_data: int, like: Tensor) -> Tensor:
        """The sum, zero where no layer has weights."""
        return self.total if isinstance(self.total, Tensor) else like.new_zeros(n_data, n_rows, n_rows)

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Add a layer's part."""
        spread = self._unit_variance(leaf)
        if spread is not None:
            part = torch.einsum("rbo,bo,sbo->brs", rows.v, spread, rows.v)
        else:
            w = self._whitened(leaf, rows)
            part = torch.einsum("rbn,sbn->brs", w, w)
        self.total = self.total + part

    def _unit_variance(self, leaf: Leaf) -> Tensor | None:
        """Variance of each unit of a linear layer from its own independent weights, (B, out): no gradient is formed."""
        if self.variances is None or not isinstance(leaf.rule, Linear) or leaf.x.ndim != 2:
            return None
        var = {key: self.variances[f"{leaf.name}.{key}"] for key in leaf.params}
        return leaf.rule.apply(leaf.layer, var, leaf.x.square())

    def _whitened(self, leaf: Leaf, rows: Rows) -> Tensor:
        """Σ^(1/2) applied to the gradients of the rows: (R, B, n)."""
        gradients = leaf.rule.gradients(leaf, rows.v)
        return self.posterior.whiten({f"{leaf.name}.{key}": gradients[key].flatten(2) for key in leaf.trainable})


class _Variance(_Covariance):
    """The diagonal alone: (R, B)."""

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Add a layer's part."""
        spread = self._unit_variance(leaf)
        part = (rows.v.square() * spread).sum(-1) if spread is not None else self._whitened(leaf, rows).square().sum(-1)
        self.total = self.total + part
