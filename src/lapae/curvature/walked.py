"""The backward pass by rules: M travels from the output back to the first layer with weights.

`approximate` carries the diagonal alone (the paper's linear-cost rule). `exact` carries all of M in whichever form is
smaller, after a plan made from the sizes of the layers and a memory budget. The collector (collect.py) decides what is
extracted in each layer from the M at its output. In all of them M is at the output of the last of `nodes`, a record or
a part of it; `stop` is the index of the last node to be read, and `budget` the numbers that may be held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lapae.curvature.backward import Sampling
from lapae.curvature.collect import Collect
from lapae.curvature.extract import row_floats
from lapae.curvature.forms import Dense, Diagonal, Form, Rows, Seed, seed
from lapae.curvature.forward import Forward, Node, Skip, leaves, n_features
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.rules.base import Leaf, identity_rows

Through = Callable[[Leaf, Tensor, bool], Tensor | None]
"""Collects from a layer, and pulls what is at its output to its input; None if the input is not needed."""


@dataclass(frozen=True)
class Walk:
    """The backward pass of a recorded walk."""

    nodes: list[Node]
    result: Tensor
    """(B, *out)"""
    stop: int
    """Index of the first node with wanted parameters: nothing needs to travel below it."""
    n_encoder: int = 0
    """Number of nodes before the code, if the network was cut."""

    @classmethod
    def of(cls, forward: Forward) -> Walk:
        """Return the backward pass of a recorded forward pass, in the dtype of the weights."""
        forward = forward.promoted()
        return cls(forward.nodes, forward.output.detach(), forward.first_trainable)

    def layers(self, whole: bool) -> Iterator[Leaf]:
        """Yield layers with wanted parameters: each has all of its module."""
        return (leaf for leaf in leaves(self.nodes) if leaf.trainable)

    def row_floats(self) -> int:
        return max(row_floats(leaf.rule, leaf) for leaf in leaves(self.nodes))

    def pull_rows(self, v: Tensor, collect: Collect) -> None:
        pull_rows(self.nodes[self.stop :], Rows(v), collect.rows, need_input=False)

    def carry(self, form: Form, collect: Collect, budget: int, end: int | None = None) -> None:
        """Carry all of M from the output, or that of node end - 1, to the first wanted layer, in chunks of samples."""
        nodes = self.nodes[:end]
        size = samples_per_chunk(plan(nodes, self.stop, form, collect, budget), budget)
        n_batch = len(self.result)
        for i in range(0, n_batch, size):
            samples = slice(i, i + size)
            part = nodes if size >= n_batch else [node.part(samples) for node in nodes]
            exact(part, self.stop, form if size >= n_batch else form.part(samples), collect, budget)

    def cut(self, name: str | None) -> Walk:
        """Cut at the layer or container called `name`, by default at the narrowest layer."""
        return replace(self, n_encoder=_end_of_encoder(self.nodes, name))

    @property
    def latent(self) -> Tensor:
        return self.nodes[self.n_encoder - 1].y if self.n_encoder else self.nodes[0].x

    @property
    def has_encoder(self) -> bool:
        return self.n_encoder > self.stop

    def tangents(self) -> Tensor:
        return push_tangents(self.nodes[self.n_encoder :], identity_rows(self.latent))

    def carry_from_code(self, form: Dense, collect: Collect, budget: int) -> None:
        self.carry(form, collect, budget, self.n_encoder)

    def read_decoder(self, likelihood: Likelihood, sampling: Sampling, collect: Collect) -> None:
        """Carry the diagonal alone: nothing is random."""
        approximate(self.nodes, max(self.n_encoder, self.stop), likelihood.hessian_diag(self.result), collect)

    def approx(self, likelihood: Likelihood, collect: Collect, forget: bool) -> None:
        """Carry only the diagonal through all layers; with `forget`, release each one afterwards."""
        approximate(self.nodes, self.stop, likelihood.hessian_diag(self.result), collect, forget=forget)

    def mixed(self, likelihood: Likelihood, switch: int, collect: Collect, budget: int) -> None:
        """Carry the diagonal where outputs have more than `switch` features, and all of M from there on."""
        k = max(self.stop, _first_narrow(self.nodes, switch))
        form = seed(likelihood, self.result)
        if k < len(self.nodes):
            m = likelihood.hessian_diag(self.result)
            form = Diagonal(approximate(self.nodes, k, m, collect, through=k > self.stop))
        if k > self.stop:
            self.carry(form, collect, budget, k)


def _end_of_encoder(nodes: Sequence[Node], name: str | None) -> int:
    """Return the index of the first node after the code."""
    if name is None:
        sizes = [n_features(node.y) for node in nodes]
        return len(sizes) - sizes[::-1].index(min(sizes))  # the last of the narrowest: more layers are exact
    for i in range(len(nodes) - 1, -1, -1):
        if nodes[i].name == name or nodes[i].name.startswith(f"{name}."):
            return i + 1
    raise ValueError(f"bottleneck={name!r} names no layer: there are {', '.join(n.name for n in nodes)}")


def _first_narrow(nodes: Sequence[Node], switch: int) -> int:
    """Return the number of nodes below the place where "mixed" goes from the diagonal to all of M, walking back.

    From there to the narrowest layer no output has more than `switch` features; 0 if that layer itself has more.
    """
    sizes = [n_features(node.y) for node in nodes]
    k = sizes.index(min(sizes))
    while k < len(sizes) and sizes[k] <= switch:
        k += 1
    return k if min(sizes) <= switch else 0


def _pull(nodes: Sequence[Node], value: Tensor, through: Through, need_input: bool) -> Tensor:
    """Pull a value from the output of the last node to the input of the first, if needed; sum it where branches
    meet."""
    for k, node in enumerate(reversed(nodes)):
        need = need_input or k < len(nodes) - 1
        if isinstance(node, Leaf):
            pulled = through(node, value, need)
        else:
            first, second = (_pull(way, value, through, need) for way in node.ways)
            pulled = first + second if need else None
        value = value if pulled is None else pulled
    return value


def approximate(
    nodes: list[Node], stop: int, m: Tensor, collect: Collect, through: bool = False, forget: bool = False
) -> Tensor:
    """Carry diag(M), m (B or 1, *out), to the output of node `stop`, or `through` it; return it, (B or 1, *F).

    With `forget`, nodes are removed on the way, and their tensors with them.
    """

    def pull(leaf: Leaf, m: Tensor, need_input: bool) -> Tensor | None:
        m_in, h = leaf.rule.squared_backward(leaf, m, need_input)
        if h:
            collect.squared(leaf, h)
        return m_in

    for i in range(len(nodes) - 1, stop - 1, -1):
        m = _pull(nodes[i : i + 1], m, pull, need_input=through or i > stop)
        if forget:
            nodes.pop()
    return m


def pull_rows(nodes: Sequence[Node], rows: Rows, read: Callable[[Leaf, Rows], None], need_input: bool = True) -> Rows:
    """Pull rows to the first of some nodes, or through it if its input is needed; return them.

    `read` is called with each layer that has wanted parameters, and the rows at its output.
    """

    def pull(leaf: Leaf, v: Tensor, need_input: bool) -> Tensor | None:
        if leaf.trainable:
            read(leaf, Rows(v, rows.c))
        return leaf.rule.vjp(leaf, v) if need_input else None

    return Rows(_pull(nodes, rows.v, pull, need_input), rows.c)


def push_tangents(nodes: Sequence[Node], t: Tensor) -> Tensor:
    """Return J t (R, B, *out) at the output of the last node, for tangents t (R, B, *in) at the input of the first."""
    for node in nodes:
        if isinstance(node, Skip):
            first, second = (push_tangents(way, t) for way in node.ways)
            t = first + second
        else:
            t = node.rule.jvp(node, t)
    return t


@dataclass(frozen=True)
class Step:
    """Nodes first … last (walking back), passed in one form of M."""

    form: str
    """One of keep, scale, dense and rows."""
    first: int
    last: int
    floats: int
    """Numbers in memory for one sample; for rows, for one row of one sample."""
    n_rows: int = 0


def plan(nodes: Sequence[Node], stop: int, form: Form, collect: Collect, budget: int) -> list[Step]:
    """Choose the form of M for each stretch of layers, by counting numbers."""
    steps: list[Step] = []
    diagonal, whole = isinstance(form, Diagonal), not isinstance(form, Seed)
    i = len(nodes) - 1
    while i >= stop:
        node = nodes[i]
        n_in, n_out = n_features(node.x), n_features(node.y)
        lean = diagonal and isinstance(node, Leaf) and (collect.takes_squares or not node.trainable)
        whole_floats = n_out if lean else n_out**2
        dense_floats = whole_floats + n_out * n_in + n_in**2
        leaf = node if whole and isinstance(node, Leaf) else None
        if leaf is not None and leaf.rule.reshapes:
            steps.append(Step("keep", i, i, 0))
        elif leaf is not None and leaf.rule.positionwise and 3 * whole_floats <= budget:
            steps.append(Step("scale", i, i, 3 * whole_floats))
        elif leaf is not None and leaf.rule.takes_matrix(leaf) and n_in <= n_out and dense_floats <= budget:
            steps.append(Step("dense", i, i, dense_floats))
            diagonal = False
        else:
            j = i
            while j > stop and n_features(nodes[j].x) >= n_out:
                j -= 1
            floats = max(row_floats(leaf.rule, leaf) for leaf in leaves(nodes[j : i + 1]))
            steps.append(Step("rows", i, j, floats, n_out))
            diagonal, whole = False, True
            i = j
        i -= 1
    return steps


def exact(nodes: Sequence[Node], stop: int, form: Form, collect: Collect, budget: int) -> None:
    """Carry all of M to node `stop`, which is read and not passed."""
    for step in plan(nodes, stop, form, collect, budget):
        if step.form == "rows":
            form = _pass_rows(nodes, step, stop, form, collect, budget)
            continue
        node = nodes[step.first]
        assert isinstance(node, Leaf)
        assert not isinstance(form, Seed)
        _read_whole(node, form, collect)
        if step.first == stop or step.form == "keep":
            continue
        form = _pass_whole(node, form)


def _read_whole(leaf: Leaf, form: Diagonal | Dense, collect: Collect) -> None:
    """Collect from a layer given M: squares are exact for a diagonal one, and a dense one is used as it is."""
    if not leaf.trainable:
        return
    if isinstance(form, Diagonal) and collect.takes_squares:
        m = form.m.reshape(len(form.m), *leaf.y.shape[1:])
        collect.squared(leaf, leaf.rule.squared_backward(leaf, m, need_input=False)[1])
    elif isinstance(form, Diagonal):
        collect.dense(leaf, torch.diag_embed(form.m.flatten(1)))
    else:
        collect.dense(leaf, form.c)


def _pass_whole(leaf: Leaf, form: Diagonal | Dense) -> Diagonal | Dense:
    if isinstance(form, Diagonal):
        m = form.m.reshape(len(form.m), *leaf.y.shape[1:])
        if leaf.rule.positionwise:
            pulled = leaf.rule.squared_backward(leaf, m, need_input=True)[0]
            assert pulled is not None
            return Diagonal(pulled)
        return Dense(leaf.rule.dense_pull(leaf, m))
    return Dense(leaf.rule.dense_pull(leaf, form.c))


def _pass_rows(nodes: Sequence[Node], step: Step, stop: int, form: Form, collect: Collect, budget: int) -> Form:
    """Pull rows through a stretch of layers, some at a time; collapse them to a matrix once features are fewer."""
    y = nodes[step.first].y
    collapses = step.last > stop
    size = max(1, min(step.n_rows, budget // (len(y) * step.floats)))
    collapsed: Tensor | None = None
    if isinstance(form, Diagonal):
        form = Diagonal(form.m.reshape(len(form.m), *y.shape[1:]))
    source = form.factor() if isinstance(form, Dense) and size < step.n_rows else form
    for first in range(0, step.n_rows, size):
        rows = source.rows(first, min(first + size, step.n_rows), y)
        rows = pull_rows(nodes[step.last : step.first + 1], rows, collect.rows, need_input=collapses)
        if collapses:
            c = rows.dense()
            collapsed = c if collapsed is None else collapsed.add_(c)
    return Dense(torch.empty(0) if collapsed is None else collapsed)


def samples_per_chunk(steps: Sequence[Step], budget: int) -> int:
    """Return how many samples can pass at once under a budget in numbers: at least one, whose rows are then chunked."""
    peak = max(step.floats * max(1, step.n_rows) for step in steps) if steps else 1
    return max(1, budget // max(1, peak))
