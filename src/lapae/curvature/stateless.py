"""Calling a module at other weights than its own, which it gets back afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class Stateless:
    """A module to be called at other weights, many times: where its parameters stand is looked up once.

    A parameter that stands in several places goes by its first name, that of `named_parameters()`, and is replaced in
    all of them. torch's own `functional_call` leaves a value behind in a module that holds one layer in two places.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = dict(module.named_parameters())
        names = {id(own): name for name, own in (*self.parameters.items(), *module.named_buffers())}
        layers = list(module.modules())
        self.names = frozenset(names.values())
        self._places = [
            (table, key, names[id(own)])
            for layer in layers
            for table in (layer._parameters, layer._buffers)
            for key, own in table.items()
            if own is not None
        ]
        self._recurrent = [layer for layer in layers if isinstance(layer, nn.RNNBase)]

    def __call__(self, values: Mapping[str, Tensor], args: tuple[Any, ...]) -> Any:
        """`module(*args)` with `values` for parameters and buffers, by their names."""
        unknown = values.keys() - self.names
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


def functional_call(module: nn.Module, values: Mapping[str, Tensor], args: tuple[Any, ...]) -> Any:
    """As `torch.func.functional_call`: `module(*args)` with `values` for parameters and buffers, by their names."""
    return Stateless(module)(values, args)
