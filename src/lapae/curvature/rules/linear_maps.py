"""Layers that are linear (or, for max-pooling, linear once the winners are known) in the input and have no weights.

For the diagonal of M they need the squares of their coefficients:

- selections (padding, pixel shuffle, nearest upsampling, max-pooling): coefficients are 0 and 1, their own squares;
- averages: all coefficients of a window are equal, so that m is multiplied by that coefficient first;
- bilinear upsampling: a product of one small matrix per dimension, squared element by element.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp
from torch.nn import functional as F

from lapae.curvature.rules.base import Leaf, Params, Rule, register


class LinearMap(Rule):
    """y = A x + const. Rows and tangents go through as a larger batch."""

    uses_x = uses_y = False

    def selects(self, layer: nn.Module) -> bool:
        """Return whether coefficients are 0 and 1, so that variances go through as values do."""
        return type(self) in (LinearMap, Reshape)

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        """Return A t."""
        zero = self.apply(at.layer, at.params, torch.zeros_like(at.x[:1]))
        return (self.apply(at.layer, at.params, t.flatten(0, 1)) - zero).unflatten(0, t.shape[:2])

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        """Return Aᵀ v."""
        return self._transpose(at.layer, at.params, at.x, v.flatten(0, 1)).unflatten(0, v.shape[:2])

    def _transpose(self, layer: nn.Module, params: Params, x: Tensor, v: Tensor) -> Tensor:
        pull = vjp(lambda x: self.apply(layer, params, x), x.new_zeros(len(v), *x.shape[1:]))[1]
        return pull(v.contiguous())[0]

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        """Return Σ_o A_oi² m_o."""
        return self.squared_transpose(at, m) if need_input else None, {}

    def squared_transpose(self, at: Leaf, m: Tensor) -> Tensor:
        """Return Aᵀ m, as coefficients 0 and 1 are their own squares."""
        return self._transpose(at.layer, at.params, at.x, m)


register(
    nn.ChannelShuffle,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    *(
        getattr(nn, f"{kind}Pad{n}d")
        for kind in ("Circular", "Constant", "Reflection", "Replication", "Zero")
        for n in (1, 2, 3)
    ),
)(LinearMap)


@register(nn.Flatten, nn.Unflatten)
class Reshape(LinearMap):
    """Layers that only change the shape."""

    reshapes = True

    def check(self, layer: Any) -> None:
        """Refuse to reshape the batch axis."""
        first = layer.start_dim if isinstance(layer, nn.Flatten) else layer.dim
        if first == 0 or not isinstance(first, int):
            raise ValueError("the batch axis (0) must be kept, and dimensions be numbers")

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        return t.reshape(*t.shape[:2], *at.y.shape[1:])

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        return v.reshape(*v.shape[:2], *at.x.shape[1:])

    def squared_transpose(self, at: Leaf, m: Tensor) -> Tensor:
        return m.reshape(m.shape[0], *at.x.shape[1:])  # len() would fix the number of samples in an exported graph


@register(nn.Upsample)
class Upsample(LinearMap):
    """Nearest (a selection), and linear, bilinear, trilinear and bicubic (one matrix per dimension)."""

    def apply(self, layer: Any, params: Params, x: Tensor) -> Tensor:
        """The layer, or on a CPU, where torch's nearest upsampling goes through another memory format, plain copies."""
        factors = self._whole_factors(layer, x.shape[2:]) if x.device.type == "cpu" else None
        return layer(x) if factors is None else _copies(x, factors)

    def selects(self, layer: Any) -> bool:
        return layer.mode.startswith("nearest")

    def squared_transpose(self, at: Leaf, m: Tensor) -> Tensor:
        """Sum over copies, or the product with squared matrices."""
        if at.layer.mode.startswith("nearest"):
            factors = self._whole_factors(at.layer, at.x.shape[2:])
            return super().squared_transpose(at, m) if factors is None else _sum_copies(m, factors)
        for dim in range(2, at.x.ndim):
            squared = self._matrix(at.layer, at.x.shape[dim], at.y.shape[dim], dim - 2, at.x).square()
            m = (m.movedim(dim, -1) @ squared).movedim(-1, dim)
        return m

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        """Sum over copies where the factor is whole."""
        factors = self._whole_factors(at.layer, at.x.shape[2:])
        if factors is None:
            return super().vjp(at, v)
        return _sum_copies(v.flatten(0, 1), factors).unflatten(0, v.shape[:2])

    def _whole_factors(self, layer: Any, size: torch.Size) -> list[int] | None:
        """Copies per dimension, where inputs are copied equally often: a scale of 2.3 may double a size unevenly."""
        if layer.mode != "nearest":
            return None
        if layer.size is None:
            scales = layer.scale_factor if isinstance(layer.scale_factor, tuple) else (layer.scale_factor,) * len(size)
        else:
            target = layer.size if isinstance(layer.size, tuple) else (layer.size,) * len(size)
            scales = [n_out / n_in for n_in, n_out in zip(size, target, strict=True)]
        return [int(s) for s in scales] if all(s >= 1 and s == int(s) for s in scales) else None

    def _matrix(self, layer: Any, n_in: int, n_out: int, which: int, like: Tensor) -> Tensor:
        """Return the matrix (n_out, n_in) of interpolation along one dimension."""
        eye = torch.eye(n_in, dtype=like.dtype, device=like.device)[None]
        scale = layer.scale_factor[which] if isinstance(layer.scale_factor, tuple) else layer.scale_factor
        by_scale = scale is not None and layer.recompute_scale_factor is not True
        options: dict[str, Any] = {"scale_factor": scale} if by_scale else {"size": n_out}
        if layer.mode != "bicubic":
            return F.interpolate(eye, mode="linear", align_corners=layer.align_corners, **options)[0].T
        # only defined for images: the second dimension stays as it is
        options = {"scale_factor": (scale, 1.0)} if by_scale else {"size": (n_out, n_in)}
        return F.interpolate(eye[None], mode="bicubic", align_corners=layer.align_corners, **options)[0, 0]


