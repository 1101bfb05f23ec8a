"""The part of the diagonal, of the block and of Kronecker factors that follows for a layer from the M at its output.

Rules define the derivatives of a layer; these functions use them, for a layer `at` work. Each is dispatched on the
class of the rule, its first argument, and has a default that is correct for any rule. Register a faster one for your
own rule with `rows_diagonal.register(MyRule)`. Results by parameter are {key: tensor of its shape}.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch

import torch
from torch import Tensor, nn

from lapae.curvature.rules.affine import Affine, Linear
from lapae.curvature.rules.base import CHUNK_FLOATS, Leaf, Params, Rule, identity_rows, product_with_itself, row_bound
from lapae.curvature.shared import Shared

COLUMN_FLOATS = 1 << 22
"""Maximum number of values in columns whose products are summed, few enough to stay in the cache."""


@singledispatch
def rows_diagonal(rule: Rule, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
    """Return the diagonal of Σ_b Gᵀ c G, with G the gradients of rows v (R, B, *out), c (B, R, R) or the identity."""
    gradients = rule.gradients(at, v)
    if c is None:
        return {k: g.square().sum((0, 1)) for k, g in gradients.items()}
    return {k: torch.einsum("brs,rb...,sb...->...", c, g, g) for k, g in gradients.items()}


@rows_diagonal.register(Affine)
def _(rule: Affine, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
    """Work in chunks of samples, because the gradient of a row and sample is as large as the weight."""
    size = max(1, CHUNK_FLOATS // (len(v) * sum(p.numel() for p in at.params.values()) + n_columns(at)))
    return _summed_diagonal(rule, at, v, c, (slice(i, i + size) for i in range(0, len(at.x), size)))


@rows_diagonal.register(Linear)
def _(rule: Linear, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
    """Use the diagonal of M alone, which is all that counts without positions."""
    if at.x.ndim > 2:
        return rows_diagonal.dispatch(Affine)(rule, at, v, c)
    m = v.square().sum(0) if c is None else torch.einsum("brs,rbo,sbo->bo", c, v, v)
    return rule.squared_backward(at, m, need_input=False)[1]


@rows_diagonal.register(Shared)
def _(rule: Shared, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
    """Work in chunks of samples, as gradients are formed."""
    return _summed_diagonal(rule, at, v, c, sample_chunks(at, at.trainable, len(v)))


def _summed_diagonal(rule: Rule, at: Leaf, v: Tensor, c: Tensor | None, chunks: Iterable[slice]) -> Params:
    """Return the diagonal of any rule, summed over chunks of samples."""
    general, total = rows_diagonal.dispatch(Rule), dict[str, Tensor]()
    for samples in chunks:
        h = general(rule, at.part(samples), v[:, samples], None if c is None else c[samples])
        total = {k: total[k] + h[k] for k in h} if total else h
    return total


def sample_chunks(at: Leaf, keys: Sequence[str], n_rows: int) -> Iterator[slice]:
    """Yield chunks of samples whose gradients, for some parameters and all rows, are formed at a time."""
    size = max(1, CHUNK_FLOATS // (2 * n_rows * sum(at.params[k].numel() for k in keys)))
    return (slice(i, i + size) for i in range(0, len(at.y), size))


@singledispatch
def dense_diagonal(rule: Rule, at: Leaf, c: Tensor) -> Params:
    """Return the diagonal of Σ_b (∂y/∂w)ᵀ c (∂y/∂w), with c the M at the output, (B or 1, out, out)."""
    return rows_diagonal(rule, at, identity_rows(at.y), c.expand(len(at.y), *c.shape[1:]))


@dense_diagonal.register(Linear)
def _(rule: Linear, at: Leaf, c: Tensor) -> Params:
    """Use the diagonal of M alone, which is all that counts without positions."""
    if at.x.ndim > 2:
        return dense_diagonal.dispatch(Rule)(rule, at, c)
    return rule.squared_backward(at, c.diagonal(dim1=1, dim2=2), need_input=False)[1]


def linear_block(at: Leaf, c: Tensor) -> Tensor:
    """Return the block Σ_b (∂y/∂w)ᵀ c (∂y/∂w) of a linear layer without positions: (P, P), for c (B or 1, out, out).

    It is Σ_b c ⊗ x xᵀ, with a one appended to x for the bias; P are the wanted parameters, flattened in their order.
    """
    n_out, n_in = at.y.shape[1], at.x.shape[1]
    x = torch.cat([at.x, at.x.new_ones(len(at.x), 1)], 1)
    products = x[:, :, None] * x[:, None, :]
    if len(c) == 1:
        products = products.sum(0, keepdim=True)
    block = (c.flatten(1).T @ products.flatten(1)).reshape(n_out, n_out, n_in + 1, n_in + 1)
    block = block.transpose(1, 2).reshape(n_out * (n_in + 1), -1)
    place = torch.arange(len(block), device=x.device).reshape(n_out, n_in + 1)  # the last of a row: bias
    places = {"weight": place[:, :-1].flatten(), "bias": place[:, -1]}
    wanted = torch.cat([places[k] for k in at.trainable])
    return block[wanted[:, None], wanted]


@singledispatch
def input_factor(rule: Rule, at: Leaf) -> tuple[Tensor, int] | None:
    """Return the input factor of KFAC: Σ over samples and positions of x xᵀ, x the inputs (in,) that meet the weight.

    Returns:
        (in, in) and the number of terms, or None for a weight that is not a matrix, whose whole block is then used.
    """
    return None


@input_factor.register(Affine)
def _(rule: Affine, at: Leaf) -> tuple[Tensor, int] | None:
    """Sum products of columns, some samples at a time. The weight of a convolution with groups is several matrices."""
    if getattr(at.layer, "groups", 1) != 1:
        return None
    factor, n = None, 0
    size = max(1, COLUMN_FLOATS // n_columns(at))
    for i in range(0, len(at.x), size):
        columns = rule.flat_columns(at.layer, at.x[i : i + size])
        product = product_with_itself(columns)
        factor, n = product if factor is None else factor + product, n + columns.shape[1]
    assert factor is not None
    return factor, n


@input_factor.register(Shared)
def _(rule: Shared, at: Leaf) -> tuple[Tensor, int] | None:
    """Sum over all uses of a parameter that is a weight in all of them."""
    found = [input_factor(leaf.rule, leaf) for leaf in rule.leaves(at)] if rule.is_weight else [None]
    factors = [factor for factor in found if factor is not None]
    if len(factors) < len(found):
        return None
    return sum((a for a, _ in factors[1:]), factors[0][0]), sum(n for _, n in factors)


@singledispatch
def output_rows(rule: Rule, at: Leaf, v: Tensor) -> Tensor:
    """Return rows v (R, B, *out) by position, (R, B, out, P), for KFAC; needed if there is an input factor."""
    raise NotImplementedError(f"{type(rule).__name__} has an input factor, and no output rows beside it")


@output_rows.register(Affine)
def _(rule: Affine, at: Leaf, v: Tensor) -> Tensor:
    """Take the only group."""
    return rule.outputs(at.layer, v)[:, :, 0]


@output_rows.register(Shared)
def _(rule: Shared, at: Leaf, v: Tensor) -> Tensor:
    """Concatenate the positions of all places."""
    pairs = zip(rule.leaves(at), rule.split(at, v), strict=True)
    return torch.cat([output_rows(leaf.rule, leaf, rows) for leaf, rows in pairs], 3)


@singledispatch
def row_floats(rule: Rule, at: Leaf) -> int:
    """Return the number of values in memory for one row of one sample, from which chunks are planned."""
    return row_bound(at)


@row_floats.register(Linear)
def _(rule: Linear, at: Leaf) -> int:
    """Count input and output alone without positions, as no gradient is formed."""
    return 2 * max(at.x.shape[-1], at.y.shape[-1]) if at.x.ndim == 2 else row_bound(at)


def n_columns(at: Leaf) -> int:
    """Return the number of numbers in the columns of one sample."""
    n_outputs = at.layer.out_features if isinstance(at.layer, nn.Linear) else at.layer.out_channels
    return math.prod(at.y.shape[1:]) // n_outputs * at.params["weight"].numel() // n_outputs + 1
