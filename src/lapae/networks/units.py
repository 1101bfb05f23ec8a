"""Units of a network that was trained elsewhere, as two layers around it.

The model's space is standardised, but the network was trained in other units. A layer before the encoder converts to
these units, and one after the decoder converts back. So the rest of the library treats the network like any other, and
the network gets values in the units of its training data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lapae.curvature import Elementwise, register
from lapae.networks.adapt import Modules, with_layer


class Units(nn.Module):
    """Layer x · scale + offset, or its inverse, in 64 bits: an offset may be large compared with the standard
    deviation."""

    offset: Tensor
    scale: Tensor

    def __init__(self, offset: Any, scale: Any, *, inverse: bool = False) -> None:
        """Make the layer; offset and scale broadcast to a sample."""
        super().__init__()
        self.inverse = inverse
        for name, value in (("offset", offset), ("scale", scale)):
            self.register_buffer(name, torch.tensor(np.asarray(value, np.float64)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        exact = x.double()
        exact = (exact - self.offset) / self.scale if self.inverse else exact * self.scale + self.offset
        return exact.to(torch.promote_types(x.dtype, torch.float32))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Units:
        """Move to another device; offset and scale stay in 64 bits."""
        exact = self.offset, self.scale
        super()._apply(fn, recurse)
        self.offset, self.scale = (value.to(self.offset.device) for value in exact)
        return self

    def extra_repr(self) -> str:
        return f"inverse={self.inverse}"


@register(Units)
class _Scale(Elementwise):
    """Derivative: the scale, or its inverse."""

    uses_x = uses_y = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        scale = layer.scale.to(x.dtype)
        return x.new_ones(x.shape) * (1 / scale if layer.inverse else scale)


def in_units(network: Modules, offset: Any, scale: Any, *, logits: bool) -> Modules:
    """Return the modules with layers that convert to their own units and, unless they return `logits`, back.

    Args:
        network: encoder and decoder.
        offset: the network gets the model's values · scale + offset.
        scale: see `offset`.
        logits: whether the decoder returns logits, which have no unit.
    """
    if np.all(np.asarray(offset) == 0) and np.all(np.asarray(scale) == 1):
        return network
    encoder = with_layer(network[0], before=("units", Units(offset, scale)))
    decoder = network[1] if logits else with_layer(network[1], after=("units", Units(offset, scale, inverse=True)))
    return encoder, decoder
