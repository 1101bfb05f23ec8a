"""Gradients per sample of any module, from the inputs of its linear maps and cotangents by automatic differentiation.

A module is called on each sample by itself (`torch.func.vmap`, or a loop for a module that cannot be mapped), so its
internal layout need not be known: the batch may be the second axis, windows may be folded into the first, and so on.
During the call every product of an input with a wanted weight (linear maps and convolutions, as layers or as functions)
is intercepted: its input is kept, its weight is held fixed, and a zero, the probe, is added to its output. The gradient
of the probe is the cotangent there, from which the extraction for that kind of layer computes the weight's gradient.
Any other use of a parameter (class tokens, positions, normalisations, recurrences, a transposed weight) gets a copy per
sample, whose gradient automatic differentiation computes. The gradients are summed over all uses of a parameter before
anything is squared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointError

from lapae.curvature.backward import Sampling
from lapae.curvature.call import Work, by_layer, tensor_of
from lapae.curvature.chunking import is_out_of_memory
from lapae.curvature.collect import Collect
from lapae.curvature.forms import Dense, Form, Rows, random_rows, ranges
from lapae.curvature.forward import n_features
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.rules.base import Leaf, Params, identity_rows
from lapae.curvature.shared import Place, Shared, shared
from lapae.curvature.stateless import functional_call
from lapae.curvature.watch import Use, Watch, cutting, narrowest


@dataclass(frozen=True)
class PerSample:
    """A forward pass with everything that gradients per sample need: a backward pass of any module."""

    output: Tensor
    """(B, *out), with its graph."""
    uses: list[Use]
    copies: Params
    """A copy per sample, (B, *shape), of each parameter that is used in any other way."""
    wanted: Params
    """Values of the wanted parameters."""
    code: Tensor
    """(B, *code): the output of the cut, with its graph. What follows starts again from the code plus `start`. A single
    number if nothing is cut."""
    start: Tensor
    """(B, *code): zeros."""

    @property
    def result(self) -> Tensor:
        return self.output.detach()

    @property
    def latent(self) -> Tensor:
        return self.start

    def pull(self, v: Tensor, of: Tensor | None = None) -> Pulled:
        """Pull rows v (R, B, *out) at the output, or at another tensor of the pass, to all uses of parameters."""
        known = [*(use.probe for use in self.uses), *self.copies.values()]
        return Pulled(self, len(v), rows_of_gradients(self.output if of is None else of, known, v))

    def layers(self, whole: bool) -> list[Leaf]:
        return [site.leaf for site in self.sites(whole)]

    def row_floats(self) -> int:
        """Return the approximate number of values in memory for one row of one sample: all cotangents and the largest
        gradient, twice."""
        cotangents = sum(use.probe[0].numel() for use in self.uses)
        copies = sum(self.wanted[name].numel() for name in self.copies)
        return 2 * (cotangents + copies + max(value.numel() for value in self.wanted.values()))

    def pull_rows(self, v: Tensor, collect: Collect) -> None:
        self.pull(v).read(collect)

    def carry(self, form: Form, collect: Collect, budget: int) -> None:
        """Pull all rows of M, some at a time."""
        y = self.result
        source = form.factor() if isinstance(form, Dense) else form
        for first, last in ranges(n_features(y), max(1, budget // (self.row_floats() * len(y)))):
            self.pull_rows(source.rows(first, last, y).v, collect)

    @cached_property
    def _halves(self) -> tuple[set[str], set[str]]:
        """Names of the parameters that act only through the code, and of all others."""
        others = self.reaches(self.output)
        return self.reaches(self.code) - others, others

    @property
    def has_encoder(self) -> bool:
        return bool(self._halves[0])

    def tangents(self) -> Tensor:
        """Return ∂output/∂code, (K, B, *out).

        The gradient Tᵀ w of the code is linear in w: its own gradient in w, at each of K unit vectors, is a row of it.
        """
        output, start = self.output, self.start
        n_code = n_features(start)
        if id(start) not in leaves_of(output):  # the output does not depend on the code
            return output.new_zeros(n_code, *output.shape)
        w = torch.zeros_like(output).requires_grad_()
        try:
            back = torch.autograd.grad(output, start, w, create_graph=True)[0]
            t = rows_of_gradients(back, [w], identity_rows(start))[0]
            assert t is not None
            return t
        except RuntimeError:  # no second derivative is known: T row by row, one for each output
            rows = rows_of_gradients(output, [start], identity_rows(output))[0]
            assert rows is not None
            return rows.flatten(2).permute(2, 1, 0).reshape(n_code, *output.shape)

    def carry_from_code(self, form: Dense, collect: Collect, budget: int) -> None:
        """Pull all rows of M's factor at once: the pass was planned for that."""
        rows = form.factor().rows(0, n_features(self.start), self.start)
        self.pull(rows.v, self.code).read(collect, self._halves[0])

    def read_decoder(self, likelihood: Likelihood, sampling: Sampling, collect: Collect) -> None:
        """Pull random rows, also through the code if a parameter acts on both sides of it."""
        rows = random_rows(likelihood, self.result, *sampling)
        into_code = rows_of_gradients(self.output, [self.start], rows)[0]
        pulled, others = self.pull(rows), self._halves[1]
        if into_code is not None and self.reaches(self.code) & others:
            pulled = pulled + self.pull(into_code, self.code)
        pulled.read(collect, others)

    def reaches(self, tensor: Tensor) -> set[str]:
        """Return names of the parameters that a tensor of the pass depends on."""
        alive = leaves_of(tensor)
        found = {name for name, copy in self.copies.items() if id(copy) in alive}
        return found.union(*(use.names.values() for use in self.uses if id(use.probe) in alive))

    def sites(self, whole: bool) -> list[Site]:
        """Return the groups of parameters treated as layers: all parameters of a module (`whole`), or those of a single
        use."""
        return self._by_module if whole else self._by_use

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """Indices of the places of every parameter that is used: uses first, then copies."""
        places: dict[str, list[int]] = {}
        for i, use in enumerate(self.uses):
            for name in use.names.values():
                found = places.setdefault(name, [])
                if i not in found:
                    found.append(i)
        for i, name in enumerate(self.copies, len(self.uses)):
            places.setdefault(name, []).append(i)
        return places

    @cached_property
    def _by_use(self) -> list[Site]:
        groups: dict[int | str, list[str]] = {}
        for name in self.wanted:
            places = self._places.get(name, [])
            if places:
                alone = len(places) == 1 and places[0] < len(self.uses)
                groups.setdefault(places[0] if alone else name, []).append(name)
        return [self._site(names[0], names) for names in groups.values()]

    @cached_property
    def _by_module(self) -> list[Site]:
        groups = by_layer(self.wanted).items()
        return [self._site(layer, names) for layer, names in groups if any(name in self._places for name in names)]

    def _site(self, layer: str, names: Sequence[str]) -> Site:
        """Return some parameters as one layer: that of their only use, or one that combines all their uses."""
        indices = sorted({i for name in names for i in self._places.get(name, [])})
        only = self.uses[indices[0]] if len(indices) == 1 and indices[0] < len(self.uses) else None
        if only is not None:
            keys = {full: key for key, full in only.names.items()}
            if all(name in keys for name in names) and len(keys) == len(only.names):
                trainable = tuple(keys[name] for name in names)
                return Site(replace(only.leaf, name=layer, trainable=trainable, names=only.names), (indices[0],), only)
        own = {"weight": names[0]} if len(names) == 1 else {name: name for name in names}
        keys = {full: key for key, full in own.items()}
        places = [self._place(i, keys) for i in indices]
        params = {key: self.wanted[full] for key, full in own.items()}
        return Site(shared(layer, own, params, places, self.output), tuple(indices))

    def _place(self, i: int, keys: Mapping[str, str]) -> Place:
        if i < len(self.uses):
            use = self.uses[i]
            own = {key: keys[full] for key, full in use.names.items() if full in keys}
            return Place(own, tuple(use.leaf.y.shape[1:]), replace(use.leaf, trainable=tuple(own)))
        name = list(self.copies)[i - len(self.uses)]
        return Place({name: keys[name]}, tuple(self.wanted[name].shape))