def _copies(x: Tensor, factors: list[int]) -> Tensor:
    """Each element `factor` times in a row, one dimension after the other: (N, C, *size) -> (N, C, *size * factors)."""
    for dim, factor in reversed(list(enumerate(factors, start=2))):
        if factor > 1:
            x = torch.stack([x] * factor, dim + 1).flatten(dim, dim + 1)
    return x


def _sum_copies(v: Tensor, factors: list[int]) -> Tensor:
    """Sum of each block of copies, one dimension after the other: (N, C, *size * factors) -> (N, C, *size).

    Strided slices are added, which is many times faster than a sum over small inner dimensions.
    """
    for dim, factor in enumerate(factors, start=2):
        before = (slice(None),) * dim
        total = v[(*before, slice(None, None, factor))]
        for i in range(1, factor):
            total = total + v[(*before, slice(i, None, factor))]
        v = total
    return v


class Average(LinearMap):
    """Every output is c times the sum of its window."""

    def coefficients(self, layer: Any, n_in: int, which: int, like: Tensor) -> Tensor:
        """c along one dimension, (n_out,); the coefficient of a window is the product over dimensions."""
        raise NotImplementedError

    def squared_transpose(self, at: Leaf, m: Tensor) -> Tensor:
        override = getattr(at.layer, "divisor_override", None)
        if override:
            return self._transpose(at.layer, at.params, at.x, m / override)
        for dim in range(2, at.x.ndim):
            c = self.coefficients(at.layer, at.x.shape[dim], dim - 2, at.x)
            m = m * c.reshape(-1, *[1] * (at.x.ndim - 1 - dim))
        return self._transpose(at.layer, at.params, at.x, m)


@register(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
class AvgPool(Average):
    def coefficients(self, layer: Any, n_in: int, which: int, like: Tensor) -> Tensor:
        """Return the largest entry of each row of the one-dimensional pooling matrix."""

        def option(value: Any) -> int:
            return value[which % len(value)] if isinstance(value, tuple) else value

        eye = torch.eye(n_in, dtype=like.dtype, device=like.device)[None]
        size, stride, padding = (option(value) for value in (layer.kernel_size, layer.stride, layer.padding))
        return F.avg_pool1d(eye, size, stride, padding, layer.ceil_mode, layer.count_include_pad)[0].amax(0)


@register(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
class AdaptiveAvgPool(Average):
    """Average pooling to a given size."""

    def coefficients(self, layer: Any, n_in: int, which: int, like: Tensor) -> Tensor:
        """One over the size of each window."""
        size = layer.output_size
        n_out = size[which] if isinstance(size, tuple | list) else size
        n_out = n_in if n_out is None else n_out
        eye = torch.eye(n_in, dtype=like.dtype, device=like.device)
        return F.adaptive_avg_pool1d(eye[None], n_out)[0].amax(0)


@register(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
class MaxPool(LinearMap):
    """A selection of the winners, whose positions are kept from the forward pass."""

    def check(self, layer: Any) -> None:
        """Refuse a layer that returns two things."""
        if layer.return_indices:
            raise ValueError("return_indices=True makes the output a pair: leave it out")

    def forward(self, layer: Any, params: Params, x: Tensor) -> tuple[Tensor, Any]:
        """Return maxima and their flat places in the feature map."""
        pool = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}[x.ndim]
        y, indices = pool(
            x, layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, return_indices=True
        )
        return y, indices

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        """Gather at the winners."""
        places = at.saved.flatten(2).expand(len(t), -1, -1, -1)
        return t.flatten(3).gather(3, places).reshape(len(t), *at.y.shape)

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        places = at.saved.flatten(2).expand(len(v), -1, -1, -1)
        flat = v.new_zeros(len(v), *at.x.flatten(2).shape).scatter_add_(3, places, v.flatten(3))
        return flat.reshape(len(v), *at.x.shape)

    def squared_transpose(self, at: Leaf, m: Tensor) -> Tensor:
        return self.vjp(at, m.expand(1, *at.y.shape))[0]
