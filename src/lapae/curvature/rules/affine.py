"""Linear layers and convolutions: y = W * x + b, linear in the input and in the weights.

Such a layer's vjp at squared values, (W², x²), applied to m, is at once the diagonal of Jᵀ M J and the diagonal of the
weights' block for a diagonal M (paper, appendix E.3.1): one backward pass of the layer.

What is specific to a weight's own layout is said by two views, in which all three kinds of layer are one matrix product
a position, y[g, o, p] = Σ_i W[g, o, i] columns[g, i, p]:

    columns  (B, G, I, P)   inputs that meet the weight at output position p, for each of G groups
    outputs  (…, G, O, P)   outputs, or rows at the output
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapae.curvature.rules.base import CHUNK_FLOATS, Leaf, Params, Rule, product_with_itself, register

COLUMN_FLOATS = 1 << 22
"""Numbers of columns whose products are summed: few enough to be found in the cache again."""


class Affine(Rule):
    """Shared by everything of the form y = W * x + b."""

    uses_y = False

    def check(self, layer: Any) -> None:
        """Refuse a weight that is made from others at every call."""
        if "weight" not in layer._parameters:
            raise ValueError(
                "its weight is not a parameter but made from some (weight_norm, spectral_norm, pruning, a "
                "parametrization): make it permanent first, see torch.nn.utils.parametrize.remove_parametrizations"
            )

    def columns(self, layer: Any, x: Tensor) -> Tensor:
        """(B, *in) -> (B, G, I, P)."""
        raise NotImplementedError

    def flat_columns(self, layer: Any, x: Tensor) -> Tensor:
        """(B, *in) -> (I, B P), for a layer without groups."""
        raise NotImplementedError

    def outputs(self, layer: Any, v: Tensor) -> Tensor:
        """(…, *out) -> (…, G, O, P)."""
        raise NotImplementedError

    def to_weight(self, layer: Any, g: Tensor) -> Tensor:
        """(…, G, O, I) -> (…, *weight.shape)."""
        raise NotImplementedError

    def gradients(self, at: Leaf, v: Tensor) -> Params:
        """Gradients of rows: Σ_p outputs ⊗ columns."""
        outputs = self.outputs(at.layer, v)
        result = {}
        if "weight" in at.trainable:
            g = torch.einsum("rbgop,bgip->rbgoi", outputs, self.columns(at.layer, at.x))
            result["weight"] = self.to_weight(at.layer, g)
        if "bias" in at.trainable:
            result["bias"] = outputs.sum(-1).flatten(2)
        return result

    def rows_diagonal(self, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
        """In chunks of data, as a gradient a row and datum is |W| numbers."""
        floats = len(v) * sum(p.numel() for p in at.params.values()) + self._n_columns(at)
        size = max(1, CHUNK_FLOATS // floats)
        total: Params = {}
        for i in range(0, len(at.x), size):
            part = slice(i, i + size)
            h = super().rows_diagonal(at.part(part), v[:, part], None if c is None else c[part])
            total = {k: total[k] + h[k] for k in h} if total else h
        return total

    def input_factor(self, at: Leaf) -> tuple[Tensor, int]:
        """Products of columns, some data at a time."""
        if getattr(at.layer, "groups", 1) != 1:
            raise ValueError(
                f"layer {at.name!r}, {at.layer}: KFAC needs a convolution without groups; freeze its weight, or take "
                "the diagonal"
            )
        factor, n = None, 0
        size = max(1, COLUMN_FLOATS // self._n_columns(at))
        for i in range(0, len(at.x), size):
            columns = self.flat_columns(at.layer, at.x[i : i + size])
            product = product_with_itself(columns)
            factor, n = product if factor is None else factor + product, n + columns.shape[1]
        assert factor is not None
        return factor, n

    def output_rows(self, at: Leaf, v: Tensor) -> Tensor:
        """Outputs of the one group."""
        return self.outputs(at.layer, v)[:, :, 0]

    def _n_columns(self, at: Leaf) -> int:
        """Numbers in the columns of one datum."""
        n_outputs = at.layer.out_features if isinstance(at.layer, nn.Linear) else at.layer.out_channels
        return math.prod(at.y.shape[1:]) // n_outputs * at.params["weight"].numel() // n_outputs + 1


@register(nn.Linear)
class Linear(Affine):
    """y = x Wᵀ + b, on (B, in) or, with positions between, (B, …, in)."""

    def apply(self, layer: Any, params: Params, x: Tensor) -> Tensor:
        """x Wᵀ + b."""
        return F.linear(x, params["weight"], params.get("bias"))

    def columns(self, layer: Any, x: Tensor) -> Tensor:
        """(B, …, in) -> (B, 1, in, P)."""
        return x.reshape(len(x), 1, -1, x.shape[-1]).mT

    def flat_columns(self, layer: Any, x: Tensor) -> Tensor:
        """(B, …, in) -> (in, B P)."""
        return x.flatten(0, -2).T

    def outputs(self, layer: Any, v: Tensor) -> Tensor:
        """(R, B, …, out) -> (R, B, 1, out, P)."""
        return v.reshape(*v.shape[:2], 1, -1, v.shape[-1]).mT

    def to_weight(self, layer: Any, g: Tensor) -> Tensor:
        """Drop the group."""
        return g.squeeze(-3)

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        """T Wᵀ."""
        return t @ at.params["weight"].T

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        """V W."""
        return v @ at.params["weight"]

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        """m W², mᵀ x², Σ m; where m is the same for all data, the sum over data comes first."""
        h = {}
        m_in = m @ at.params["weight"].square() if need_input else None
        squared = at.x.square()
        if len(m) == 1 < len(at.x):
            squared = squared.sum(0, keepdim=True)
            h["bias"] = m.flatten(0, -2).sum(0) * len(at.x)
        else:
            h["bias"] = m.flatten(0, -2).sum(0)
        h["weight"] = m.flatten(0, -2).T @ squared.flatten(0, -2)
        return m_in, {k: h[k] for k in at.trainable}

    def rows_diagonal(self, at: Leaf, v: Tensor, c: Tensor | None) -> Params:
        """Without positions only the diagonal of M counts."""
        if at.x.ndim > 2:
            return super().rows_diagonal(at, v, c)
        m = v.square().sum(0) if c is None else torch.einsum("brs,rbo,sbo->bo", c, v, v)
        return self.squared_backward(at, m, need_input=False)[1]

    def dense_diagonal(self, at: Leaf, c: Tensor) -> Params:
        """Without positions only the diagonal of M counts."""
        if at.x.ndim > 2:
            return super().dense_diagonal(at, c)
        return self.squared_backward(at, c.diagonal(dim1=1, dim2=2), need_input=False)[1]

    def takes_matrix(self, at: Leaf) -> bool:
        """Without positions."""
        return at.x.ndim == 2

    def dense_pull(self, at: Leaf, c: Tensor) -> Tensor:
        """Wᵀ c W, with c (B or 1, out, out) or its diagonal (B or 1, out)."""
        weight = at.params["weight"]
        right = c[:, :, None] * weight if c.ndim == 2 else c @ weight
        return weight.T @ right

    def dense_block(self, at: Leaf, c: Tensor) -> Tensor:
        """Σ_b c ⊗ x xᵀ, where x gets a one at its end for the bias."""
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

    def row_floats(self, at: Leaf) -> int:
        """No gradient is formed without positions."""
        return 2 * max(at.x.shape[-1], at.y.shape[-1]) if at.x.ndim == 2 else super().row_floats(at)