@dataclass(frozen=True)
class Site:
    """Some parameters as one layer, and the places to which rows are pulled for it."""

    leaf: Leaf
    places: tuple[int, ...]
    """Indices of uses, and after them of copies."""
    only: Use | None = None
    """The use, where there is only one."""

    def rows(self, found: Sequence[Tensor | None]) -> Tensor | None:
        """Return the rows at the layer's output, (R, B, *out), from those at all places; None if there are none."""
        mine = [found[i] for i in self.places]
        known = next((g for g in mine if g is not None), None)
        if known is None or self.only is not None:
            return known if known is None or self.only is None else self.only.rows(known)
        assert isinstance(self.leaf.rule, Shared)
        sizes = [torch.Size(place.shape).numel() for place in self.leaf.rule.places]
        flat = [
            known.new_zeros(()).expand(*known.shape[:2], size) if g is None else g.reshape(*g.shape[:2], size)
            for g, size in zip(mine, sizes, strict=True)
        ]
        return flat[0] if len(flat) == 1 else torch.cat(flat, 2)


@dataclass(frozen=True)
class Pulled:
    """Rows at every place of a parameter."""

    at: PerSample
    n_rows: int
    found: Sequence[Tensor | None]
    """(R, B, …) at each use and of each copy; None where it does not contribute."""

    def __add__(self, other: Pulled) -> Pulled:
        """Return the sum of two sets of rows."""
        return replace(self, found=[_sum(a, b) for a, b in zip(self.found, other.found, strict=True)])

    def layers(self, whole: bool) -> Iterator[tuple[Leaf, Tensor]]:
        """Yield each layer with the rows (R, B, *out) at its output, if there are any: see `PerSample.sites`."""
        for site in self.at.sites(whole):
            v = site.rows(self.found)
            if v is not None:
                yield site.leaf, v

    def read(self, collect: Collect, only: Container[str] | None = None) -> None:
        """Collect from every layer, or from those of the parameters `only`."""
        for leaf, v in self.layers(collect.whole_layers):
            if only is None or all(leaf.full_name(key) in only for key in leaf.trainable):
                collect.rows(leaf, Rows(v))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class IrregularError(ValueError):
    """Error if samples go through different layers."""


