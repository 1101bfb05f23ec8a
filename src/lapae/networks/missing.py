"""Missing values (NaN) in training and prediction.

A missing value enters the network as zero, which is the mean of a standardised feature, and is left out of the
likelihood and of the curvature: the model is that of the observed values alone. The first layer of the encoder replaces
missing values by zero; the form of the likelihood for missing values (`Likelihood.for_missing`) leaves them out.

The first layer of a masked autoencoder also passes the mask of missing values to the network, and masks more values in
training: the network learns to predict them from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lapae.curvature import Elementwise, Rule, register
from lapae.networks import Autoencoder
from lapae.networks.adapt import with_layer

LAYER = "missing"
"""Name of the layer that replaces missing values."""


class FillMissing(nn.Module):
    """Layer that replaces NaN by zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.isnan(), torch.zeros((), dtype=x.dtype, device=x.device), x)


def uniform(like: Tensor) -> Tensor:
    """Draw uniform numbers from 0 to 1, like x, from torch's global generator."""
    return torch.rand(like.shape, dtype=like.dtype, device=like.device)


class Observe(nn.Module):
    """First layer of a masked autoencoder of tables: replace NaN by zero, and append the mask of missing values.

    In training it masks further values, so that the network learns to predict them from the others: one row in two
    keeps all of its values, each other row loses every value with a probability of its own, uniform from 0 to `hide`.
    """

    def __init__(self, hide: float = 0.0) -> None:
        super().__init__()
        self.hide = hide
        self.uniform: Callable[[Tensor], Tensor] = uniform

    def forward(self, x: Tensor) -> Tensor:
        """Return values and mask: (B, D) -> (B, 2 D)."""
        missing = x.isnan()
        if self.training and self.hide > 0:
            rate = self.hide * self.uniform(x[:, :1])
            rate = rate * (self.uniform(x[:, :1]) < 0.5)
            missing = missing | (self.uniform(x) < rate)
        return torch.cat([torch.where(missing, 0.0, x), missing.to(x.dtype)], 1)

    def extra_repr(self) -> str:
        return f"hide={self.hide:g}"


@contextmanager
def drawing(heads: Sequence[Observe], uniform: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let these layers draw the values that they mask with `uniform`, a function of x (B, F) that returns uniform
    numbers (B, F)."""
    before = [head.uniform for head in heads]
    for head in heads:
        head.uniform = uniform
    try:
        yield
    finally:
        for head, own in zip(heads, before, strict=True):
            head.uniform = own


register(Observe)(Rule)


@register(FillMissing)
class _Fill(Elementwise):
    """Derivative: 1 for observed values. The input is kept because it shows what is observed."""

    uses_y = False

    def derivative(self, layer: Any, x: Tensor, y: Tensor) -> Tensor:
        return (~x.isnan()).to(x.dtype)


def filling(
    network: Callable[[], Autoencoder], head: Callable[[], nn.Module] = FillMissing
) -> Callable[[], Autoencoder]:
    """Return a factory of networks whose encoder accepts missing values.

    Args:
        network: makes a network; in a `Sequential`, the names of its parameters stay.
        head: makes the layer that replaces missing values.
    """

    def build() -> Autoencoder:
        plain = network()
        return Autoencoder(with_layer(plain.encoder, before=(LAYER, head())), plain.decoder)

    return build
