"""Calls of a module at weights other than its own, which are restored afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import Tensor, nn


class Stateless:
    """A module that is called many times at other weights; the places of its parameters are looked up only once.

    A parameter in several places has its first name, that of `named_parameters()`, and is replaced in all of them.
    torch's own `functional_call` leaves a value behind in a module that holds one layer in two places.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers = layers_of(module)

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """`dict(module.named_parameters())`."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for prefix, layer in self.layers.items():
            for key, own in layer._parameters.items():
                if own is not None:
                    found.setdefault(id(own), (f"{prefix}.{key}" if prefix else key, own))
        return dict(found.values())

    @cached_property
    def _places(self) -> list[tuple[dict[str, Any], str, str]]:
        """Places of every parameter and buffer: the table of a layer, the key there, and its one name."""
        names: dict[int, str] = {}
        places: list[tuple[dict[str, Any], str, str]] = []
        for prefix, layer in self.layers.items():
            for table in (layer._parameters, layer._buffers):
                for key, own in table.items():
                    if own is not None:
                        name = names.setdefault(id(own), f"{prefix}.{key}" if prefix else key)
                        places.append((table, key, name))
        return places

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for _, _, name in self._places)

    @cached_property
    def _recurrent(self) -> list[nn.RNNBase]:
        return [layer for layer in self.layers.values() if isinstance(layer, nn.RNNBase)]

    def __call__(self, values: Mapping[str, Tensor], args: tuple[Any, ...]) -> Any:
        """Return `module(*args)` with `values` for parameters and buffers, by their names."""
        unknown = values.keys() - self._names
        if unknown:
            raise ValueError(f"the module has no parameter or buffer named {', '.join(sorted(unknown)[:3])}")
        kept = [(table, key, table[key], name) for table, key, name in self._places if name in values]
        try:
            for table, key, _, name in kept:
                table[key] = values[name]  # pyright: ignore[reportArgumentType]
            return self.module(*args)
        finally:
            for table, key, own, _ in kept:
                table[key] = own  # pyright: ignore[reportArgumentType]
            for layer in self._recurrent:  # it keeps a list of its weights
                layer._update_flat_weights()


def layers_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return `dict(module.named_modules())`, whose generators cost a tenth of a backward pass of a deep network."""
    found: dict[int, tuple[str, nn.Module]] = {}

    def visit(layer: nn.Module, name: str) -> None:
        if id(layer) not in found:
            found[id(layer)] = (name, layer)
            for key, child in layer._modules.items():
                if child is not None:
                    visit(child, f"{name}.{key}" if name else key)

    visit(module, "")
    return dict(found.values())


def functional_call(module: nn.Module, values: Mapping[str, Tensor], args: tuple[Any, ...]) -> Any:
    """Return `module(*args)` at other weights and buffers, by their names, as `torch.func.functional_call` does."""
    return Stateless(module)(values, args)
