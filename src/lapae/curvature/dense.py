"""Products with the Jacobian of the weights, for networks whose weights are all those of linear layers (B, in).

The Jacobian of such a network is never formed. Of a row v of the output, pulled back to the output of a layer, it is
the outer product of v and the layer's input a, so that

    Σ_b J_bᵀ v_b       is one matrix product vᵀ a per layer, for any number of vectors at once
    J_b δ              takes the direction Δ of a layer to its input, Δ a, and adds what comes from the layers below

The second costs about two multiplications per weight, sample and direction, in a few large matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from lapae.curvature.forms import Rows
from lapae.curvature.forward import Forward, Node, Skip, begin, leaves
from lapae.curvature.rules.affine import Linear
from lapae.curvature.rules.base import Leaf, Params
from lapae.curvature.walked import pull_rows


def walk_dense(module: nn.Module, x: Tensor) -> Forward | None:
    """Record a forward pass of samples x (B, *in); None if a weight is not that of a linear layer without positions."""
    tape = begin(module, x)
    if not isinstance(tape, Forward):
        return None
    tape = tape.promoted()
    layers = [leaf for leaf in leaves(tape.nodes) if leaf.params]
    return tape if all(isinstance(leaf.rule, Linear) and leaf.x.ndim == 2 for leaf in layers) else None


def summed_gradients(tape: Forward, v: Tensor) -> Params:
    """Return Σ_b J_bᵀ v_b for n vectors.

    Args:
        tape: a record of `walk_dense`.
        v: vectors at the output, (n, B, *out).

    Returns:
        {parameter name: (n, *shape)}.
    """
    found: Params = {}

    def read(leaf: Leaf, rows: Rows) -> None:
        if "weight" in leaf.trainable:
            by_unit = rows.v.mT.reshape(-1, len(leaf.x)) @ leaf.x
            found[f"{leaf.name}.weight"] = by_unit.reshape(len(v), *leaf.params["weight"].shape)
        if "bias" in leaf.trainable:
            found[f"{leaf.name}.bias"] = rows.v.sum(1)

    pull_rows(tape.nodes[tape.first_trainable :], Rows(v), read, need_input=False)
    return found


def push_directions(nodes: Sequence[Node], along: Mapping[str, Tensor], t: Tensor | None = None) -> Tensor | None:
    """Return the tangents at the output of the last node along directions of the weights.

    Args:
        nodes: layers of a record of `walk_dense`.
        along: n directions, {parameter name: (n, *shape)}.
        t: tangents at the input of the first node, (n, B, *in); None is zero.

    Returns:
        (n, B, *out); None is zero.
    """
    for node in nodes:
        if isinstance(node, Skip):
            first, second = (push_directions(way, along, t) for way in node.ways)
            t = first if second is None else second if first is None else first + second
            continue
        if t is not None:
            t = node.rule.jvp(node, t)
        if node.params:
            weight = along[f"{node.name}.weight"]
            own = (node.x @ weight.flatten(0, 1).T).unflatten(1, weight.shape[:2]).transpose(0, 1)
            if f"{node.name}.bias" in along:
                own = own + along[f"{node.name}.bias"][:, None]
            t = own if t is None else own + t
    return t
