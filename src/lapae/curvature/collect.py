"""What is gathered on the way back, layer by layer: the diagonal, the blocks, or Kronecker factors of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from lapae.curvature.extract import dense_diagonal, input_factor, linear_block, output_rows, rows_diagonal
from lapae.curvature.forms import Rows
from lapae.curvature.forward import Node, leaves
from lapae.curvature.rules.base import CHUNK_FLOATS, Leaf, Params, identity_rows, product_with_itself

LARGEST_BLOCK = 1 << 14
"""Parameters of a tensor without Kronecker factors up to which its block is held whole."""
S = TypeVar("S", Tensor, "Kronecker")


class Collect:
    """Takes what it wants of a layer from the M at the layer's output."""

    takes_squares = False
    """Whether `squared` is enough where M is diagonal; else M is handed over as a matrix."""

    def squared(self, leaf: Leaf, h: Params) -> None:
        """The diagonal of the layer's block for a diagonal M, where that is enough."""
        raise NotImplementedError

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """M as rows."""
        raise NotImplementedError

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        """M as a matrix (B or 1, F, F): here through all rows of the identity."""
        self.rows(leaf, Rows(identity_rows(leaf.y), c.expand(len(leaf.y), *c.shape[1:])))


class CollectDiagonal(Collect):
    """The diagonal of every layer's block, by full parameter name, in the parameter's shape."""

    takes_squares = True

    def __init__(self) -> None:
        self.result: Params = {}

    def squared(self, leaf: Leaf, h: Params) -> None:
        for key in leaf.trainable:
            add(self.result, full_name(leaf, key), h[key])

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Squares of the rows' gradients."""
        self.squared(leaf, rows_diagonal(leaf.rule, leaf, rows.v, rows.c))

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        self.squared(leaf, dense_diagonal(leaf.rule, leaf, c))


class CollectBlocks(Collect):
    """The whole block of every layer, (P, P) with P its wanted parameters, flattened in their order, by layer name."""

    def __init__(self) -> None:
        self.result: Params = {}

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Gᵀ c G, some rows and data at a time: G is linear in the rows, so that c G are the gradients of c v."""
        if leaf.rule.takes_matrix(leaf):
            self.dense(leaf, rows.dense())
            return
        n_rows, n_data = rows.v.shape[:2]
        n_parameters = sum(leaf.params[k].numel() for k in leaf.trainable)
        n_pairs = max(1, CHUNK_FLOATS // (2 * n_parameters))
        for b in range(0, n_data, max(1, n_pairs // n_rows)):
            data = slice(b, b + max(1, n_pairs // n_rows))
            part, v = leaf.part(data), rows.v[:, data]
            right = v if rows.c is None else torch.einsum("brs,sb...->rb...", rows.c[data], v)
            for r in range(0, n_rows, n_pairs):
                g = self._gradients(part, v[r : r + n_pairs])
                c_g = g if rows.c is None else self._gradients(part, right[r : r + n_pairs])
                add(self.result, leaf.name, g.T @ c_g)

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        if leaf.rule.takes_matrix(leaf):
            add(self.result, leaf.name, linear_block(leaf, c))
        else:
            super().dense(leaf, c)

    def _gradients(self, leaf: Leaf, v: Tensor) -> Tensor:
        """(R B, P)."""
        gradients = leaf.rule.gradients(leaf, v)
        return torch.cat([gradients[k].flatten(2) for k in leaf.trainable], dim=2).flatten(0, 1)


@dataclass(frozen=True)
class Kronecker:
    """A block as G ⊗ A / n: of a weight seen as a matrix (out, in), or, with A None, of a bias."""

    g: Tensor
    """(out, out): sum over data and positions of the M at the output."""
    a: Tensor | None = None
    """(in, in): sum over data and positions of x xᵀ."""
    n: int = 1
    """Data times positions; 0 where no sample has used the parameter."""

    def __add__(self, other: Kronecker) -> Kronecker:
        """Factors of more data: sums."""
        if self.n == 0 or other.n == 0:
            return other if self.n == 0 else self
        if self.a is None or other.a is None:
            return Kronecker(self.g + other.g)
        return Kronecker(self.g + other.g, self.a + other.a, self.n + other.n)

    def block(self) -> Tensor:
        """The (out·in, out·in) matrix that the factors stand for."""
        return self.g if self.a is None else torch.kron(self.g, self.a / max(self.n, 1))


def factored(module: nn.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the parameters that have Kronecker factors, and of those among them that stand transposed.

    They are the weights of linear layers and of convolutions that are one matrix, without groups. The linear layer in
    torch's attention is not called: its weight is handed on, and has none.
    """
    inside = {m for a in module.modules() if isinstance(a, nn.MultiheadAttention) for m in a.modules()}
    layers = {
        f"{name}.weight".removeprefix("."): layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd) and layer not in inside
        if getattr(layer, "groups", 1) == 1
    }
    transposed = nn.modules.conv._ConvTransposeNd
    return frozenset(layers), frozenset(name for name, layer in layers.items() if isinstance(layer, transposed))


