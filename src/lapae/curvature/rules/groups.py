"""Layers that couple the features of a sample: normalisations of groups, and the softmax.

Their Jacobian is diagonal plus low rank, so that sums of its squared entries need only a few sums over a group. With s
the deviation of the n features of a group and c = 1 (c = 0 if no mean is subtracted),

    ∂x̂_o/∂x_i    = (δ_oi - (c + x̂_o x̂_i) / n) / s
    Σ_o m_o (…)²  = (m_i (1 - 2 (c + x̂_i²) / n) + (c S_0 + 2 c x̂_i S_1 + x̂_i² S_2) / n²) / s²,   S_k = Σ_o m_o x̂_o^k

and for a softmax p, ∂p_o/∂x_i = p_o (δ_oi - p_i), whose squares sum to m_i p_i² (1 - 2 p_i) + p_i² Σ_o m_o p_o².
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lapae.curvature.rules.base import Leaf, Params, Rule, register


class GroupRule(Rule):
    """y = weight * x̂ + bias, x̂ the features of each group divided by their deviation."""

    uses_y = False
    centred = True
    """Whether the mean of a group is subtracted."""

    def groups(self, layer: Any, x: Tensor, before: int = 1) -> Tensor:
        """Reshape (B, *features), or with more axes `before` the features, to (B, groups, n)."""
        raise NotImplementedError

    def over_features(self, layer: Any, parameter: Tensor, x: Tensor) -> Tensor:
        """Reshape a weight or bias so that it broadcasts to the features of x (B, *features)."""
        raise NotImplementedError

    def to_parameter(self, layer: Any, terms: Tensor, before: int = 1) -> Tensor:
        """Sum over positions: (B, *features) -> (B, *parameter shape)."""
        raise NotImplementedError

    def _statistics(self, at: Leaf) -> tuple[Tensor, Tensor]:
        """x̂ (B, groups, n) and the deviation (B, groups, 1)."""
        x = self.groups(at.layer, at.x)
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        eps = torch.finfo(x.dtype).eps if at.layer.eps is None else at.layer.eps
        deviation = (x.square().mean(-1, keepdim=True) + eps).sqrt()
        return x / deviation, deviation

    def _scaled(self, at: Leaf, v: Tensor) -> Tensor:
        return v * self.over_features(at.layer, at.params["weight"], at.x) if "weight" in at.params else v

    def _core(self, at: Leaf, t: Tensor) -> Tensor:
        """∂x̂/∂x t, which is symmetric: (R, B, *features) -> the same."""
        normal, deviation = self._statistics(at)
        flat = self.groups(at.layer, t, 2)
        out = flat - normal * (normal * flat).mean(-1, keepdim=True)
        if self.centred:
            out = out - flat.mean(-1, keepdim=True)
        return (out / deviation).reshape(t.shape)

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        return self._scaled(at, self._core(at, t))

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        return self._core(at, self._scaled(at, v))

    def gradients(self, at: Leaf, v: Tensor) -> Params:
        values = {"bias": v}
        if "weight" in at.trainable:
            values["weight"] = v * self._statistics(at)[0].reshape(at.x.shape)
        return {key: self.to_parameter(at.layer, values[key], 2) for key in at.trainable}

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        normal, deviation = self._statistics(at)
        h: Params = {}
        if "weight" in at.trainable:
            h["weight"] = self.to_parameter(at.layer, m * normal.square().reshape(at.x.shape)).sum(0)
        if "bias" in at.trainable:
            h["bias"] = self.to_parameter(at.layer, m).sum(0) * (len(at.x) // len(m))
        h = {key: h[key] for key in at.trainable}
        if not need_input:
            return None, h
        m = self.groups(at.layer, self._scaled(at, self._scaled(at, m)))
        n, squares = m.shape[-1], normal.square()
        m_in = m * (1 - 2 * (self.centred + squares) / n) + squares * (m * squares).sum(-1, keepdim=True) / n**2
        if self.centred:
            m_in = m_in + (m.sum(-1, keepdim=True) + 2 * normal * (m * normal).sum(-1, keepdim=True)) / n**2
        return (m_in / deviation.square()).reshape(at.x.shape), h


@register(nn.LayerNorm)
class LayerNorm(GroupRule):
    """Groups are the last axes, with a weight for each of their features, the same at all positions before them."""

    def groups(self, layer: Any, x: Tensor, before: int = 1) -> Tensor:
        return x.flatten(x.ndim - len(layer.normalized_shape))

    def over_features(self, layer: Any, parameter: Tensor, x: Tensor) -> Tensor:
        return parameter

    def to_parameter(self, layer: Any, terms: Tensor, before: int = 1) -> Tensor:
        positions = list(range(before, terms.ndim - len(layer.normalized_shape)))
        return terms.sum(positions) if positions else terms


@register(nn.RMSNorm)
class RMSNorm(LayerNorm):
    """Normalisation by the root mean square, without a mean."""

    centred = False


@register(nn.GroupNorm)
class GroupNorm(GroupRule):
    """Groups of channels with all their positions; a weight per channel."""

    def groups(self, layer: Any, x: Tensor, before: int = 1) -> Tensor:
        return x.flatten(before).unflatten(before, (layer.num_groups, -1))

    def over_features(self, layer: Any, parameter: Tensor, x: Tensor) -> Tensor:
        return parameter.reshape(-1, *[1] * (x.ndim - 2))

    def to_parameter(self, layer: Any, terms: Tensor, before: int = 1) -> Tensor:
        return terms.flatten(before).unflatten(before, (layer.num_channels, -1)).sum(-1)


@register(nn.Softmax)
class Softmax(Rule):
    """p_o (δ_oi - p_i): diagonal plus rank one."""

    uses_x = False

    def check(self, layer: Any) -> None:
        if layer.dim in (None, 0):
            raise ValueError(f"dim={layer.dim}: name the axis of the classes, which is not that of the batch (0)")

    def _dim(self, at: Leaf) -> int:
        """Return the axis counted from the end: rows have one more axis in front."""
        return at.layer.dim if at.layer.dim < 0 else at.layer.dim - at.y.ndim

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        weighted = at.y * t
        return weighted - at.y * weighted.sum(self._dim(at), keepdim=True)

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        return self.jvp(at, v)  # symmetric

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        if not need_input:
            return None, {}
        squares = at.y.square()
        weighted = m * squares
        return weighted * (1 - 2 * at.y) + squares * weighted.sum(self._dim(at), keepdim=True), {}


@register(nn.LogSoftmax)
class LogSoftmax(Softmax):
    """δ_oi - p_i, with p = exp(y)."""

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        return t - (at.y.exp() * t).sum(self._dim(at), keepdim=True)

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        return v - at.y.exp() * v.sum(self._dim(at), keepdim=True)

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        if not need_input:
            return None, {}
        p = at.y.exp()
        return m * (1 - 2 * p) + p.square() * m.sum(self._dim(at), keepdim=True), {}
