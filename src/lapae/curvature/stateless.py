"""Calling a module at other weights than its own, which it gets back afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def functional_call(module: nn.Module, values: Mapping[str, Tensor], args: tuple[Any, ...]) -> Any:
    """As `torch.func.functional_call`: `module(*args)` with `values` for parameters and buffers, by their names.

    A parameter that stands in several places goes by its first name, that of `named_parameters()`, and is replaced in
    all of them. torch's own leaves a value behind in a module that holds one layer in two places.
    """
    names = {id(own): name for name, own in (*module.named_parameters(), *module.named_buffers())}
    unknown = values.keys() - names.values()
    if unknown:
        raise ValueError(f"the module has no parameter or buffer named {', '.join(sorted(unknown)[:3])}")
    places = [
        (table, key, own)
        for layer in module.modules()
        for table in (layer._parameters, layer._buffers)
        for key, own in table.items()
        if own is not None and names[id(own)] in values
    ]
    try:
        for table, key, own in places:
            table[key] = values[names[id(own)]]  # pyright: ignore[reportArgumentType]
        return module(*args)
    finally:
        for table, key, own in places:
            table[key] = own  # pyright: ignore[reportArgumentType]
        for layer in module.modules():
            if isinstance(layer, nn.RNNBase):  # it keeps a list of its weights
                layer._update_flat_weights()
