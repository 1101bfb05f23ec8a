"""Monte Carlo dropout (Gal & Ghahramani 2016): dropout between trainable layers, kept on at test time.

A mask is drawn for every sample and every draw. The code itself is never dropped: dropout layers are between the
trainable layers of the encoder and between those of the decoder, as in the authors' networks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lapae.config.methods import DropoutOptions
from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import Draws, Method, NetworkFactory, Output, Point
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder
from lapae.networks.missing import LAYER, FillMissing, Observe


class Dropout(Method):
    """Autoencoder with the loss of a plain one, under random masks."""

    def __init__(self, network: NetworkFactory, likelihood: Likelihood, options: DropoutOptions, n_data: int) -> None:
        super().__init__(likelihood)
        self.masks = Masks(options.dropout)
        plain = network()
        self.network = Autoencoder(
            *(with_dropout(plain.get_submodule(half), self.masks) for half in ("encoder", "decoder"))
        )
        if not any(isinstance(layer, MaskLayer) for layer in self.network.modules()):
            raise ValueError("method 'dropout' needs two trainable layers or more in the encoder or in the decoder")

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        """Return the mean negative log-likelihood with dropout on, in training and in validation."""
        with self.masks.on([step.noise_of_data], len(x)):
            return -self.likelihood.log_prob(self.network(x), x).mean()

    def draw(self, seeds: Sequence[int]) -> Draws:
        """Return networks with dropout on, one stream of masks per seed."""
        return MaskDraws(self.network, self.masks, seeds)

    def draw_mean(self) -> Draws:
        """Return the network with dropout off: the expected activations."""
        return Point(self.network)


class Masks:
    """Source of masks for the dropout layers of one network: S generators while it is on, none while it is off."""

    def __init__(self, p: float) -> None:
        self.p = p
        self.generators: Sequence[torch.Generator | None] = ()
        self.batch = 0

    @contextmanager
    def on(self, generators: Sequence[torch.Generator | None], batch: int) -> Iterator[None]:
        """Turn dropout on for S generators and batches of `batch` samples."""
        self.generators, self.batch = generators, batch
        try:
            yield
        finally:
            self.generators = ()


class MaskLayer(nn.Module):
    """Dropout layer: (B, ...) or (S·B, ...) -> (S·B, ...), each row with its own mask.

    Up to the first of these layers all draws are equal, so that part of the network runs only once.
    """

    def __init__(self, masks: Masks) -> None:
        super().__init__()
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        """Set values to zero with probability p, and scale the others by 1 / (1 - p)."""
        generators, batch = self.masks.generators, self.masks.batch
        if not generators:
            return x
        keep = 1 - self.masks.p
        mask = x.new_empty(len(generators), batch, *x.shape[1:])
        for part, generator in zip(mask, generators, strict=True):
            part.bernoulli_(keep, generator=generator)
        return (x.unflatten(0, (-1, batch)) * mask.div_(keep)).flatten(0, 1)

    def extra_repr(self) -> str:
        return f"p={self.masks.p}"


class MaskDraws:
    """S dropout networks; successive calls continue each seed's stream of masks."""

    def __init__(self, network: Autoencoder, masks: Masks, seeds: Sequence[int]) -> None:
        self.network = network
        self.masks = masks
        device = next(network.parameters()).device
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def encode(self, x: Tensor) -> Tensor:
        return self._apply(self.network.encode, x)

    def decode(self, z: Tensor) -> Output:
        return Output(self._apply(self.network.decode, z))

    def _apply(self, half, x: Tensor) -> Tensor:
        with self.masks.on(self.generators, x.shape[1]):
            out = half(x.flatten(0, 1)).unflatten(0, (-1, x.shape[1]))
        return out.expand(len(self.generators), *out.shape[1:])


def with_dropout(half: nn.Module, masks: Masks) -> nn.Sequential:
    """Return the layers of a (nested) `Sequential` with dropout before every trainable layer but the first."""
    layers = list(_flatten(half))
    if not isinstance(half, nn.Sequential) and any(True for _ in half.parameters()):
        raise TypeError(f"method 'dropout' stands between the layers of an nn.Sequential, got {type(half).__name__}")
    out: list[nn.Module] = []
    seen = False
    for layer in layers:
        trainable = any(True for _ in layer.parameters())
        if trainable and seen:
            out.append(MaskLayer(masks))
        seen |= trainable
        out.append(layer)
    # The layer that replaces missing values has a name and not a number, as in networks without dropout, so that
    # weights trained without dropout fit a network with it.
    filled = [LAYER] if out and isinstance(out[0], FillMissing | Observe) else []
    names = [*filled, *map(str, range(len(out) - len(filled)))]
    return nn.Sequential(OrderedDict(zip(names, out, strict=True)))


def _flatten(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Sequential):
        for child in module:
            yield from _flatten(child)
    else:
        yield module
