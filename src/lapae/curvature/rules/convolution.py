"""Convolutions and transposed convolutions of one to three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lapae.curvature.rules.affine import Affine
from lapae.curvature.rules.base import Leaf, Params, register

FLIP_FLOATS = 1 << 13
"""Minimum number of values at the output of a convolution for its transpose to be computed as another convolution."""


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class Conv(Affine):
    """Convolutions of one to three dimensions with stride, padding, dilation and groups."""

    transposed = False

    def check(self, layer: Any) -> None:
        """Refuse padding that is not with zeros."""
        super().check(layer)
        if layer.padding_mode != "zeros":
            raise ValueError(
                f"padding_mode={layer.padding_mode!r} is not covered: put a padding layer (nn.ReflectionPad2d) first"
            )

    def apply(self, layer: Any, params: Params, x: Tensor) -> Tensor:
        return self._convolve(layer, x, params["weight"], params.get("bias"))

    def _convolve(self, layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, padding = self._pad(layer, x)
        n = x.ndim - 3  # by name and not by aten's one convolution, which mixed precision does not know on a CPU
        if self.transposed:
            convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n]
            return convolve(x, weight, bias, layer.stride, padding, layer.output_padding, layer.groups, layer.dilation)
        return (F.conv1d, F.conv2d, F.conv3d)[n](x, weight, bias, layer.stride, padding, layer.dilation, layer.groups)

    def _pad(self, layer: Any, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Resolve padding="same", which may be uneven, into a padded input and even padding."""
        if not isinstance(layer.padding, str):
            return x, tuple(layer.padding)
        even = (0,) * (x.ndim - 2)
        if layer.padding == "valid":
            return x, even
        return F.pad(x, layer._reversed_padding_repeated_twice), even

    def _backward(self, layer: Any, v: Tensor, x: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]) -> list[Any]:
        """The backward pass of the convolution of x with weight, for cotangents v: of input, weight and bias."""
        padded, padding = self._pad(layer, x)
        output_padding = layer.output_padding if self.transposed else (0,) * (x.ndim - 2)
        result = torch.ops.aten.convolution_backward(
            v, padded, weight, [layer.out_channels], layer.stride, padding, layer.dilation, self.transposed,
            output_padding, layer.groups, mask,
        )  # fmt: skip
        if mask[0] and padded is not x:
            result = (F.pad(result[0], [-p for p in layer._reversed_padding_repeated_twice]), *result[1:])
        return list(result)

    def jvp(self, at: Leaf, t: Tensor) -> Tensor:
        """Return the convolution of the tangents."""
        return self._convolve(at.layer, t.flatten(0, 1), at.params["weight"], None).unflatten(0, t.shape[:2])

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        """Return the transposed convolution of the rows."""
        rows, weight = v.flatten(0, 1), at.params["weight"]
        if self._flips(at, rows):
            return self._transpose(at, rows, weight).unflatten(0, v.shape[:2])
        like = at.x[:1].expand(len(rows), *at.x.shape[1:])  # only its shape matters
        return self._backward(at.layer, rows, like, weight, (True, False, False))[0].unflatten(0, v.shape[:2])

    def _flips(self, at: Leaf, v: Tensor) -> bool:
        """Return whether the transpose is faster as another convolution.

        On a CPU this is up to ten times faster than the backward pass of torch's convolution if there are few channels,
        and slower only for the smallest feature maps.
        """
        return v.device.type == "cpu" and v.numel() >= FLIP_FLOATS and self._transposable(at)

    def _transposable(self, at: Leaf) -> bool:
        return all(s == 1 for s in at.layer.stride) and min(self._reach(at.layer)) >= 0

    def _reach(self, layer: Any) -> list[int]:
        """Padding of the transposed map, for each dimension."""
        padding = (0,) * len(layer.kernel_size) if isinstance(layer.padding, str) else layer.padding
        return [d * (k - 1) - p for d, k, p in zip(layer.dilation, layer.kernel_size, padding, strict=True)]

    def _transpose(self, at: Leaf, v: Tensor, weight: Tensor) -> Tensor:
        """Map (N, *out) to (N, *in): with stride 1 by a plain convolution with the flipped kernel."""
        layer, dims = at.layer, list(range(2, weight.ndim))
        if layer.groups == 1:
            flipped = weight.transpose(0, 1).flip(dims)
        else:
            flipped = weight.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1).flip(dims)
        v_in = torch.convolution(
            v, flipped, None, layer.stride, self._reach(layer), layer.dilation, False, [0] * len(dims), layer.groups
        )
        return F.pad(v_in, [-p for p in layer._reversed_padding_repeated_twice]) if layer.padding == "same" else v_in

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        """One backward pass of the convolution with squared kernel and squared input."""
        squared = at.x.square()
        if len(m) == 1 < len(at.x):
            squared = squared.sum(0, keepdim=True)
        weight = at.params["weight"].square()
        flips = need_input and self._flips(at, m)
        mask = (need_input and not flips, "weight" in at.trainable, "bias" in at.trainable)
        m_in = h_weight = h_bias = None
        if any(mask):
            m_in, h_weight, h_bias = self._backward(at.layer, m, squared, weight, mask)
        if flips:
            m_in = self._transpose(at, m, weight)
        if h_bias is not None and len(m) == 1:
            h_bias = h_bias * len(at.x)
        h: dict[str, Any] = {"weight": h_weight, "bias": h_bias}
        return m_in, {k: h[k] for k in at.trainable}

    def columns(self, layer: Any, x: Tensor) -> Tensor:
        """im2col in any number of dimensions."""
        windows = self._windows(layer, x)
        return windows.reshape(len(x), layer.groups, -1, math.prod(windows.shape[x.ndim :]))

    def flat_columns(self, layer: Any, x: Tensor) -> Tensor:
        """Return columns with the samples among the positions, (I, B P)."""
        windows = self._windows(layer, x).movedim(0, x.ndim - 1)  # (C, *taps, B, *positions)
        return windows.reshape(math.prod(windows.shape[: x.ndim - 1]), -1)

    def _windows(self, layer: Any, x: Tensor) -> Tensor:
        """Inputs under the kernel, in the order of the weight: (B, C, *taps, *positions)."""
        x, padding = self._pad(layer, x)
        x = F.pad(x, [p for q in reversed(padding) for p in (q, q)])
        return _windows(x, layer.kernel_size, layer.stride, layer.dilation)

    def outputs(self, layer: Any, v: Tensor) -> Tensor:
        """Reshape (R, B, C, *positions) to (R, B, G, C/G, P)."""
        return v.reshape(*v.shape[:2], layer.groups, v.shape[2] // layer.groups, -1)

    def to_weight(self, layer: Any, g: Tensor) -> Tensor:
        """Reshape (…, G, O, I) to (…, G O, *I)."""
        return g.reshape(*g.shape[:-3], *layer.weight.shape)


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class ConvTranspose(Conv):
    """Transposed convolutions; a weight is (in, out / groups, *kernel)."""

    transposed = True

    def _transposable(self, at: Leaf) -> bool:
        return True

    def _transpose(self, at: Leaf, v: Tensor, weight: Tensor) -> Tensor:
        """Return the convolution that this one is the transpose of; output padding may make it longer by one."""
        layer, size = at.layer, at.x.shape[2:]
        v_in = torch.convolution(
            v, weight, None, layer.stride, layer.padding, layer.dilation, False, [0] * len(size), layer.groups
        )
        return v_in[(..., *(slice(n) for n in size))]

    def _windows(self, layer: Any, x: Tensor) -> Tensor:
        """Windows of the input with zeros stuffed in between."""
        n_dims = x.ndim - 2
        stuffed_size = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], layer.stride, strict=True)]
        stuffed = x.new_zeros(*x.shape[:2], *stuffed_size)
        stuffed[(..., *(slice(None, None, s) for s in layer.stride))] = x
        pads: list[int] = []
        for k, p, d, extra in zip(layer.kernel_size, layer.padding, layer.dilation, layer.output_padding, strict=True):
            reach = d * (k - 1) - p
            pads = [reach, reach + extra, *pads]
        windows = _windows(F.pad(stuffed, pads), layer.kernel_size, (1,) * n_dims, layer.dilation)
        return windows.flip(list(range(2, 2 + n_dims)))

    def to_weight(self, layer: Any, g: Tensor) -> Tensor:
        """Reshape (…, G, O, I k) to (…, G I, O, *k)."""
        g = g.unflatten(-1, (layer.in_channels // layer.groups, -1)).transpose(-3, -2)
        return g.reshape(*g.shape[:-4], *layer.weight.shape)


class _Several(Conv):
    """A convolution that one sample calls with its own batch, (B, n, C, *size), which becomes part of the positions."""

    def columns(self, layer: Any, x: Tensor) -> Tensor:
        """Reshape (B, n, C, *size) to (B, G, I, n P)."""
        columns = super().columns(layer, x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return columns.movedim(1, -2).flatten(-2)

    def flat_columns(self, layer: Any, x: Tensor) -> Tensor:
        """Reshape (B, n, C, *size) to (I, B n P)."""
        return super().flat_columns(layer, x.flatten(0, 1))

    def outputs(self, layer: Any, v: Tensor) -> Tensor:
        """Reshape (R, B, n, C, *positions) to (R, B, G, C/G, n P)."""
        outputs = super().outputs(layer, v.flatten(1, 2)).unflatten(1, v.shape[1:3])
        return outputs.movedim(2, -2).flatten(-2)


class SeveralConv(_Several):
    """Convolutions."""


class SeveralConvTranspose(_Several, ConvTranspose):
    """Transposed convolutions."""


def _windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Return sliding windows of x (B, C, *size), a view (B, C, *taps, *positions)."""
    n_dims = x.ndim - 2
    for dim, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
        x = x.unfold(dim, d * (k - 1) + 1, s)[..., ::d]
    positions = list(range(2, 2 + n_dims))
    taps = list(range(2 + n_dims, 2 + 2 * n_dims))
    return x.permute(0, 1, *taps, *positions)
