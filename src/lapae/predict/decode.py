"""Codes and data, one way at a time: what the decoders of a method say at given codes, and the codes of data.

Shapes: S draws, G codes of K dimensions; decoded data are (G, *shape), in the model's space.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.methods.base import Draws, Method
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.prediction import Progress
from lapae.predict.statistics import Moments, expected

GROUP = 10
"""Networks drawn at once: more would fill the memory where networks are large."""


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


def decode(
    method: Method,
    z: Tensor,
    *,
    n_samples: int = 50,
    seed: int = 0,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Decoded:
    """Decode z (G, K) with `n_samples` networks; `progress` is called with the number of (network, code) pairs done.

    Members of an ensemble have a latent space each, so that a code means something to one of them alone: codes are then
    those of the first, and so is what is decoded.
    """
    weight = next(method.parameters())
    batches = z.to(weight.device, weight.dtype).split(batch_size)
    means, noises = [Moments() for _ in batches], [torch.zeros((), device=weight.device) for _ in batches]
    n = 0
    with evaluating(method, GROUP * min(batch_size, len(z))):
        for draws, size in _networks(method, n_samples, seed):
            n += size
            for i, batch in enumerate(batches):
                output = draws.decode(batch[None])
                means[i].add(expected(method.likelihood, output))
                if output.var is not None:
                    noises[i] = noises[i] + output.var.sum(0)
                if progress:
                    progress(size * len(batch))
    mean = torch.cat([found.mean.cpu() for found in means])
    variance = [found.variance + noise / n for found, noise in zip(means, noises, strict=True)]
    return Decoded(mean, torch.cat([v.sqrt().cpu() for v in variance]))


def n_decoders(method: Method, n_samples: int) -> int:
    """How many networks `decode` uses where `n_samples` are asked for."""
    return 1 if method.distinct_draws is not None else n_distinct(method, n_samples)


def _networks(method: Method, n_samples: int, seed: int) -> Iterator[tuple[Draws, int]]:
    if method.distinct_draws is not None:
        yield method.draw_mean(), 1
        return
    seeds = draw_seeds(seed, n_distinct(method, n_samples))
    for start in range(0, len(seeds), GROUP):
        group = seeds[start : start + GROUP]
        yield method.draw(group), len(group)


def encode_mean(method: Method, x: Tensor, *, batch_size: int = 512) -> Tensor:
    """Codes (N, K) of x (N, *shape) under the point estimate, on the CPU."""
    weight = next(method.parameters())
    with evaluating(method, min(batch_size, len(x))):
        draws = method.draw_mean()
        return torch.cat(
            [draws.encode(part.to(weight.device, weight.dtype)[None])[0].cpu() for part in x.split(batch_size)]
        )
