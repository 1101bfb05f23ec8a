"""Linear layers and convolutions: y = W * x + b, linear in the input and in the weights.

The vjp of such a layer at squared values (W², x²), applied to m, gives both the diagonal of Jᵀ M J and the diagonal of
the weights' block for a diagonal M (paper, appendix E.3.1), in one backward pass of the layer.

The layout of a weight is described by two views, in which all three kinds of layer are one matrix product per position,
y[g, o, p] = Σ_i W[g, o, i] columns[g, i, p]:

    columns  (B, G, I, P)   inputs that meet the weight at output position p, for each of G groups
    outputs  (…, G, O, P)   outputs, or rows at the output
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapae.curvature.rules.base import Leaf, Params, Rule, register


class Affine(Rule):
    """Base of all layers of the form y = W * x + b."""

    uses_y = False

    def check(self, layer: Any) -> None:
        """Refuse a weight that is computed from others in every call."""
        if "weight" not in layer._parameters:
            raise ValueError(
                "its weight is not a parameter but made from some (weight_norm, spectral_norm, pruning, a "
                "parametrization): make it permanent first, see torch.nn.utils.parametrize.remove_parametrizations"
            )

    def columns(self, layer: Any, x: Tensor) -> Tensor:
        """Reshape (B, *in) to (B, G, I, P)."""
        raise NotImplementedError

    def flat_columns(self, layer: Any, x: Tensor) -> Tensor:
        """Reshape (B, *in) to (I, B P), for a layer without groups.."""
        raise NotImplementedError

    def outputs(self, layer: Any, v: Tensor) -> Tensor:
        """Reshape (…, *out) to (…, G, O, P)."""
        raise NotImplementedError

    def to_weight(self, layer: Any, g: Tensor) -> Tensor:
        """Reshape (…, G, O, I) to (…, *weight.shape)."""
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


@register(nn.Linear)
class Linear(Affine):
    """y = x Wᵀ + b, on (B, in) or, with positions in between, (B, …, in)."""

    def apply(self, layer: Any, params: Params, x: Tensor) -> Tensor:
        return F.linear(x, params["weight"], params.get("bias"))

    def columns(self, layer: Any, x: Tensor) -> Tensor:
        """Reshape (B, …, in) to (B, 1, in, P)."""
        return x.reshape(len(x), 1, -1, x.shape[-1]).mT

    def flat_columns(self, layer: Any, x: Tensor) -> Tensor:
        """Reshape (B, …, in) to (in, B P)."""
        return x.flatten(0, -2).T

    def outputs(self, layer: Any, v: Tensor) -> Tensor:
        """Reshape (R, B, …, out) to (R, B, 1, out, P)."""
        return v.reshape(*v.shape[:2], 1, -1, v.shape[-1]).mT

    def to_weight(self, layer: Any, g: Tensor) -> Tensor:
        return g.squeeze(-3)

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        return t @ at.params["weight"].T

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        return v @ at.params["weight"]

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        """Return m W², mᵀ x² and Σ m; if m is the same for all samples, the sum over samples comes first."""
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

    def takes_matrix(self, at: Leaf) -> bool:
        """Return whether there are no positions."""
        return at.x.ndim == 2

    def dense_pull(self, at: Leaf, c: Tensor) -> Tensor:
        """Return Wᵀ c W, with c (B or 1, out, out) or its diagonal (B or 1, out)."""
        weight = at.params["weight"]
        right = c[:, :, None] * weight if c.ndim == 2 else c @ weight
        return weight.T @ right
