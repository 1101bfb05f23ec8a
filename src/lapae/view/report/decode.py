"""What the decoders of a method say at given codes: the mean over networks and the deviation.

Shapes: S draws, G codes of K dimensions; decoded data are (G, *shape), in the model's space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.methods.base import Draws, Method
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.statistics import expected


@dataclass(frozen=True)
class Decoded:
    """Statistics of decoded codes, on the CPU."""

    mean: Tensor
    """(G, *shape): mean of the expected data over networks."""
    deviation: Tensor
    """(G, *shape): standard deviation over networks, with the learned noise where the method learns one."""

    @property
    def total(self) -> Tensor:
        """(G,): deviation summed over the elements of a datum, as out-of-distribution detection sums it."""
        return self.deviation.flatten(1).sum(1)


def decode_codes(
    method: Method,
    z: Tensor,
    *,
    n_samples: int = 50,
    seed: int = 0,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
) -> Decoded:
    """Decode z (G, K) with `n_samples` networks.

    Members of an ensemble have a latent space each, so that a code means something to one of them alone: codes are then
    those of the first, and so is what is decoded.
    """
    weight = next(method.parameters())
    z = z.to(weight.device, weight.dtype)
    parts: list[tuple[Tensor, Tensor]] = []
    with evaluating(method):
        if method.distinct_draws is not None:
            networks: list[Draws] = [method.draw_mean()]
        else:
            seeds = draw_seeds(seed, n_distinct(method, n_samples))
            networks = [method.draw(seeds[i : i + 10]) for i in range(0, len(seeds), 10)]
        for batch in z.split(batch_size):
            parts.append(_statistics(method, networks, batch))
            if progress:
                progress(len(batch))
    mean, variance = (torch.cat(both) for both in zip(*parts, strict=True))
    return Decoded(mean, variance.clamp_min(0).sqrt())


def _statistics(method: Method, networks: list[Draws], z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over all networks for a batch of codes (B, K)."""
    n, total, squares, noise = 0, 0.0, 0.0, 0.0
    first: Tensor | None = None
    for draws in networks:
        output = draws.decode(z[None])
        mean = expected(method.likelihood, output)
        first = mean[0] if first is None else first
        gap = mean - first  # differences from one network, so that squares lose no digits
        n, total, squares = n + len(gap), total + gap.sum(0), squares + gap.square().sum(0)
        if output.var is not None:
            noise = noise + output.var.sum(0)
    assert isinstance(first, Tensor)
    variance = (squares - total * total / n) / max(n - 1, 1) + noise / n
    return (first + total / n).cpu(), (variance + torch.zeros_like(first)).cpu()


def encode_mean(method: Method, x: Tensor, *, batch_size: int = 512) -> Tensor:
    """Codes (N, K) of x (N, *shape) under the point estimate, on the CPU."""
    weight = next(method.parameters())
    with evaluating(method):
        draws = method.draw_mean()
        return torch.cat(
            [draws.encode(part.to(weight.device, weight.dtype)[None])[0].cpu() for part in x.split(batch_size)]
        )
