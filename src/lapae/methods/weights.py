"""Draws from a distribution over weights: many networks of one architecture at once.

Parameters are stacked along a leading axis S, and the network is mapped over it. On a GPU, and for dense networks on a
CPU, the map is `torch.func.vmap`: one batched matrix product per layer. Under vmap, a convolution with its own kernel
for each network becomes a grouped convolution, which a CPU runs two to three times slower than plain ones, so there the
networks run one after the other.

Shapes: S draws, B samples; x is (S or 1, B, *shape), stacked parameters are (S, *parameter shape).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap

from lapae.curvature.chunking import is_out_of_memory
from lapae.curvature.stateless import functional_call
from lapae.methods.base import Output
from lapae.networks import Autoencoder
from lapae.posterior.noise import fill_normal


class WeightDraws:
    """S networks given by stacked parameters; parameters without an entry in `stacked` are the network's own and
    shared."""

    def __init__(self, network: Autoencoder, stacked: Mapping[str, Tensor]) -> None:
        known = dict(network.named_parameters()) | dict(network.named_buffers())
        unknown = sorted(set(stacked) - set(known))
        if unknown:
            raise ValueError(f"the network has no parameters named {', '.join(unknown)}")
        sizes = {len(value) for value in stacked.values()}
        if len(sizes) != 1:
            raise ValueError(f"expected stacked parameters with one number of draws, got {sorted(sizes)}")
        self.n_draws = sizes.pop()
        self.network = network
        # by identity, as a weight that both parts use goes by one name
        names = {id(value): name for name, value in known.items()}
        self.parts = {
            part: {
                name: stacked[names[id(value)]]
                for name, value in (*module.named_parameters(), *module.named_buffers())
                if names[id(value)] in stacked
            }
            for part, module in ((part, network.get_submodule(part)) for part in ("encoder", "decoder"))
        }

    def encode(self, x: Tensor) -> Tensor:
        """Encode x (S or 1, B, *shape) into codes (S, B, K)."""
        return self._apply("encoder", x)

    def decode(self, z: Tensor) -> Output:
        """Decode z (S or 1, B, K) into outputs (S, B, *shape)."""
        return Output(self._apply("decoder", z))

    def _apply(self, part: str, x: Tensor) -> Tensor:
        out = stacked_forward(self.network.get_submodule(part), self.parts[part], x)
        return out.expand(self.n_draws, *out.shape[1:]) if len(out) == 1 else out


def stacked_forward(module: nn.Module, stacked: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Apply a module at each of S stacked sets of parameters.

    Args:
        module: the module.
        stacked: parameters by name, (S, *parameter shape); the others are the module's own.
        x: inputs (S or 1, B, ...).

    Returns:
        Outputs (S, B, ...). Without stacked parameters, or with one set of them, S is that of the input.
    """
    n_draws = len(next(iter(stacked.values()))) if stacked else 1
    if n_draws == 1:
        only = {name: value[0] for name, value in stacked.items()}
        return functional_call(module, only, (x.flatten(0, 1),)).unflatten(0, x.shape[:2])
    if len(x) not in (1, n_draws):
        raise ValueError(
            f"expected inputs with a leading axis of 1 or {n_draws} (the draws), got shape {tuple(x.shape)}"
        )
    shared = len(x) == 1
    if not _one_by_one(module, x):
        forward = vmap(
            lambda params, x: functional_call(module, params, (x,)),
            in_dims=(0, None if shared else 0),
            randomness="different",
        )
        try:
            return forward(dict(stacked), x[0] if shared else x)
        except (RuntimeError, NotImplementedError) as error:  # a module that does not let itself be mapped
            if is_out_of_memory(error):
                raise
    inputs = x.expand(n_draws, *x.shape[1:])
    return torch.stack(
        [
            functional_call(module, {name: value[s] for name, value in stacked.items()}, (inputs[s],))
            for s in range(n_draws)
        ]
    )


def normal_draws(parameters: Mapping[str, Tensor], seeds: Sequence[int]) -> dict[str, Tensor]:
    """Draw standard normal noise for `parameters`, (S, *shape) each; the noise of a seed does not depend on other
    seeds."""
    first = next(iter(parameters.values()))
    sizes = [value.numel() for value in parameters.values()]
    flat = fill_normal(first.new_empty(len(seeds), sum(sizes)), seeds)
    blocks = flat.split(sizes, dim=1)
    return {
        name: block.unflatten(1, value.shape) if value.ndim else block[:, 0]
        for (name, value), block in zip(parameters.items(), blocks, strict=True)
    }


def _one_by_one(module: nn.Module, x: Tensor) -> bool:
    convolutional = nn.modules.conv._ConvNd
    return x.device.type == "cpu" and any(isinstance(layer, convolutional) for layer in module.modules())
