"""Networks of the experiments that a configuration cannot name.

`faulty-upsampling` has the fault of the authors' code in the network that the configuration does name: their diagonal
pull through nearest upsampling sums over the channels too, so that each of the two upsamplings of the paper's decoder
multiplies the curvature behind it by about 64. It is here to show what that did to the paper's results, and nowhere
else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lapae.config import Config
from lapae.curvature import Leaf, register
from lapae.curvature.rules.linear_maps import Upsample
from lapae.methods.building import Modules, Named, Shape
from lapae.methods.seeds import seed_all
from lapae.models import Autoencoder


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


VARIANTS: dict[str, Callable[[Autoencoder], Modules]] = {"faulty-upsampling": faulty}


def build(name: str, config: Config, shape: Shape) -> Modules:
    """A variant of the network that a configuration names, for data of `shape`, with its initial weights."""
    with torch.random.fork_rng():
        seed_all(config.train.seed, "init")
        return VARIANTS[name](Named(config.model, shape)())