def planned_passes(work: Work, budget: int) -> Iterator[tuple[PerSample, slice]]:
    """Yield forward passes of all samples, as many at a time as one row of each fits into a budget in numbers."""
    one = per_sample(work.part(slice(0, 1)))
    if len(work) == 1:
        yield one, slice(None)
    else:
        yield from passes(work, max(1, min(len(work), budget // one.row_floats())))


def cut_passes(work: Work, name: str | None, budget: int) -> Iterator[tuple[PerSample, slice]]:
    """Yield forward passes cut at a module, by default the narrowest: all rows of the code fit into the budget."""
    name = name or narrowest(work)
    one = per_sample(work.part(slice(0, 1)), name)
    n_code = n_features(one.start)
    floats = one.row_floats() * n_code + 2 * n_code * (n_features(one.output) + n_code)
    yield from passes(work, max(1, min(len(work), budget // floats)), name)


def passes(task: Work, size: int, cut: str | None = None) -> Iterator[tuple[PerSample, slice]]:
    """Yield forward passes of all samples, at most `size` at a time, and which these are; one by one if layers
    differ."""
    for samples in (slice(i, min(i + size, len(task))) for i in range(0, len(task), size)):
        try:
            found = [(per_sample(task.part(samples), cut), samples)]
        except IrregularError:
            alone = (slice(i, i + 1) for i in range(samples.start, samples.stop))
            found = ((per_sample(task.part(one), cut), one) for one in alone)
        yield from found


def per_sample(task: Work, cut: str | None = None) -> PerSample:
    """Call the module on every sample; `cut` names a module in it whose output is the code."""
    module, n_batch = task.module, len(task)
    values = {name: value.detach() for name, value in task.weights.items()}
    wanted = {name: values[name] for name in task.wanted}
    first = Watch({id(value): name for name, value in wanted.items()}, wanted)
    with torch.no_grad(), first, cutting(module, cut) as codes:  # what is called, and the shapes
        output = tensor_of(functional_call(module, values, (task.x[:1],)))
    if output.ndim == 0 or len(output) != 1:
        raise ValueError(
            f"the module gives {tuple(output.shape)} for one sample: its first axis must be that of the batch"
        )
    if cut is not None and not codes:
        raise ValueError(f"bottleneck={cut!r} is not called: its output is not the code")

    def zeros(like: Tensor) -> Tensor:
        """Return zeros that need no memory: one number, expanded."""
        return like.new_zeros(()).expand(n_batch, *like.shape).requires_grad_()

    probes = [zeros(y) for y in first.outputs]
    copies = {name: value.expand(n_batch, *value.shape).requires_grad_() for name, value in wanted.items()}
    start = zeros(codes[0] if codes else output.new_zeros(()))

    def of_sample(x: Tensor, probes: list[Tensor], copies: Params, start: Tensor) -> tuple[Any, ...]:
        watch = Watch({id(copy): name for name, copy in copies.items()}, wanted, probes)
        with watch, cutting(module, cut, start) as codes:
            output = tensor_of(functional_call(module, {**values, **copies}, (x[None],)))
        if watch.met != first.met:
            raise IrregularError("the module calls other layers for other samples")
        return output[0], codes[0] if codes else output.new_zeros(()), watch.inputs

    # fused attention can neither be mapped nor differentiated twice
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        output, code, inputs = _map(of_sample, n_batch, task.x, probes, copies, start)
    uses = [use(x.detach(), probe) for use, x, probe in zip(first.uses, inputs, probes, strict=True)]
    alive = leaves_of(output) | leaves_of(code)
    copies = {name: copy for name, copy in copies.items() if id(copy) in alive}
    return PerSample(output, uses, copies, wanted, code, start)


def _map(of_sample: Callable[..., tuple[Any, ...]], n: int, *args: Any) -> tuple[Any, ...]:
    """Call `of_sample` for every sample, and stack the results; by a loop if it cannot be mapped."""
    try:
        return vmap(of_sample, randomness="different")(*args)
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
    each = [of_sample(*tree_map(lambda t, i=i: t[i], args)) for i in range(n)]
    outputs, codes, inputs = zip(*each, strict=True)
    return torch.stack(outputs), torch.stack(codes), [torch.stack(x) for x in zip(*inputs, strict=True)]


def rows_of_gradients(of: Tensor, known: Sequence[Tensor], v: Tensor) -> list[Tensor | None]:
    """Return gradients of v_r · of in every known tensor.

    Args:
        of: a tensor with its graph.
        known: leaves of the graph.
        v: rows (R, *of.shape).

    Returns:
        (R, *shape) for each known tensor; None where `of` does not depend on it.
    """
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    if not known or not of.requires_grad:
        return [None] * len(known)
    if len(v) > 1:
        try:
            return list(torch.autograd.grad(of, known, v, is_grads_batched=True, **options))
        except RuntimeError as error:  # a backward pass that does not let itself be mapped
            if is_out_of_memory(error):
                raise
    try:
        rows = [torch.autograd.grad(of, known, row, **options) for row in v]
    except RuntimeError as error:
        if not isinstance(error, CheckpointError) and "inside a function being vmapped" not in str(error):
            raise
        raise ValueError(
            "the module computes a part of its forward pass again in the backward pass (gradient checkpointing): "
            "switch that off, or take sketch"
        ) from error
    return [None if parts[0] is None else torch.stack(parts) for parts in zip(*rows, strict=True)]


def leaves_of(tensor: Tensor) -> set[int]:
    """Return the ids of the leaves of a tensor's graph."""
    found, seen, waiting = set(), set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        waiting += [parent for parent, _ in node.next_functions]
    return found
