"""Networks with the fault of the authors' code, to show what it did to the paper's results.

Their diagonal pull through nearest upsampling sums over the channels too, so that each of the two upsamplings of the
paper's decoder multiplies the curvature behind it by about 64.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lapae.curvature import Leaf, register
from lapae.curvature.rules.linear_maps import Upsample
from lapae.networks import Autoencoder, conv
from lapae_paper.variants.networks import paper_fashion

Shape = tuple[int, ...]


class FaultyUpsample(nn.Upsample):
    """Upsampling whose curvature rule is wrong on purpose; as a layer it is `nn.Upsample`."""


@register(FaultyUpsample)
class FaultyRule(Upsample):
    """Rule that sums over copies and, wrongly, over channels."""

    def squared_transpose(self, at: Leaf, m: Tensor) -> Tensor:
        """Sum m (B, C, ...) over channels, and return the sum for each channel."""
        right = super().squared_transpose(at, m)
        return right.sum(1, keepdim=True).expand_as(right)


def faulty_conv(shape: Shape, latent_dim: int, **options: Any) -> Autoencoder:
    """Build `lapae.networks.conv` with faulty upsampling."""
    return _faulty(conv(shape, latent_dim, **options))


def faulty_paper_fashion(shape: Shape = (1, 28, 28), latent_dim: int = 2) -> Autoencoder:
    """Build the paper's network for FashionMNIST with faulty upsampling."""
    return _faulty(paper_fashion(shape, latent_dim))


def _faulty(network: Autoencoder) -> Autoencoder:
    layers = [
        FaultyUpsample(size=layer.size, mode=layer.mode) if isinstance(layer, nn.Upsample) else layer
        for layer in network.decoder.children()
    ]
    return Autoencoder(network.encoder, nn.Sequential(*layers))
