"""Missing values (NaN) in training and prediction.

A missing value enters the network as zero, which is the mean of a standardised feature, and is left out of the
likelihood and of the curvature: the model is that of the observed values alone. One layer at the head of the encoder
does the first, the form of a likelihood for missing values (`Likelihood.for_missing`) the second.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lapae.curvature import Elementwise, register
from lapae.models import Autoencoder

LAYER = "missing"


class FillMissing(nn.Module):
    """Zero in place of NaN."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, *shape) -> the same."""
        return torch.where(x.isnan(), torch.zeros((), dtype=x.dtype, device=x.device), x)


@register(FillMissing)
class _Fill(Elementwise):
    """1 where there is a value. The input is kept: it says what is observed."""

    uses_y = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        """1 where observed, else 0."""
        return (~x.isnan()).to(x.dtype)


def filling(network: Callable[[], Autoencoder]) -> Callable[[], Autoencoder]:
    """Networks whose encoder takes missing values. Names of parameters stay as they are in a `Sequential`."""

    def build() -> Autoencoder:
        plain = network()
        encoder = plain.get_submodule("encoder")
        # not named_children, which leaves out a layer's second place
        rest = encoder._modules.items() if type(encoder) is nn.Sequential else [("network", encoder)]
        layers: OrderedDict[str, nn.Module] = OrderedDict([(LAYER, FillMissing()), *rest])
        return Autoencoder(nn.Sequential(layers), plain.get_submodule("decoder"))

    return build
