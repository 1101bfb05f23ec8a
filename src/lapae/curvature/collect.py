"""Collectors for a backward pass: they collect the diagonal, the block or Kronecker factors of each layer."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from lapae.curvature.call import Work, layer_name
from lapae.curvature.extract import (
    dense_diagonal,
    input_factor,
    linear_block,
    output_rows,
    rows_diagonal,
    sample_chunks,
)
from lapae.curvature.forms import Rows
from lapae.curvature.rules.base import CHUNK_FLOATS, Leaf, Params, identity_rows, product_with_itself

LARGEST_BLOCK = 1 << 14
"""Maximum number of parameters of a tensor without Kronecker factors whose whole block is stored."""
S = TypeVar("S", Tensor, "Kronecker")


class Collect:
    """Extracts something from each layer, given the M at its output."""

    takes_squares = False
    """Whether `squared` is enough where M is diagonal; else M is handed over as a matrix."""
    whole_layers = False
    """Whether all parameters of a module are wanted together."""

    def enter(self, leaves: Iterable[Leaf]) -> None:
        """Collect the quantities that depend only on the forward pass, once for all rows of some samples."""

    def squared(self, leaf: Leaf, h: Params) -> None:
        """Collect the diagonal of the layer's block for a diagonal M, if that is enough."""
        raise NotImplementedError

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Collect from M given as rows."""
        raise NotImplementedError

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        """Collect from M given as a matrix (B or 1, F, F): by default through all rows of the identity."""
        self.rows(leaf, Rows(identity_rows(leaf.y), c.expand(len(leaf.y), *c.shape[1:])))


class CollectDiagonal(Collect):
    """Collects the diagonal of every layer's block."""

    takes_squares = True

    def __init__(self) -> None:
        self._found: Params = {}

    def squared(self, leaf: Leaf, h: Params) -> None:
        for key in leaf.trainable:
            add(self._found, leaf.full_name(key), h[key])

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Collect the squares of the gradients of rows."""
        self.squared(leaf, rows_diagonal(leaf.rule, leaf, rows.v, rows.c))

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        self.squared(leaf, dense_diagonal(leaf.rule, leaf, c))

    def of(self, work: Work) -> Params:
        """Return {parameter name: tensor of its shape}; zero where no sample used a parameter."""
        unused = zeros(work, self._found)
        return {name: self._found[name] if name in self._found else unused[name] for name in work.wanted}


class CollectBlocks(Collect):
    """Collects the whole block of every layer, (P, P) with P its wanted parameters, flattened in their order."""

    whole_layers = True

    def __init__(self) -> None:
        self._found: Params = {}
        self._layers: dict[str, str] = {}
        """The layer of each parameter."""

    def enter(self, leaves: Iterable[Leaf]) -> None:
        for leaf in leaves:
            self._layers.update(dict.fromkeys(map(leaf.full_name, leaf.trainable), leaf.name))

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Add Gᵀ c G, some rows and samples at a time: G is linear in the rows, so c G are the gradients of c v."""
        if leaf.rule.takes_matrix(leaf):
            self.dense(leaf, rows.dense())
            return
        n_rows, n_batch = rows.v.shape[:2]
        n_parameters = sum(leaf.params[k].numel() for k in leaf.trainable)
        n_pairs = max(1, CHUNK_FLOATS // (2 * n_parameters))
        for b in range(0, n_batch, max(1, n_pairs // n_rows)):
            samples = slice(b, b + max(1, n_pairs // n_rows))
            part, v = leaf.part(samples), rows.v[:, samples]
            right = v if rows.c is None else torch.einsum("brs,sb...->rb...", rows.c[samples], v)
            for r in range(0, n_rows, n_pairs):
                g = self._gradients(part, v[r : r + n_pairs])
                c_g = g if rows.c is None else self._gradients(part, right[r : r + n_pairs])
                if leaf.name in self._found:  # in place: a block is what takes the memory here
                    self._found[leaf.name].addmm_(g.T, c_g)
                else:
                    self._found[leaf.name] = g.T @ c_g

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        if leaf.rule.takes_matrix(leaf):
            add(self._found, leaf.name, linear_block(leaf, c))
        else:
            super().dense(leaf, c)

    def of(self, work: Work) -> Params:
        """Return {layer name: (P, P)}; zero where no sample used a layer."""
        layers: dict[str, list[str]] = {}
        for name in work.wanted:
            layers.setdefault(self._layers.get(name, layer_name(name)), []).append(name)
        missing = {layer: names for layer, names in layers.items() if layer not in self._found}
        weights = work.weights if missing else {}
        blocks = self._found.copy()
        for layer, names in missing.items():
            n = sum(weights[name].numel() for name in names)
            blocks[layer] = weights[names[0]].new_zeros(n, n)
        return {layer: blocks[layer] for layer in layers}

    def _gradients(self, leaf: Leaf, v: Tensor) -> Tensor:
        """Return the concatenated gradients of all parameters, (R B, P)."""
        gradients = leaf.rule.gradients(leaf, v)
        return torch.cat([gradients[k].reshape(*v.shape[:2], -1) for k in leaf.trainable], dim=2).flatten(0, 1)


@dataclass(frozen=True)
class Kronecker:
    """A block as G ⊗ A / n for a weight seen as a matrix (out, in), or as G alone for a bias."""

    g: Tensor
    """(out, out): sum over samples and positions of the M at the output."""
    a: Tensor | None = None
    """(in, in): sum over samples and positions of x xᵀ."""
    n: int = 1
    """Number of samples times positions; 0 if no sample has used the parameter."""

    def __add__(self, other: Kronecker) -> Kronecker:
        """Return the factors of both sets of samples, which are sums."""
        if self.n == 0 or other.n == 0:
            return other if self.n == 0 else self
        if self.a is None or other.a is None:
            return Kronecker(self.g + other.g)
        return Kronecker(self.g + other.g, self.a + other.a, self.n + other.n)

    def block(self) -> Tensor:
        """Return the matrix (out·in, out·in) that the factors stand for."""
        return self.g if self.a is None else torch.kron(self.g, self.a / max(self.n, 1))


def factored(module: nn.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Return names of the parameters that have Kronecker factors, and of those among them that are transposed.

    These are the weights of linear layers, and of convolutions without groups, which are one matrix. The linear layer
    in torch's attention has none, because it is not called: only its weight is used.
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

    Biases, and parameters that are not a matrix (those of a normalisation), get their exact block. Samples may take
    different branches: the factors of a weight are sums over the samples that use it.
    """

    def __init__(self) -> None:
        self._inputs: dict[str, tuple[Tensor, int]] = {}
        self._outputs: Params = {}
        self._whole: set[str] = set()

    def enter(self, leaves: Iterable[Leaf]) -> None:
        """Collect the input factors of all layers."""
        for leaf in leaves:
            factor = input_factor(leaf.rule, leaf) if "weight" in leaf.trainable else None
            for key in leaf.trainable:
                name, has_factors = leaf.full_name(key), key == "weight" and factor is not None
                check_one_way(name, name not in (self._whole if has_factors else self._inputs))
                if not has_factors:
                    self._whole.add(name)
                elif factor is not None:
                    a, n = self._inputs.get(name, (None, 0))
                    self._inputs[name] = (factor[0] if a is None else a + factor[0], n + factor[1])

    def rows(self, leaf: Leaf, rows: Rows) -> None:
        """Collect outer products of rows: summed over positions for the weight, and of sums over positions for the
        bias."""
        whole = tuple(key for key in leaf.trainable if leaf.full_name(key) in self._whole)
        if "weight" in leaf.trainable and "weight" not in whole:
            v = output_rows(leaf.rule, leaf, rows.v)
            g = outer(v, rows.c)
            self._add(leaf, "weight", g)
            if whole == ("bias",) and v.shape[-1] == 1:
                self._add(leaf, "bias", g)
                return
        for key in whole:
            check_whole(leaf.full_name(key), leaf.params[key].numel())
        for samples in sample_chunks(leaf, whole, len(rows.v)) if whole else ():
            part = replace(leaf, trainable=whole).part(samples)
            gradients = leaf.rule.gradients(part, rows.v[:, samples])
            c = None if rows.c is None else rows.c[samples]
            for key in whole:
                self._add(leaf, key, outer(gradients[key].reshape(len(rows.v), len(part.y), -1, 1), c))

    def dense(self, leaf: Leaf, c: Tensor) -> None:
        """Collect the sum of the matrix over samples, if the layer has no positions."""
        if not leaf.rule.takes_matrix(leaf):
            super().dense(leaf, c)
            return
        g = c.sum(0) * (len(leaf.y) // len(c))
        for key in leaf.trainable:
            self._add(leaf, key, g)

    def of(self, work: Work) -> dict[str, Kronecker]:
        """Return {parameter name: Kronecker}; zeros where no sample used a parameter."""
        unused = _unused(work, [name for name in work.wanted if name not in self._outputs], self._inputs)
        found = {name: Kronecker(g, *self._inputs.get(name, (None, 1))) for name, g in self._outputs.items()}
        return {name: found[name] if name in found else unused[name] for name in work.wanted}

    def _add(self, leaf: Leaf, key: str, g: Tensor) -> None:
        add(self._outputs, leaf.full_name(key), g)


def _unused(work: Work, names: Sequence[str], inputs: Mapping[str, tuple[Tensor, int]]) -> dict[str, Kronecker]:
    """Return zeros, in the form that each parameter has if it is used, for those on which nothing depends."""
    if not names:
        return {}
    (matrices, transposed), weights = factored(work.module), work.weights
    found: dict[str, Kronecker] = {}
    for name in names:
        weight = weights[name]
        if name in inputs:  # it is called, to no effect
            a, n = inputs[name]
            n_out = weight.numel() // len(a)
            found[name] = Kronecker(weight.new_zeros(n_out, n_out), a, n)
            continue
        n_out = weight.shape[1] if name in transposed else len(weight) if name in matrices else weight.numel()
        if name not in matrices:
            check_whole(name, n_out)
        n_in = weight.numel() // n_out
        a = weight.new_zeros(n_in, n_in) if name in matrices else None
        found[name] = Kronecker(weight.new_zeros(n_out, n_out), a, 0)
    return found


def zeros(work: Work, found: Container[str]) -> Params:
    """Return zeros in the shapes of the wanted parameters that were not found."""
    if all(name in found for name in work.wanted):
        return {}
    weights = work.weights
    return {name: torch.zeros_like(weights[name], requires_grad=False) for name in work.wanted if name not in found}


def add(total: dict[str, S], name: str, value: S) -> None:
    """Add to a sum that may be empty."""
    total[name] = total[name] + value if name in total else value


def check_whole(name: str, n: int) -> None:
    """Raise a ValueError if the whole block of a parameter without Kronecker factors is too large."""
    if n > LARGEST_BLOCK:
        raise ValueError(
            f"parameter {name!r} is not the weight of a linear layer or of a convolution without groups, and nothing "
            f"else, so that it has no Kronecker factors; its whole block of {n:,} x {n:,} is too large: freeze it, or "
            "take a diagonal method"
        )


def check_one_way(name: str, same: bool) -> None:
    """Raise ValueError if some samples use a parameter as the weight of a linear map and others in another way."""
    if not same:
        raise ValueError(
            f"parameter {name!r} is the weight of a linear map for some samples and used in another way for others, so "
            "that it has no Kronecker factors: freeze it, or take a diagonal method"
        )


def outer(v: Tensor, c: Tensor | None) -> Tensor:
    """Return Σ_rs Σ_bp c_rs v_r v_sᵀ (O, O) of rows by position v (R, B, O, P), with c (B, R, R) or the identity."""
    flat = v.flatten(0, 1).transpose(0, 1).flatten(1)  # (O, R B P)
    if c is None:
        return product_with_itself(flat)
    right = torch.einsum("brs,sbop->orbp", c, v).flatten(1)
    return flat @ right.T
