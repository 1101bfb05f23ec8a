"""A recorded forward pass: one entry per layer, with its input and output.

A network is a tree of `nn.Sequential` (flattened), `Residual` and `Sum`, with layers at its leaves. The module is not
changed, and `params` can replace its weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from lapae.curvature.call import NOTHING_WANTED, Call, Work, call, check_batch, check_values, work
from lapae.curvature.containers import ways_of
from lapae.curvature.rules.base import Leaf, Rule, UnknownLayerError, find, hollow


@dataclass(frozen=True)
class Skip:
    """Two branches in the record whose outputs are added; the first one of a `Residual` is empty, the identity."""

    name: str
    ways: tuple[tuple[Node, ...], ...]
    """Both branches, in the order of their parameters."""
    x: Tensor
    y: Tensor

    def part(self, samples: slice) -> Skip:
        ways = tuple(tuple(node.part(samples) for node in way) for way in self.ways)
        return replace(self, ways=ways, x=self.x[samples], y=self.y[samples])


Node = Leaf | Skip


@dataclass(frozen=True)
class Forward(Work):
    """A recorded forward pass, in the order of the layers."""

    nodes: list[Node]
    output: Tensor

    def part(self, samples: slice) -> Self:
        nodes = [n.part(samples) for n in self.nodes]
        return replace(self, nodes=nodes, x=self.x[samples], output=self.output[samples])

    def call(self) -> Call:
        """Return the call with the graph of its output, which is run again if there is none."""
        if not self.output.requires_grad:
            return super().call()
        weights = self.weights
        params = {name: weights[name] for name in self.wanted}
        return Call(self.module, self.values, self.wanted, self.x, self.output, params)

    def promoted(self) -> Forward:
        """Return the record with activations in the dtype of the weights: autocast records them in a lower one."""
        dtype = next((p.dtype for leaf in leaves(self.nodes) for p in leaf.params.values()), self.output.dtype)
        if all(t.dtype == dtype for leaf in leaves(self.nodes) for t in (leaf.x, leaf.y)):
            return self
        return replace(self, nodes=[_promote(node, dtype) for node in self.nodes], output=self.output.to(dtype))

    @property
    def first_trainable(self) -> int:
        """Index of the first node with a wanted parameter; nothing needs to travel below it."""
        for i, node in enumerate(self.nodes):
            if any(leaf.trainable for leaf in leaves((node,))):
                return i
        raise ValueError(NOTHING_WANTED)


def _promote(node: Node, dtype: torch.dtype) -> Node:
    x, y = node.x.to(dtype), node.y.to(dtype)
    if isinstance(node, Leaf):
        return replace(node, x=x, y=y)
    return replace(node, ways=tuple(tuple(_promote(child, dtype) for child in way) for way in node.ways), x=x, y=y)


def leaves(nodes: Iterable[Node]) -> Iterator[Leaf]:
    """Yield all layers, in order."""
    for node in nodes:
        if isinstance(node, Leaf):
            yield node
        else:
            yield from leaves(child for way in node.ways for child in way)


def n_features(x: Tensor) -> int:
    """Return the number of numbers per sample of x (B, *features)."""
    return math.prod(x.shape[1:])


def record(module: nn.Module, x: Tensor, params: Mapping[str, Tensor] | None = None) -> Forward | Call:
    """Run any module on a batch, and record what the curvature needs.

    The output carries a gradient if gradients are enabled, so that one forward pass serves both the loss and the
    curvature. For a module that can be walked, its layers are recorded; for any other one, the call as a whole.

    Args:
        module: that treats samples independently.
        x: inputs (B, *in).
        params: weights by the names of `named_parameters()`; the module's own by default.

    Returns:
        The record, with the output (B, *out).
    """
    walked = walk_if_known(module, x, params)
    return call(module, x, params) if walked is None else walked


def begin(
    module: nn.Module, x: Tensor, params: Mapping[str, Tensor] | None = None, *, lean: bool = False
) -> Forward | Work:
    """Record a forward pass as `record` and `walk` do, for the curvature only: a module that cannot be walked is not
    run yet."""
    walked = walk_if_known(module, x, params, lean=lean)
    return work(module, x, params) if walked is None else walked


def walk(module: nn.Module, x: Tensor, params: Mapping[str, Tensor] | None = None, *, lean: bool = False) -> Forward:
    """Record a module that can be walked: nested `Sequential`, `Residual` and `Sum` of layers with rules.

    An error names the first layer that prevents this.

    Args:
        module: the network.
        x: inputs (B, *in).
        params: weights by the names of `named_parameters()`; the module's own by default.
        lean: keep only values that derivatives look at, as a backward pass would, and of all others the shape.

    Returns:
        The record of all layers, with the output (B, *out).
    """
    return _run_places(places(module), module, x, params, lean)


def walk_if_known(
    module: nn.Module, x: Tensor, params: Mapping[str, Tensor] | None = None, *, lean: bool = False
) -> Forward | None:
    """Record a module as `walk` does, frozen or not; None for one that cannot be walked."""
    try:
        layers = places(module)
    except (UnknownLayerError, ValueError):
        return None
    return _run_places(layers, module, x, params, lean)


@dataclass(frozen=True)
class Place:
    """A layer and its position in the network."""

    name: str
    layer: nn.Module
    rule: Rule
    keys: tuple[str, ...]
    """Its parameters, by its own names."""
    trainable: tuple[str, ...]
    """Parameters whose curvature is wanted."""


@dataclass(frozen=True)
class Fork:
    """A container that adds the outputs of two branches of the same input; an empty branch is the identity."""

    name: str
    kind: str
    ways: tuple[tuple[Place | Fork, ...], ...]


def places(module: nn.Module, name: str = "", seen: dict[int, str] | None = None) -> list[Place | Fork]:
    """Return the layers of a network in order; raise an error if one has no rule, or shares weights with another.

    Args:
        module: the network, or a part of it.
        name: of the part.
        seen: names of the parameters met so far, by id.
    """
    seen = {} if seen is None else seen
    prefix = f"{name}." if name else ""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        # not named_children, which leaves out a layer's second place
        children = [
            (prefix + key, child)
            for key, child in module._modules.items()
            if child is not None  # pyright: ignore[reportUnnecessaryComparison] (add_module takes None)
        ]
        return [place for key, child in children for place in places(child, key, seen)]
    ways = ways_of(module)
    if ways is not None:
        found = tuple(() if child is None else tuple(places(child, prefix + key, seen)) for key, child in ways)
        return [Fork(name, type(module).__name__, found)]
    rule = find(module, name or "the module itself")
    parameters = list(_parameters(module))
    for key, parameter in parameters:
        if id(parameter) in seen:
            raise ValueError(
                f"layer {name!r} shares its {key!r} with {seen[id(parameter)]!r}: the curvature of shared weights has "
                "terms between the two places, which pulling M layer by layer does not see"
            )
        seen[id(parameter)] = f"{prefix}{key}"
    trainable = tuple(key for key, parameter in parameters if parameter.requires_grad)
    return [Place(name, module, rule, tuple(key for key, _ in parameters), trainable)]


def _parameters(layer: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """Return `named_parameters()`, short-cut for a layer without layers inside: most of the cost of small networks."""
    if layer._modules:
        return layer.named_parameters()
    return [(key, p) for key, p in layer._parameters.items() if p is not None]


def _run_places(
    layers: Sequence[Place | Fork], module: nn.Module, x: Tensor, params: Mapping[str, Tensor] | None, lean: bool
) -> Forward:
    check_batch(x)
    own = dict(module.named_parameters())
    check_values(own, params)
    nodes, output = _run(layers, x, own if params is None else params, lean)
    wanted = tuple(name for name, p in own.items() if p.requires_grad)
    return Forward(module, params, wanted, x, nodes, output)


def _run(
    layers: Sequence[Place | Fork], x: Tensor, params: Mapping[str, Tensor], lean: bool
) -> tuple[list[Node], Tensor]:
    """Run layers one after the other; return their records, and the output of the last."""
    nodes: list[Node] = []
    for place in layers:
        if isinstance(place, Fork):
            (first, a), (second, b) = (_run(way, x, params, lean) for way in place.ways)
            if a.shape != b.shape:
                came = f"{tuple(a.shape)} and {tuple(b.shape)}"
                raise ValueError(f"{place.kind} {place.name!r} adds outputs of shapes {came}: they must agree")
            y = a + b
            kept_x, kept_y = (hollow(x), hollow(y)) if lean else (x.detach(), y.detach())
            nodes.append(Skip(place.name, (tuple(first), tuple(second)), kept_x, kept_y))
        else:
            rule, prefix = place.rule, f"{place.name}." if place.name else ""
            mine = {key: params[prefix + key] for key in place.keys}
            y, saved = rule.forward(place.layer, mine, x)
            detached = {k: p.detach() for k, p in mine.items()}
            kept_x = hollow(x) if lean and not rule.uses_x else x.detach()
            kept_y = hollow(y) if lean and not rule.uses_y else y.detach()
            nodes.append(Leaf(place.name, place.layer, rule, detached, place.trainable, kept_x, kept_y, saved))
        x = y
    return nodes, x
