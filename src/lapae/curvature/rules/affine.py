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
        n_outputs = at.y.shape[-1] if isinstance(at.layer, nn.Linear) else at.y.shape[1]
        return math.prod(at.y.shape[1:]) * at.params["weight"].numel() // n_outputs**2 + 1


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
        """The convolution."""
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
        """The convolution of the tangents."""
        return self._convolve(at.layer, t.flatten(0, 1), at.params["weight"], None).unflatten(0, t.shape[:2])

    def vjp(self, at: Leaf, v: Tensor) -> Tensor:
        """The transposed convolution of the rows."""
        return self._transpose(at, v.flatten(0, 1), at.params["weight"]).unflatten(0, v.shape[:2])

    def _transpose(self, at: Leaf, v: Tensor, weight: Tensor) -> Tensor:
        """The transposed map, (N, *out) -> (N, *in): with stride 1 a plain convolution with the flipped kernel.

        On a CPU that is up to ten times faster than the backward pass of the convolution, where channels are few.
        """
        layer, size = at.layer, at.x.shape[2:]
        same = layer._reversed_padding_repeated_twice if layer.padding == "same" else None
        padding = tuple(layer.padding) if not isinstance(layer.padding, str) else (0,) * len(size)
        reach = [d * (k - 1) - p for d, k, p in zip(layer.dilation, layer.kernel_size, padding, strict=True)]
        if any(s != 1 for s in layer.stride) or min(reach) < 0:
            like = v.new_empty(1, *at.x.shape[1:]).expand(len(v), -1, *size)  # only its shape matters
            return self._backward(layer, v, like, weight, (True, False, False))[0]
        flipped = weight.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1)
        flipped = flipped.flip(list(range(2, weight.ndim)))
        v_in = torch.convolution(
            v, flipped, None, layer.stride, reach, layer.dilation, False, (0,) * len(size), layer.groups
        )
        return v_in if same is None else F.pad(v_in, [-p for p in same])

    def squared_backward(self, at: Leaf, m: Tensor, need_input: bool = True) -> tuple[Tensor | None, Params]:
        """One backward pass of the convolution with squared kernel and squared input."""
        squared = at.x.square()
        if len(m) == 1 < len(at.x):
            squared = squared.sum(0, keepdim=True)
        weight = at.params["weight"].square()
        m_in = self._transpose(at, m, weight) if need_input else None
        if not at.trainable:
            return m_in, {}
        mask = (False, "weight" in at.trainable, "bias" in at.trainable)
        _, h_weight, h_bias = self._backward(at.layer, m, squared, weight, mask)
        if h_bias is not None and len(m) == 1:
            h_bias = h_bias * len(at.x)
        h = {"weight": h_weight, "bias": h_bias}
        return m_in, {k: h[k] for k in at.trainable}

    def columns(self, layer: Any, x: Tensor) -> Tensor:
        """im2col in any number of dimensions."""
        windows = self._windows(layer, x)
        return windows.reshape(len(x), layer.groups, -1, math.prod(windows.shape[x.ndim :]))

    def flat_columns(self, layer: Any, x: Tensor) -> Tensor:
        """The same with the data among the positions."""
        windows = self._windows(layer, x).movedim(0, x.ndim - 1)  # (C, *taps, B, *positions)
        return windows.reshape(math.prod(windows.shape[: x.ndim - 1]), -1)

    def _windows(self, layer: Any, x: Tensor) -> Tensor:
        """Inputs under the kernel, in the order of the weight: (B, C, *taps, *positions)."""
        x, padding = self._pad(layer, x)
        x = F.pad(x, [p for q in reversed(padding) for p in (q, q)])
        return _windows(x, layer.kernel_size, layer.stride, layer.dilation)

    def outputs(self, layer: Any, v: Tensor) -> Tensor:
        """(R, B, C, *positions) -> (R, B, G, C/G, P)."""
        return v.reshape(*v.shape[:2], layer.groups, v.shape[2] // layer.groups, -1)

    def to_weight(self, layer: Any, g: Tensor) -> Tensor:
        """(…, G, O, I) -> (…, G O, *I)."""
        return g.reshape(*g.shape[:-3], *layer.weight.shape)


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class ConvTranspose(Conv):
    """Transposed convolutions; a weight is (in, out / groups, *kernel)."""

    transposed = True

    def _transpose(self, at: Leaf, v: Tensor, weight: Tensor) -> Tensor:
        """The convolution that this one is the transpose of; output padding may make it longer by one."""
        layer, size = at.layer, at.x.shape[2:]
        v_in = torch.convolution(
            v, weight, None, layer.stride, layer.padding, layer.dilation, False, (0,) * len(size), layer.groups
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
        """(…, G, O, I k) -> (…, G I, O, *k)."""
        g = g.unflatten(-1, (layer.in_channels // layer.groups, -1)).transpose(-3, -2)
        return g.reshape(*g.shape[:-4], *layer.weight.shape)


def _windows(x: Tensor, kernel: tuple, stride: tuple, dilation: tuple) -> Tensor:
    """Sliding windows: (B, C, *size) -> (B, C, *taps, *positions), a view."""
    n_dims = x.ndim - 2
    for dim, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
        x = x.unfold(dim, d * (k - 1) + 1, s)[..., ::d]
    positions = list(range(2, 2 + n_dims))
    taps = list(range(2 + n_dims, 2 + 2 * n_dims))
    return x.permute(0, 1, *taps, *positions)
