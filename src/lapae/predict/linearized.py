"""The closed-form predictive of the network linearised in its weights (paper, section 2, "Linearization").

    Cov[z] = J_z Σ J_zᵀ          with J_z = ∂z/∂(encoder weights): K rows pulled back through the encoder
    Var[x̂] = diag(J_x Σ J_xᵀ)    with rows pulled back through the decoder, and Cov[z] entering at the code

Σ is the posterior covariance. Samples and rows of the output are processed in parts, within a memory budget. Exact for
the linearised network, at the cost of a backward pass of the decoder per output: for small outputs or few samples.
linearized_any.py is for networks that cannot be walked layer by layer, and for large codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.curvature import Forward, Leaf
from lapae.curvature.extract import row_floats
from lapae.curvature.forms import Rows, ranges
from lapae.curvature.forward import Node, begin, leaves, n_features
from lapae.curvature.methods import LARGEST_CODE
from lapae.curvature.rules.affine import Linear
from lapae.curvature.rules.base import identity_rows
from lapae.curvature.walked import pull_rows
from lapae.methods.laplace import Laplace
from lapae.posterior import DiagonalPrecision, LowRankPrecision, Precision
from lapae.predict.closed_form import ClosedForm, pull_mean, weight_variances
from lapae.predict.linearized_any import of_any_module
from lapae.predict.linearized_lowrank import of_low_rank

MEMORY_BUDGET = 1 << 28
"""Maximum number of bytes for the rows and their gradients."""


def linearized(
    method: Laplace, x: Tensor, *, outputs: bool = True, codes: bool = True, memory_budget: int = MEMORY_BUDGET
) -> ClosedForm:
    """Predict mean and variance of codes and reconstructions for a batch.

    Args:
        method: a method with a posterior over weights.
        x: samples (B, *shape) in the model's space.
        outputs: whether to compute the variance of reconstructions.
        codes: whether the variance of codes is needed, where it is computed apart.
        memory_budget: maximum number of bytes for rows and their gradients.
    """
    if isinstance(method.posterior, LowRankPrecision):
        return of_low_rank(method, x, outputs, memory_budget // x.element_size(), codes)
    with method.unfrozen():
        tape = begin(method.network, x)
    budget = memory_budget // x.element_size()
    if not isinstance(tape, Forward):
        return of_any_module(method, x, outputs, budget)
    n_encoder = sum(node.name.startswith("encoder") for node in tape.nodes)
    z = tape.nodes[n_encoder - 1].y
    if n_features(z) > LARGEST_CODE:
        return of_any_module(method, x, outputs, budget)
    variances = weight_variances(method) if isinstance(method.posterior, DiagonalPrecision) else None
    spread = _Spread(method.posterior, variances)
    # all rows of the code together, as they have a covariance; at least one row of the output
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
    """Return Cov[z] (B, K, K) and Var[x̂] (B, *shape), which is empty if it is not asked for."""
    encoder, decoder = tape.nodes[:n_encoder], tape.nodes[n_encoder:]
    z = encoder[-1].y
    z_cov, _ = spread.pull(encoder, identity_rows(z), between=True, need_input=False)
    if not outputs:
        return z_cov, z_cov.new_empty(0)

    n_out = n_features(tape.output)
    x_var = []
    for first, last in ranges(n_out, max(1, budget // (len(z) * spread.row_floats(decoder)))):
        rows = pull_mean(method.likelihood, tape.output, identity_rows(tape.output, first, last))
        variance, into_code = spread.pull(decoder, rows, between=False)
        flat = into_code.flatten(2)
        x_var.append(variance + torch.einsum("rbk,bkl,rbl->rb", flat, z_cov, flat))
    return z_cov, torch.cat(x_var).T.reshape(tape.output.shape)


@dataclass(frozen=True)
class _Spread:
    """The posterior and, if it is diagonal, the variances of the weights."""

    posterior: Precision
    variances: Mapping[str, Tensor] | None

    def has_independent_units(self, leaf: Leaf) -> bool:
        """Whether the units of a layer have their own independent weights: then no gradient needs to be formed."""
        return self.variances is not None and isinstance(leaf.rule, Linear) and leaf.x.ndim == 2

    def row_floats(self, nodes: Sequence[Node]) -> int:
        """Return the maximum number of floats in memory for one row of one sample."""
        return max(
            2 * max(n_features(leaf.x), n_features(leaf.y))
            if self.has_independent_units(leaf)
            else row_floats(leaf.rule, leaf)
            for leaf in leaves(nodes)
        )

    def pull(
        self, nodes: Sequence[Node], v: Tensor, *, between: bool, need_input: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return Σ_layers G Σ Gᵀ, G the gradients of rows v (R, B, *out), and the rows at the input of the first node.

        With `between`, for all pairs of rows, (B, R, R); else the diagonal only, (R, B).
        """
        n_rows, n_data = v.shape[:2]
        total = v.new_zeros((n_data, n_rows, n_rows) if between else (n_rows, n_data))

        def read(leaf: Leaf, rows: Rows) -> None:
            scaled = self._scaled(leaf, rows.v)
            total.add_(torch.einsum("rbn,sbn->brs", scaled, scaled) if between else scaled.square().sum(-1))

        rows = pull_rows(nodes, Rows(v), read, need_input)
        return total, rows.v

    def _scaled(self, leaf: Leaf, v: Tensor) -> Tensor:
        """Apply Σ^(1/2), up to a rotation, to the gradients of rows v: (R, B, n)."""
        if self.variances is not None and self.has_independent_units(leaf):
            var = {key: self.variances[f"{leaf.name}.{key}"] for key in leaf.params}
            return v * leaf.rule.apply(leaf.layer, var, leaf.x.square()).sqrt()  # that of each unit's own weights
        gradients = leaf.rule.gradients(leaf, v)
        return self.posterior.whiten({f"{leaf.name}.{key}": gradients[key].flatten(2) for key in leaf.trainable})
