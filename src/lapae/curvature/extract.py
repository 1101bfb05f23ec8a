"""What a layer yields of its own from the M at its output: pieces of the diagonal, of the block, of Kronecker factors.

Rules say what the derivatives of a layer are; here they are made use of. Each function goes by the class of the rule,
the first argument, and has a default that is right for any: register a faster one for a rule of your own with
`rows_diagonal.register(MyRule)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import singledispatch

import torch
from torch import Tensor, nn

from lapae.curvature.rules.affine import Affine, Linear
from lapae.curvature.rules.base import CHUNK_FLOATS, Leaf, Params, Rule, identity_rows, product_with_itself, row_bound
from lapae.curvature.shared import Shared

COLUMN_FLOATS = 1 << 22
"""Numbers of columns whose products are summed: few enough to be found in the cache again."""


@singledispatch
def rows_diagonal(rule: Rule, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
    """Diagonal per parameter of Σ_b Gᵀ c G, G the gradients of rows v; c is (B, R, R), or None for the identity."""
    gradients = rule.gradients(at, v)
    if c is None:
        return {k: g.square().sum((0, 1)) for k, g in gradients.items()}
    return {k: torch.einsum("brs,rb...,sb...->...", c, g, g) for k, g in gradients.items()}


@rows_diagonal.register(Affine)
def _(rule: Affine, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
    """In chunks of data, as the gradient of a row and datum is |W| numbers."""
    general = rows_diagonal.dispatch(Rule)
    size = max(1, CHUNK_FLOATS // (len(v) * sum(p.numel() for p in at.params.values()) + n_columns(at)))
    total: Params = {}
    for i in range(0, len(at.x), size):
        part = slice(i, i + size)
        h = general(rule, at.part(part), v[:, part], None if c is None else c[part])
        total = {k: total[k] + h[k] for k in h} if total else h
    return total


@rows_diagonal.register(Linear)
def _(rule: Linear, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
    """Without positions only the diagonal of M counts."""
    if at.x.ndim > 2:
        return rows_diagonal.dispatch(Affine)(rule, at, v, c)
    m = v.square().sum(0) if c is None else torch.einsum("brs,rbo,sbo->bo", c, v, v)
    return rule.squared_backward(at, m, need_input=False)[1]


@rows_diagonal.register(Shared)
def _(rule: Shared, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
    """In chunks of samples, as gradients are formed."""
    general = rows_diagonal.dispatch(Rule)
    total: Params = {}
    for samples in sample_chunks(at, at.trainable, len(v)):
        h = general(rule, at.part(samples), v[:, samples], None if c is None else c[samples])
        total = {k: total[k] + h[k] for k in h} if total else h
    return total


def sample_chunks(at: Leaf, keys: Sequence[str], n_rows: int) -> Iterator[slice]:
    """Yield samples whose gradients, of some parameters and of all rows, are formed at a time."""
    size = max(1, CHUNK_FLOATS // (2 * n_rows * sum(at.params[k].numel() for k in keys)))
    return (slice(i, i + size) for i in range(0, len(at.y), size))


@singledispatch
def dense_diagonal(rule: Rule, at: Leaf, c: Tensor) -> Params:
    """Diagonal per parameter of Σ_b (∂y/∂w)ᵀ c (∂y/∂w), for c of (B or 1, out, out)."""
    return rows_diagonal(rule, at, identity_rows(at.y), c.expand(len(at.y), *c.shape[1:]))


@dense_diagonal.register(Linear)
def _(rule: Linear, at: Leaf, c: Tensor) -> Params:
    """Without positions only the diagonal of M counts."""
    if at.x.ndim > 2:
        return dense_diagonal.dispatch(Rule)(rule, at, c)
    return rule.squared_backward(at, c.diagonal(dim1=1, dim2=2), need_input=False)[1]


def linear_block(at: Leaf, c: Tensor) -> Tensor:
    """The block Σ_b (∂y/∂w)ᵀ c (∂y/∂w), (P, P), of a linear layer without positions, for c of (B or 1, out, out).

    That is Σ_b c ⊗ x xᵀ, where x gets a one at its end for the bias.
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
    """For KFAC: Σ over data and positions of x xᵀ, x the inputs (in,) that meet the weight, and how many there are.

    None where the weight is no matrix that multiplies inputs: its block is then taken whole.
    """
    return None


@input_factor.register(Affine)
def _(rule: Affine, at: Leaf) -> tuple[Tensor, int] | None:
    """Products of columns, some data at a time. The weight of a convolution with groups is several matrices."""
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
    """Sums over the places of a weight that is nothing but a weight in all of them."""
    found = [input_factor(leaf.rule, leaf) for leaf in rule.leaves(at)] if rule.is_weight else [None]
    factors = [factor for factor in found if factor is not None]
    if len(factors) < len(found):
        return None
    return sum((a for a, _ in factors[1:]), factors[0][0]), sum(n for _, n in factors)


@singledispatch
def output_rows(rule: Rule, at: Leaf, v: Tensor) -> Tensor:
    """Return rows v (R, B, *out) by position, (R, B, out, P): for KFAC, where there is an input factor."""
    raise NotImplementedError(f"{type(rule).__name__} has an input factor, and no output rows beside it")


@output_rows.register(Affine)
def _(rule: Affine, at: Leaf, v: Tensor) -> Tensor:
    """Those of the one group."""
    return rule.outputs(at.layer, v)[:, :, 0]


@output_rows.register(Shared)
def _(rule: Shared, at: Leaf, v: Tensor) -> Tensor:
    """Positions of all places, one after the other."""
    pairs = zip(rule.leaves(at), rule.split(at, v), strict=True)
    return torch.cat([output_rows(leaf.rule, leaf, rows) for leaf, rows in pairs], 3)


@singledispatch
def row_floats(rule: Rule, at: Leaf) -> int:
    """Numbers in memory for one row of one datum: what chunks are planned with."""
    return row_bound(at)


@row_floats.register(Linear)
def _(rule: Linear, at: Leaf) -> int:
    """No gradient is formed without positions."""
    return 2 * max(at.x.shape[-1], at.y.shape[-1]) if at.x.ndim == 2 else row_bound(at)


def n_columns(at: Leaf) -> int:
    """Numbers in the columns of one datum."""
    n_outputs = at.layer.out_features if isinstance(at.layer, nn.Linear) else at.layer.out_channels
    return math.prod(at.y.shape[1:]) // n_outputs * at.params["weight"].numel() // n_outputs + 1
