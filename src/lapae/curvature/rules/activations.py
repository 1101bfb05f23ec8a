"""Elementwise layers, y_i = f(x_i): everything follows from f'."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn import functional as F

from lapae.curvature.rules.base import Leaf, Params, Rule, register


class Elementwise(Rule):
    """A rule that needs the derivative only; by default it is taken by automatic differentiation."""

    positionwise = True

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        """f'(x), of the shape of x."""
        return jvp(lambda x: self.apply(layer, {}, x), (x,), (torch.ones_like(x),))[1]

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        return self.derivative(at.layer, at.x, at.y) * t

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        return self.jvp(at, v)  # symmetric

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        return self.derivative(at.layer, at.x, at.y).square_().mul_(m) if need_input else None, {}


register(
    nn.CELU,
    nn.ELU,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU6,
    nn.SELU,
    nn.Softshrink,
    nn.Softsign,
    nn.Tanhshrink,
    nn.Threshold,
)(Elementwise)


@register(nn.Tanh)
class Tanh(Elementwise):
    uses_x = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.addcmul(torch.ones((), dtype=y.dtype, device=y.device), y, y, value=-1)


@register(nn.Sigmoid)
class Sigmoid(Elementwise):
    """y (1 - y)."""

    uses_x = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.addcmul(y, y, y, value=-1)


@register(nn.ReLU)
class ReLU(Elementwise):
    """1 where x > 0, which is where y > 0."""

    uses_x = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        return (y > 0).to(y.dtype)


@register(nn.LeakyReLU)
class LeakyReLU(Elementwise):
    """1 where x > 0, else the slope."""

    uses_y = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        slope = layer.negative_slope
        return (x > 0).to(x.dtype).mul_(1 - slope).add_(slope)


@register(nn.GELU)
class GELU(Elementwise):
    """Φ(x) + x φ(x), and the derivative of its tanh approximation."""

    uses_y = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        if layer.approximate == "none":
            density = torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)
            return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density
        scale = math.sqrt(2 / math.pi)
        t = torch.tanh(scale * (x + 0.044715 * x**3))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t.square()) * scale * (1 + 3 * 0.044715 * x.square())


@register(nn.SiLU)
class SiLU(Elementwise):
    """s + y (1 - s), with s the sigmoid."""

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        s = x.sigmoid()
        return s + y * (1 - s)


@register(nn.Softplus)
class Softplus(Elementwise):
    """sigmoid(beta x), 1 above the threshold where the layer is linear."""

    uses_y = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        scaled = x * layer.beta
        return torch.where(scaled > layer.threshold, torch.ones_like(x), F.sigmoid(scaled))


@register(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
class Identity(Elementwise):
    """Nothing happens; dropout counts as this in eval mode, and is refused in training mode."""

    reshapes = True
    uses_x = uses_y = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.ones_like(x)
