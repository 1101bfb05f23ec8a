"""Tangents of networks whose weights are all those of linear layers (B, in), along directions of the weights.

A direction Δ of a layer moves its output by Δ a, a its input, beside what comes from the layers below: two
multiplications per weight, sample and direction, in a few large matrix products. These products are what it costs, and
in single precision they take a tenth of the time (oneDNN's use the widest registers of a CPU, those of MKL in double
precision only half of them on AMD's).

Shapes: B samples, n directions; tangents are (B, n, *out).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lapae.curvature.forward import Forward, Node, Skip, leaves
from lapae.curvature.rules.activations import Elementwise

Slopes = Mapping[str, Tensor]
"""Derivatives of elementwise layers, by name: (B, *out)."""


def slopes(tape: Forward) -> Slopes:
    """Return the derivatives of the elementwise layers of a record, which all directions share."""
    return {
        leaf.name: leaf.rule.derivative(leaf.layer, leaf.x, leaf.y)
        for leaf in leaves(tape.nodes)
        if isinstance(leaf.rule, Elementwise)
    }


def in_precision(tape: Forward, dtype: torch.dtype) -> Forward:
    """Return a record with numbers of a type."""

    def cast(node: Node) -> Node:
        x, y = node.x.to(dtype), node.y.to(dtype)
        if isinstance(node, Skip):
            return replace(node, ways=tuple(tuple(map(cast, way)) for way in node.ways), x=x, y=y)
        return replace(node, params={key: value.to(dtype) for key, value in node.params.items()}, x=x, y=y)

    return replace(tape, nodes=list(map(cast, tape.nodes)), output=tape.output.to(dtype))


def can_cast(tape: Forward) -> bool:
    """Return whether `in_precision` changes all that a record holds."""
    return all(leaf.saved is None for leaf in leaves(tape.nodes))


def push_directions(
    nodes: Sequence[Node], along: Mapping[str, Tensor], slopes: Slopes, t: Tensor | None = None
) -> Tensor | None:
    """Return the tangents at the output of the last node along directions of the weights.

    Args:
        nodes: layers of a record of `walk_dense`.
        along: n directions, {parameter name: (n, *shape)}.
        slopes: of the whole record.
        t: tangents at the input of the first node, (B, n, *in); None is zero.

    Returns:
        (B, n, *out); None is zero.
    """
    own = False  # whether t was made here, and may be overwritten
    for node in nodes:
        if isinstance(node, Skip):
            first, second = (push_directions(way, along, slopes, t) for way in node.ways)
            t, own = first if second is None else second if first is None else first + second, True
        elif node.params:
            weight, bias = along[f"{node.name}.weight"], along.get(f"{node.name}.bias")
            made = product(node.x, weight.flatten(0, 1), None if bias is None else bias.flatten())
            if t is None:
                t = made.unflatten(1, weight.shape[:2])
            else:
                made = made.reshape(-1, weight.shape[1])
                t = product(t.flatten(0, 1), node.params["weight"], plus=made).unflatten(0, t.shape[:2])
            own = True
        elif t is not None and node.name in slopes:
            slope = slopes[node.name][:, None]
            t, own = t.mul_(slope) if own else t * slope, True
        elif t is not None:
            t, own = node.rule.jvp(node, t.transpose(0, 1)).transpose(0, 1).to(t.dtype), False
    return t


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
    """Return a bᵀ + bias + plus, (m, n).

    By oneDNN where torch has it and numbers are in single precision.

    Args:
        a: (m, D).
        b: (n, D).
        bias: (n,).
        plus: (m, n), which may be overwritten.
    """
    if a.dtype == torch.float32 and a.device.type == "cpu" and _has_onednn() and not torch.compiler.is_exporting():
        if plus is None:
            return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(a, plus, b, bias, "add")
    if plus is not None:
        plus = plus if bias is None else plus + bias
        return torch.addmm(plus, a, b.T)
    return a @ b.T if bias is None else torch.addmm(bias, a, b.T)


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
