"""Products with the Jacobian of the weights, for networks whose weights are all those of linear layers (B, in).

The Jacobian of such a network is never formed. Of a row v of the output, pulled back to the output of a layer, it is
the outer product of v and the layer's input a, so that

    Σ_b J_bᵀ v_b       is one matrix product vᵀ a per layer, for any number of vectors at once
    J_b δ = Σ v (Δ a)  takes the direction Δ of a layer to its input, and then to all rows of the output

The second costs about one multiplication per weight, sample and direction, half of what forward-mode differentiation
takes, and is a few large matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from lapae.curvature.forms import Rows
from lapae.curvature.forward import Forward, Node, begin, leaves
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


@dataclass(frozen=True)
class RowProducts:
    """Rows of the Jacobian of some layers, in the form that meets directions of the weights.

    Attributes:
        layers: name, input (B, in) and rows at the output (R, B, out) of each layer.
        into: the rows at the input of the first layer, (R, B, *in), if they are asked for.
    """

    layers: list[tuple[str, Tensor, Tensor]]
    into: Tensor

    @classmethod
    def of(cls, nodes: Sequence[Node], rows: Tensor, *, need_input: bool) -> RowProducts:
        """Pull rows (R, B, *out) at the output of the last node back through all."""
        layers: list[tuple[str, Tensor, Tensor]] = []
        ended = pull_rows(nodes, Rows(rows), lambda leaf, at: layers.append((leaf.name, leaf.x, at.v)), need_input)
        return cls(layers, ended.v)

    def __call__(self, along: Mapping[str, Tensor]) -> Tensor:
        """Return the products of all rows with directions {parameter name: (n, *shape)}: (B, n, R)."""
        total: Tensor | int = 0
        for name, x, rows in self.layers:
            weight = along[f"{name}.weight"]
            moved = x @ weight.flatten(0, 1).T
            if f"{name}.bias" in along:
                moved += along[f"{name}.bias"].flatten()
            total = total + moved.reshape(len(x), *weight.shape[:2]) @ rows.permute(1, 2, 0).contiguous()
        assert isinstance(total, Tensor)
        return total
