"""What is made of the M at a layer's output: the diagonal, the block, or Kronecker factors of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.curvature.messages import Rows
from lapae.curvature.rules import Leaf, Params, identity_rows
from lapae.curvature.tape import Node, leaves


class DiagonalReader:
    """The diagonal of every layer's block, by full parameter name, in the parameter's shape."""

    takes_squares = True

    def __init__(self) -> None:
        self.result: Params = {}

    def squared(self, leaf: Leaf, h: Params) -> None:
        """As it is."""
        for key in leaf.trainable:
            name = f"{leaf.name}.{key}" if leaf.name else key
            self.result[name] = self.result[name] + h[key] if name in self.result else h[key]

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Squares of the rows' gradients."""
        self.squared(leaf, leaf.rule.rows_diagonal(leaf, rows.v, rows.c))

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        """From the matrix."""
        self.squared(leaf, leaf.rule.dense_diagonal(leaf, c))


class BlockReader:
    """The whole block of every layer, (P, P) with P its wanted parameters, flattened in their order, by layer name."""

    takes_squares = False

    def __init__(self) -> None:
        self.result: Params = {}

    def squared(self, leaf: Leaf, h: Params) -> None:
        """A diagonal M still has a block with off-diagonal terms: never asked for here."""
        raise AssertionError("the block of a layer is read from rows or a matrix")

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Gᵀ c G."""
        gradients = leaf.rule.gradients(leaf, rows.v)
        g = torch.cat([gradients[k].flatten(2) for k in leaf.trainable], dim=2)  # (R, B, P)
        if rows.c is None:
            g = g.flatten(0, 1)
            block = g.T @ g
        else:
            block = g.flatten(0, 1).T @ torch.einsum("brs,sbp->rbp", rows.c, g).flatten(0, 1)
        self.result[leaf.name] = self.result[leaf.name] + block if leaf.name in self.result else block

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        """Through all rows of the identity."""
        self.rows(leaf, Rows(identity_rows(leaf.y), c.expand(len(leaf.y), *c.shape[1:])))


@dataclass(frozen=True)
class Kronecker:
    """A block as G ⊗ A / n: of a weight seen as a matrix (out, in), or, with A None, of a bias."""

    g: Tensor
    """(out, out): sum over data and positions of the M at the output."""
    a: Tensor | None = None
    """(in, in): sum over data and positions of x xᵀ."""
    n: int = 1
    """Data times positions."""

    def __add__(self, other: Kronecker) -> Kronecker:
        """Factors of more data: sums."""
        if self.a is None or other.a is None:
            return Kronecker(self.g + other.g)
        return Kronecker(self.g + other.g, self.a + other.a, self.n + other.n)

    def block(self) -> Tensor:
        """The (out·in, out·in) matrix that the factors stand for."""
        return self.g if self.a is None else torch.kron(self.g, self.a / self.n)


class KroneckerReader:
    """KFAC: an input factor from the forward pass, an output factor from M; a bias gets its exact block."""

    takes_squares = False

    def __init__(self) -> None:
        self.result: dict[str, Kronecker] = {}

    def inputs(self, nodes: Sequence[Node]) -> None:
        """Input factors of all layers, once for every datum."""
        for leaf in leaves(tuple(nodes)):
            if "weight" in leaf.trainable:
                x = leaf.rule.kron_input(leaf).flatten(0, 1)
                g = x.new_zeros(())
                self._add(leaf, "weight", Kronecker(g, x.T @ x, len(x)))

    def squared(self, leaf: Leaf, h: Params) -> None:
        """The output factor is a full matrix: never asked for here."""
        raise AssertionError("Kronecker factors are read from rows or a matrix")

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Outer products of rows: a sum over positions of them for the weight, of sums over positions for the bias."""
        v = leaf.rule.kron_output(leaf, rows.v)  # (R, B, P, O)
        if "weight" in leaf.trainable:
            g = _outer(v, rows.c)
            self._add(leaf, "weight", Kronecker(g, g.new_zeros(()), 0))
        if "bias" in leaf.trainable:
            self._add(leaf, "bias", Kronecker(_outer(v.sum(2, keepdim=True), rows.c)))

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        """Layers that meet a matrix have no positions: its sum over data."""
        g = c.sum(0) * (len(leaf.y) // len(c))
        if "weight" in leaf.trainable:
            self._add(leaf, "weight", Kronecker(g, g.new_zeros(()), 0))
        if "bias" in leaf.trainable:
            self._add(leaf, "bias", Kronecker(g))

    def _add(self, leaf: Leaf, key: str, factors: Kronecker) -> None:
        name = f"{leaf.name}.{key}" if leaf.name else key
        self.result[name] = self.result[name] + factors if name in self.result else factors


def _outer(v: Tensor, c: Tensor | None) -> Tensor:
    """Σ_rs Σ_bp c_rs v_r v_sᵀ: (R, B, P, O) -> (O, O)."""
    right = v if c is None else torch.einsum("brs,sbpo->rbpo", c, v)
    return v.flatten(0, 2).T @ right.flatten(0, 2)