class CollectFactors(Collect):
    """KFAC: an input factor from the forward pass, an output factor from M.

    Biases, and parameters that are no matrix (those of a normalisation), get their exact block.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Takes the input factors of all layers, once for every datum."""
        self._inputs: dict[str, tuple[Tensor, int]] = {}
        self._outputs: Params = {}
        for leaf in leaves(nodes):
            factor = input_factor(leaf.rule, leaf) if "weight" in leaf.trainable else None
            if factor is not None:
                self._inputs[full_name(leaf, "weight")] = factor

    @property
    def result(self) -> dict[str, Kronecker]:
        """Factors by full parameter name."""
        return {name: Kronecker(g, *self._inputs.get(name, (None, 1))) for name, g in self._outputs.items()}

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Outer products of rows: a sum over positions of them for the weight, of sums over positions for the bias."""
        whole = [key for key in leaf.trainable if full_name(leaf, key) not in self._inputs]
        if "weight" in leaf.trainable and "weight" not in whole:
            v = output_rows(leaf, rows.v)
            g = outer(v, rows.c)
            self._add(leaf, "weight", g)
            if whole == ["bias"] and v.shape[-1] == 1:
                self._add(leaf, "bias", g)
                return
        for key in whole:
            check_whole(full_name(leaf, key), leaf.params[key].numel())
        if whole:
            gradients = leaf.rule.gradients(replace(leaf, trainable=tuple(whole)), rows.v)
            for key in whole:
                self._add(leaf, key, outer(gradients[key].flatten(2)[..., None], rows.c))

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        """The sum over data of the matrix, where the layer has no positions."""
        if not leaf.rule.takes_matrix(leaf):
            super().dense(leaf, c)
            return
        g = c.sum(0) * (len(leaf.y) // len(c))
        for key in leaf.trainable:
            self._add(leaf, key, g)

    def _add(self, leaf: Leaf, key: str, g: Tensor) -> None:
        add(self._outputs, full_name(leaf, key), g)


def add(total: dict[str, S], name: str, value: S) -> None:
    """Into a sum that may be empty."""
    total[name] = total[name] + value if name in total else value


def check_whole(name: str, n: int) -> None:
    """ValueError where the whole block of a parameter that has no Kronecker factors is too large."""
    if n > LARGEST_BLOCK:
        raise ValueError(
            f"parameter {name!r} is not the weight of a linear layer or of a convolution without groups, and nothing "
            f"else, so that it has no Kronecker factors; its whole block of {n:,} x {n:,} is too large: freeze it, or "
            "take a diagonal method"
        )


def full_name(leaf: Leaf, key: str) -> str:
    """The name of a layer's parameter in `named_parameters()` of the module."""
    return f"{leaf.name}.{key}" if leaf.name else key


def outer(v: Tensor, c: Tensor | None) -> Tensor:
    """Σ_rs Σ_bp c_rs v_r v_sᵀ: (R, B, O, P) -> (O, O)."""
    flat = v.flatten(0, 1).transpose(0, 1).flatten(1)  # (O, R B P)
    if c is None:
        return product_with_itself(flat)
    right = torch.einsum("brs,sbop->orbp", c, v).flatten(1)
    return flat @ right.T
