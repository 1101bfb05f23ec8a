"""Gradients per datum of any module: what its linear maps saw, and cotangents by automatic differentiation.

A module is called on each datum by itself (`torch.func.vmap`, or a loop where a module does not let itself be mapped),
so that no layout of its inside needs to be known: batches in the second axis, windows folded into the first, anything
goes. During the call every product of an input with a wanted weight (linear maps and convolutions, as layers or as
functions) is watched: its input is kept, its weight held fixed, and a zero, the probe, is added to its output. The
gradient of the probe is the cotangent there, of which the extraction for that kind of layer makes the weight's
gradient. Any other use of a parameter (class tokens, positions, normalisations, recurrences, a weight transposed) finds
a copy per datum, whose gradient automatic differentiation gives. The gradient of a parameter is the sum over its uses:
only then is anything squared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointError

from lapae.curvature.call import Work, tensor_of
from lapae.curvature.memory import is_out_of_memory
from lapae.curvature.rules.base import Leaf, Params
from lapae.curvature.stateless import functional_call
from lapae.curvature.watch import Use, Watch, cutting


@dataclass(frozen=True)
class PerDatum:
    """A forward pass with everything that gradients per datum need."""

    output: Tensor
    """(B, *out), with its graph."""
    uses: list[Use]
    copies: Params
    """A copy per datum, (B, *shape), of each parameter that is used in another way."""
    shapes: dict[str, torch.Size]
    """Of all wanted parameters."""
    code: Tensor
    """(B, *code): the output of the cut, with its graph. What comes after starts anew, from the code plus `start`. One
    number where nothing is cut."""
    start: Tensor
    """(B, *code): zeros."""

    def pull(self, v: Tensor, of: Tensor | None = None) -> Pulled:
        """Everything that rows v (R, B, *out) at the output, or at another tensor of the pass, say."""
        known = [*(use.probe for use in self.uses), *self.copies.values()]
        found = rows_of_gradients(self.output if of is None else of, known, v)
        n = len(self.uses)
        rows = [None if g is None else use.rows(g) for use, g in zip(self.uses, found[:n], strict=True)]
        return Pulled(self, len(v), rows, dict(zip(self.copies, found[n:], strict=True)))

    def row_floats(self) -> int:
        """Numbers in memory for one row of one datum, about: all cotangents, copies, and the largest gradient twice."""
        cotangents = sum(use.probe[0].numel() for use in self.uses)
        copies = sum(self.shapes[name].numel() for name in self.copies)
        return 2 * cotangents + copies + 2 * max(shape.numel() for shape in self.shapes.values())

    def is_used(self, name: str) -> bool:
        """Whether the output depends on a parameter, in any way."""
        return name in self.copies or any(name in use.names.values() for use in self.uses)

    def leaves_of_weight(self, name: str) -> list[Leaf]:
        """The layers at work whose one matrix a parameter is; none where it is used in any other way as well."""
        keys = [(key, use.leaf) for use in self.uses for key, full in use.names.items() if full == name]
        groups = any(getattr(leaf.layer, "groups", 1) != 1 for _, leaf in keys)
        other = groups or name in self.copies or any(key != "weight" for key, _ in keys)
        return [] if other else [replace(leaf, trainable=("weight",)) for _, leaf in keys]

    def reaches(self, tensor: Tensor) -> set[str]:
        """Names of the parameters that a tensor of the pass depends on."""
        alive = leaves_of(tensor)
        found = {name for name, copy in self.copies.items() if id(copy) in alive}
        return found.union(*(use.names.values() for use in self.uses if id(use.probe) in alive))


@dataclass(frozen=True)
class Pulled:
    """Rows at every use of a parameter, and gradients of the copies."""

    at: PerDatum
    n_rows: int
    rows: Sequence[Tensor | None]
    """(R, B, *out) at each use; None where the use has no part in it."""
    copies: Mapping[str, Tensor | None]
    """(R, B, *shape)"""

    def __add__(self, other: Pulled) -> Pulled:
        """The sum of what two sets of rows say."""
        rows = [_sum(a, b) for a, b in zip(self.rows, other.rows, strict=True)]
        return replace(self, rows=rows, copies={name: _sum(g, other.copies[name]) for name, g in self.copies.items()})

    def uses(self, name: str, data: slice = slice(None)) -> list[tuple[Leaf, str, Tensor]]:
        """Where a parameter meets an input: the layer at work, with this parameter alone; its key there; the rows."""
        found = []
        for use, v in zip(self.at.uses, self.rows, strict=True):
            for key, full in use.names.items():
                if full == name and v is not None:
                    found.append((replace(use.leaf, trainable=(key,)).part(data), key, v[:, data]))
        return found

    def gradients(self, name: str, data: slice = slice(None)) -> Tensor | None:
        """(R, B, *shape): the sum over all uses; None where there is none."""
        terms = [leaf.rule.gradients(leaf, v)[key] for leaf, key, v in self.uses(name, data)]
        copy = self.copies.get(name)
        if copy is not None:
            terms.append(copy[:, data])
        return sum(terms[1:], terms[0]) if terms else None

    def flat(self, name: str, data: slice = slice(None)) -> Tensor:
        """The same as (R, B, n), zero where there are none."""
        gradients, output = self.gradients(name, data), self.at.output
        if gradients is not None:
            return gradients.flatten(2)
        return output.new_zeros(()).expand(self.n_rows, len(output[data]), self.at.shapes[name].numel())


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class IrregularError(ValueError):
    """Other data go through other layers."""


def passes(task: Work, size: int, cut: str | None = None) -> Iterator[tuple[PerDatum, slice]]:
    """The forward pass of all data, `size` at a time, and which these are; one by one where their layers differ."""
    for data in (slice(i, min(i + size, len(task))) for i in range(0, len(task), size)):
        try:
            found = [(per_datum(task.part(data), cut), data)]
        except IrregularError:
            alone = (slice(i, i + 1) for i in range(data.start, data.stop))
            found = ((per_datum(task.part(one), cut), one) for one in alone)
        yield from found


def per_datum(task: Work, cut: str | None = None) -> PerDatum:
    """Call the module on every datum. `cut` names a module in it whose output is the code."""
    module, n_data = task.module, len(task)
    values = {name: value.detach() for name, value in task.weights.items()}
    wanted = {name: values[name] for name in task.wanted}
    first = Watch({id(value): name for name, value in wanted.items()}, wanted)
    with torch.no_grad(), first, cutting(module, cut) as codes:  # what is called, and the shapes
        output = tensor_of(functional_call(module, values, (task.x[:1],)))
    if output.ndim == 0 or len(output) != 1:
        raise ValueError(
            f"the module gives {tuple(output.shape)} for one datum: its first axis must be that of the data"
        )
    if cut is not None and not codes:
        raise ValueError(f"bottleneck={cut!r} is not called: its output is not the code")

    def zeros(like: Tensor) -> Tensor:
        """Takes no memory: one number, seen many times."""
        return like.new_zeros(()).expand(n_data, *like.shape).requires_grad_()

    probes = [zeros(y) for y in first.outputs]
    copies = {name: value.expand(n_data, *value.shape).requires_grad_() for name, value in wanted.items()}
    start = zeros(codes[0] if codes else output.new_zeros(()))

    def of_datum(x: Tensor, probes: list[Tensor], copies: Params, start: Tensor) -> tuple[Any, ...]:
        watch = Watch({id(copy): name for name, copy in copies.items()}, wanted, probes)
        with watch, cutting(module, cut, start) as codes:
            output = tensor_of(functional_call(module, {**values, **copies}, (x[None],)))
        if watch.met != first.met:
            raise IrregularError("the module calls other layers for other data")
        return output[0], codes[0] if codes else output.new_zeros(()), watch.inputs

    # fused attention can neither be mapped nor differentiated twice
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        output, code, inputs = _map(of_datum, n_data, task.x, probes, copies, start)
    uses = [use(x.detach(), probe) for use, x, probe in zip(first.uses, inputs, probes, strict=True)]
    alive = leaves_of(output) | leaves_of(code)
    copies = {name: copy for name, copy in copies.items() if id(copy) in alive}
    shapes = {name: value.shape for name, value in wanted.items()}
    return PerDatum(output, uses, copies, shapes, code, start)


def _map(of_datum: Callable[..., tuple[Any, ...]], n: int, *args: Any) -> tuple[Any, ...]:
    """`of_datum` for every datum, results stacked; by a loop where it does not let itself be mapped."""
    try:
        return vmap(of_datum, randomness="different")(*args)
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
    each = [of_datum(*tree_map(lambda t, i=i: t[i], args)) for i in range(n)]
    outputs, codes, inputs = zip(*each, strict=True)
    return torch.stack(outputs), torch.stack(codes), [torch.stack(x) for x in zip(*inputs, strict=True)]


def rows_of_gradients(of: Tensor, known: Sequence[Tensor], v: Tensor) -> list[Tensor | None]:
    """Gradients (R, *shape) of v_r · of for rows v (R, *of.shape), of every known tensor; None where there is none."""
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
    """Ids of the leaves of a tensor's graph."""
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
