"""One call of any module with the graph of its output, for methods that need not know its layers.

The only requirement is that the module treats samples independently: output b depends on input b alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from lapae.curvature.rules.base import Params, couples
from lapae.curvature.stateless import Stateless

NOTHING_WANTED = "the module has no parameter that requires a gradient: there is no curvature to compute"


@dataclass(frozen=True)
class Work:
    """A module, the batch and weights with which to call it, and the weights whose curvature is wanted."""

    module: nn.Module
    values: Mapping[str, Tensor] | None
    """Weights to use instead of the module's own, by the names of `named_parameters()`; None for its own."""
    wanted: tuple[str, ...]
    x: Tensor
    """(B, *in)"""

    def __len__(self) -> int:
        return len(self.x)

    def part(self, samples: slice) -> Self:
        """Return the work on some of the samples."""
        return replace(self, x=self.x[samples])

    def split(self, size: int) -> Iterator[Self]:
        """Yield the work in parts of at most `size` samples."""
        return (self.part(slice(i, i + size)) for i in range(0, len(self), size))

    def call(self) -> Call:
        """Call the module, and keep the graph of the output."""
        return call(self.module, self.x, self.values)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Weights to call the module with, by the names of `named_parameters()`."""
        return dict(self.module.named_parameters()) if self.values is None else self.values


@dataclass(frozen=True)
class Call(Work):
    """A finished call, with the graph of its output."""

    output: Tensor
    """(B, *out)"""
    params: Params
    """The wanted parameters as they are in that graph."""

    def part(self, samples: slice) -> Self:
        return replace(self, x=self.x[samples], output=self.output[samples])

    def call(self) -> Call:
        return self if self.output.requires_grad else super().call()


def checked(module: nn.Module) -> Stateless:
    """Check that a module treats samples independently; return it prepared to be called many times."""
    stateless = Stateless(module)
    check_independent(stateless.layers)
    return stateless


def work(module: nn.Module | Stateless, x: Tensor, values: Mapping[str, Tensor] | None = None) -> Work:
    """Return what `call` does, checked but not yet executed."""
    known = module if isinstance(module, Stateless) else checked(module)
    check_batch(x)
    check_values(known.parameters, values)
    wanted = tuple(name for name, p in known.parameters.items() if p.requires_grad)
    if not wanted:
        raise ValueError(NOTHING_WANTED)
    return Work(known.module, values, wanted, x)


def call(module: nn.Module | Stateless, x: Tensor, values: Mapping[str, Tensor] | None = None) -> Call:
    """Run any module on a batch, and keep the graph of the output.

    Weights that require a gradient stay connected to a larger graph, so that the output can also be used for a loss.

    Args:
        module: that treats samples independently.
        x: inputs (B, *in).
        values: weights by the names of `named_parameters()`; the module's own by default.

    Returns:
        The call, with the output (B, *out).
    """
    known = module if isinstance(module, Stateless) else checked(module)
    wanted = work(known, x, values).wanted
    with torch.enable_grad():
        if values is None:
            params: Params = {name: known.parameters[name] for name in wanted}
            output = known.module(x)
        else:
            given = {name: values[name] for name in wanted}
            params = {name: p if p.requires_grad else p.detach().requires_grad_() for name, p in given.items()}
            output = known({**values, **params}, (x,))
    return Call(known.module, values, wanted, x, tensor_of(output), params)


def by_layer(names: Iterable[str]) -> dict[str, list[str]]:
    """Return names of parameters by the name of their layer."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(layer_name(name), []).append(name)
    return layers


def layer_name(parameter: str) -> str:
    """Return the name of the module to which a parameter belongs."""
    return parameter.rpartition(".")[0]


def tensor_of(output: Any) -> Tensor:
    """Return the tensor in the output of a module: the output itself, the first of several, or a known field of an
    object."""
    if isinstance(output, Tensor):
        return output
    for name in ("sample", "reconstruction", "logits", "last_hidden_state"):
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    if isinstance(output, tuple | list) and output:
        return tensor_of(output[0])
    raise TypeError(f"expected a module that gives a tensor, or a tuple that begins with one, got {type(output)}")


def check_batch(x: Tensor) -> None:
    """Raise ValueError if x is not a batch."""
    if x.ndim < 2 or x.shape[0] == 0:
        raise ValueError(f"expected a batch of at least one sample, (B, features…), got shape {tuple(x.shape)}")


def check_values(own: Mapping[str, Tensor], values: Mapping[str, Tensor] | None) -> None:
    """Raise ValueError if a parameter is missing from `values`, or is complex."""
    for name, value in own.items():
        if value.is_complex():
            raise ValueError(
                f"parameter {name!r} is complex, and its curvature would be that of two numbers each: store it as real "
                "numbers, and call torch.view_as_complex in forward"
            )
    missing = sorted(own.keys() - values.keys()) if values is not None else []
    if missing:
        raise ValueError(f"params lacks {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}")


def check_independent(layers: Mapping[str, nn.Module]) -> None:
    """Raise ValueError if a layer, in its present mode, couples the samples or is random."""
    for name, layer in layers.items():
        reason = couples(layer)
        if reason:
            raise ValueError(f"layer {name!r}, {layer}: {reason}")
