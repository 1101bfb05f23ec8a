"""Networks of the experiments that a configuration cannot name.

`faulty-upsampling` is the paper's convolutional network with the fault of the authors' code: their diagonal pull
through nearest upsampling sums over the channels too, so that each of the decoder's two upsamplings multiplies the
curvature behind it by about 64. It is here to show what that did to the paper's results, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lapae.curvature import Leaf, register
from lapae.curvature.rules.linear_maps import Upsample
from lapae.models import Autoencoder
from lapae.models.networks import conv, paper_fashion
from lapae.train.seeds import seed_all

Modules = tuple[nn.Module, nn.Module]


class FaultyUpsample(nn.Upsample):
    """Upsampling whose curvature rule is wrong on purpose; as a layer it is `nn.Upsample`."""


@register(FaultyUpsample)
class FaultyRule(Upsample):
    """The sum over copies, and over channels."""

    def squared_transpose(self, at: Leaf, m: Tensor) -> Tensor:
        """m (B, C, ...) -> the same number for all channels."""
        right = super().squared_transpose(at, m)
        return right.sum(1, keepdim=True).expand_as(right)


def faulty(network: Autoencoder) -> Modules:
    """The same network with upsamplings of the faulty kind."""
    decoder = nn.Sequential(
        *(FaultyUpsample(size=layer.size, mode=layer.mode) if isinstance(layer, nn.Upsample) else layer
          for layer in network.decoder.children())
    )  # fmt: skip
    return network.encoder, decoder


VARIANTS: dict[str, Callable[[], Modules]] = {
    "faulty-upsampling": lambda: faulty(paper_fashion()),
    "faulty-upsampling-small": lambda: faulty(conv((1, 28, 28), 2, channels=(8, 16), hidden=(128,))),
    "faulty-upsampling-quick": lambda: faulty(conv((1, 8, 8), 2, channels=(4, 8), hidden=(16,))),
}


def build(name: str, seed: int) -> Modules:
    """A variant with the initial weights that the network it stands in for has with this seed."""
    with torch.random.fork_rng():
        seed_all(seed, "init")
        return VARIANTS[name]()
