"""The forward pass, recorded: one entry a layer, with what went in and what came out.

A network is a tree of `nn.Sequential` (flattened), `Residual` and `Sum`, with layers at its leaves. The module is only
read: nothing is attached to it, and `params` may stand in for its weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lapae.curvature.call import Call, call, check_batch, check_values
from lapae.curvature.rules import Leaf, find, hollow


class Residual(nn.Module):
    """y = x + branch(x), the container for skip connections."""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch[0] if len(branch) == 1 else nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        """X + branch(x)."""
        return x + self.branch(x)


class Sum(nn.Module):
    """y = first(x) + second(x), two ways from the same input: a linear path beside a nonlinear one, say."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        """first(x) + second(x)."""
        return self.first(x) + self.second(x)


@dataclass(frozen=True)
class Skip:
    """Two ways whose outputs are added, in the record: of a `Residual` the first is empty, the identity."""

    name: str
    first: tuple[Node, ...]
    second: tuple[Node, ...]
    x: Tensor
    y: Tensor

    @property
    def ways(self) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """Both, in the order of their parameters."""
        return self.first, self.second

    def part(self, data: slice) -> Skip:
        """The same for some of the data."""
        first, second = (tuple(node.part(data) for node in way) for way in self.ways)
        return replace(self, first=first, second=second, x=self.x[data], y=self.y[data])


Node = Leaf | Skip


@dataclass(frozen=True)
class Tape:
    """A recorded forward pass, in the order of the layers."""

    nodes: list[Node]
    module: nn.Module
    values: Mapping[str, Tensor] | None
    """Weights that stood in for the module's own."""
    x: Tensor
    output: Tensor

    def part(self, data: slice) -> Tape:
        """The same for some of the data."""
        nodes = [n.part(data) for n in self.nodes]
        return replace(self, nodes=nodes, x=self.x[data], output=self.output[data])

    def call(self) -> Call:
        """The same as a call with the graph of its output, run again where there is none."""
        if not self.output.requires_grad:
            return call(self.module, self.x, self.values)
        values = dict(self.module.named_parameters()) if self.values is None else self.values
        params = {name: values[name] for name, p in self.module.named_parameters() if p.requires_grad}
        return Call(self.module, self.values, self.x, self.output, params)

    def __len__(self) -> int:
        return len(self.output)

    def split(self, size: int) -> Iterator[Tape]:
        """The same in parts of `size` data."""
        return (self.part(slice(i, i + size)) for i in range(0, len(self), size))

    def promoted(self) -> Tape:
        """The same with activations in the precision of the weights; mixed precision records them in a lower one."""
        dtype = next((p.dtype for leaf in leaves(self.nodes) for p in leaf.params.values()), self.output.dtype)
        if all(t.dtype == dtype for leaf in leaves(self.nodes) for t in (leaf.x, leaf.y)):
            return self
        return replace(self, nodes=[_promote(node, dtype) for node in self.nodes], output=self.output.to(dtype))

    @property
    def first_trainable(self) -> int:
        """Index of the first node that holds a wanted parameter; nothing needs to travel below it."""
        for i, node in enumerate(self.nodes):
            if any(leaf.trainable for leaf in leaves((node,))):
                return i
        raise ValueError("the module has no parameter that requires a gradient: there is no curvature to compute")


def _promote(node: Node, dtype: torch.dtype) -> Node:
    x, y = node.x.to(dtype), node.y.to(dtype)
    if isinstance(node, Skip):
        first, second = (tuple(_promote(child, dtype) for child in way) for way in node.ways)
        return replace(node, first=first, second=second, x=x, y=y)
    return replace(node, x=x, y=y)


def leaves(nodes: Iterable[Node]) -> Iterator[Leaf]:
    """All layers, in order."""
    for node in nodes:
        if isinstance(node, Skip):
            for way in node.ways:
                yield from leaves(way)
        else:
            yield node


def n_features(x: Tensor) -> int:
    """Numbers a datum."""
    return math.prod(x.shape[1:])


def record(module: nn.Module, x: Tensor, params: Mapping[str, Tensor] | None = None, *, lean: bool = False) -> Tape:
    """Run `module` on x (B, *in), at its own weights or at `params`, and keep what the curvature needs.

    The output carries a gradient where gradients are on, so that one forward pass serves the loss and the curvature.
    A `lean` tape keeps the values that derivatives look at, as a backward pass would, and of all others the shape.
    """
    check_batch(x)
    own = dict(module.named_parameters())
    check_values(own, params)
    nodes: list[Node] = []
    output = _record(module, "", x, own if params is None else params, nodes, {}, lean)
    return Tape(nodes, module, params, x, output)


def _record(
    module: nn.Module,
    name: str,
    x: Tensor,
    params: Mapping[str, Tensor],
    nodes: list[Node],
    seen: dict[int, str],
    lean: bool,
) -> Tensor:
    """Append what `module` does to `nodes`; returns its output."""
    prefix = f"{name}." if name else ""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for child_name, child in module._modules.items():  # named_children leaves out a layer's second place
            x = _record(child, prefix + child_name, x, params, nodes, seen, lean)
        return x
    ways = _ways(module)
    if ways is not None:
        nodes_of, parts = [], []
        for child_name, child in ways:
            way: list[Node] = []
            parts.append(x if child is None else _record(child, prefix + child_name, x, params, way, seen, lean))
            nodes_of.append(tuple(way))
        if parts[0].shape != parts[1].shape:
            came = f"{tuple(parts[0].shape)} and {tuple(parts[1].shape)}"
            raise ValueError(f"{type(module).__name__} {name!r} adds outputs of shapes {came}: they must agree")
        y = parts[0] + parts[1]
        kept_x, kept_y = (hollow(x), hollow(y)) if lean else (x.detach(), y.detach())
        nodes.append(Skip(name, *nodes_of, kept_x, kept_y))
        return y
    rule = find(module, name or "the module itself")
    mine, trainable = {}, []
    for key, parameter in _parameters(module):
        if id(parameter) in seen:
            raise ValueError(
                f"layer {name!r} shares its {key!r} with {seen[id(parameter)]!r}: the curvature of shared weights has "
                "terms between the two places, which pulling M layer by layer does not see"
            )
        seen[id(parameter)] = f"{prefix}{key}"
        mine[key] = params[prefix + key]
        if parameter.requires_grad:
            trainable.append(key)
    y, saved = rule.forward(module, mine, x)
    detached = {k: p.detach() for k, p in mine.items()}
    kept_x = hollow(x) if lean and not rule.uses_x else x.detach()
    kept_y = hollow(y) if lean and not rule.uses_y else y.detach()
    nodes.append(Leaf(name, module, rule, detached, tuple(trainable), kept_x, kept_y, saved))
    return y


def _ways(module: nn.Module) -> list[tuple[str, nn.Module | None]] | None:
    """The two ways of a container that adds them, by name; None in place of the identity."""
    if isinstance(module, Residual) and type(module).forward is Residual.forward:
        return [("", None), ("branch", module.branch)]
    if isinstance(module, Sum) and type(module).forward is Sum.forward:
        return [("first", module.first), ("second", module.second)]
    return None


def _parameters(layer: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """`named_parameters`, short-cut for a layer without layers inside: it is most of the cost of small networks."""
    if layer._modules:
        return layer.named_parameters()
    return [(key, p) for key, p in layer._parameters.items() if p is not None]
