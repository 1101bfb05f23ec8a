"""Products with the Jacobian of the weights, for networks whose weights all belong to linear layers (B, in).

The Jacobian of such a network is never formed. For a row v at the output, pulled back to the output of a layer, it is
the outer product of v and the layer's input a, so that Σ_b J_bᵀ v_b is one matrix product vᵀ a per layer, for any
number of vectors at once. `lapae.predict.dense` has products J_b δ.
"""

from __future__ import annotations

from torch import Tensor, nn

from lapae.curvature.forms import Rows
from lapae.curvature.forward import Forward, leaves, walk_if_known
from lapae.curvature.rules.affine import Linear
from lapae.curvature.rules.base import Leaf, Params
from lapae.curvature.walked import pull_rows


def walk_dense(module: nn.Module, x: Tensor) -> Forward | None:
    """Record a forward pass of samples x (B, *in); None if a weight does not belong to a linear layer without
    positions."""
    tape = walk_if_known(module, x)
    if tape is None:
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
