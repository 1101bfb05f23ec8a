"""Batch normalisation in eval mode: a scale and a shift per channel, y = weight * x̂ + bias, with x̂ fixed by buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lapae.curvature.rules.base import Leaf, Params, Rule, register


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class BatchNorm(Rule):
    """Elementwise in the features; weights are shared over positions."""

    positionwise = True
    uses_y = False

    def _inverse_deviation(self, layer: Any, like: Tensor) -> Tensor:
        return self._channels(torch.rsqrt(layer.running_var + layer.eps), like)

    @staticmethod
    def _channels(a: Tensor, like: Tensor) -> Tensor:
        return a.reshape(-1, *[1] * (like.ndim - 2))

    def _scale(self, layer: Any, params: Params, x: Tensor) -> Tensor:
        """dy/dx, (C, 1, …)."""
        scale = self._inverse_deviation(layer, x)
        return scale * self._channels(params["weight"], x) if "weight" in params else scale

    def _normalised(self, layer: Any, x: Tensor) -> Tensor:
        return (x - self._channels(layer.running_mean, x)) * self._inverse_deviation(layer, x)

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        return t * self._scale(at.layer, at.params, at.x)

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        return self.jvp(at, v)  # symmetric

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        """scale² m, Σ m x̂², Σ m."""
        h = {}
        if "weight" in at.trainable:
            h["weight"] = self._sum(m * self._normalised(at.layer, at.x).square())
        if "bias" in at.trainable:
            h["bias"] = self._sum(m) * (len(at.x) // len(m))
        return m * self._scale(at.layer, at.params, at.x).square() if need_input else None, h

    @staticmethod
    def _sum(a: Tensor) -> Tensor:
        return a.sum([d for d in range(a.ndim) if d != 1])

    def gradients(self, at: Leaf, v: Tensor) -> Params:
        """Sums over positions of v x̂ and v."""
        values = {"weight": v * self._normalised(at.layer, at.x), "bias": v}
        return {k: values[k].flatten(2).unflatten(2, (at.x.shape[1], -1)).sum(-1) for k in at.trainable}
