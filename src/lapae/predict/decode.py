"""Codes and data, one way at a time: what the decoders of a method say at given codes, and the codes of data.

Shapes: S draws, G codes of K dimensions; decoded data are (G, *shape), in the model's space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.curvature.call import Call
from lapae.curvature.forward import record
from lapae.methods.base import Draws, Method
from lapae.methods.laplace import with_posterior
from lapae.predict.closed_form import weight_variances
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.moments import push
from lapae.predict.statistics import Moments, expected
from lapae.runs.parts import under

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
    n_samples: int | None = 50,
    seed: int = 0,
    batch_size: int = 64,
    at_mean: bool = False,
) -> Decoded:
    """What the decoders say at codes z (G, K).

    Members of an ensemble have a latent space each, so that a code means something to one of them alone: codes are then
    those of the first, and so is what is decoded.

    Args:
        method: any; its networks are drawn, or pushed through in one pass.
        z: codes.
        n_samples: networks to draw; None for one pass that carries a variance (`moments`), of a method that has it.
        seed: of the draws.
        batch_size: codes decoded at a time.
        at_mean: means are those of the network at the mean weights, and not over draws.
    """
    weight = next(method.parameters())
    batches = z.to(weight.device, weight.dtype).split(batch_size)
    with evaluating(method, GROUP * min(batch_size, len(z))):
        found = _one_pass(method, batches) if n_samples is None else _sampled(method, batches, n_samples, seed)
        mean, variance = zip(*found, strict=True)
        if at_mean:
            center = method.draw_mean()
            mean = [expected(method.likelihood, center.decode(batch[None]))[0] for batch in batches]
    return Decoded(torch.cat(mean).cpu(), torch.cat(variance).sqrt().cpu())


def _sampled(method: Method, batches: Sequence[Tensor], n_samples: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance of each batch over networks that are drawn once."""
    means, noises = [Moments() for _ in batches], [torch.zeros_like(batch[0, 0]) for batch in batches]
    n = 0
    for draws, size in _networks(method, n_samples, seed):
        n += size
        for i, batch in enumerate(batches):
            output = draws.decode(batch[None])
            means[i].add(expected(method.likelihood, output))
            if output.var is not None:
                noises[i] = noises[i] + output.var.sum(0)
    return [(found.mean, found.variance + noise / n) for found, noise in zip(means, noises, strict=True)]


def _one_pass(method: Method, batches: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance of each batch by `moments`."""
    laplace, likelihood = with_posterior(method, "moments"), method.likelihood
    variances = under("decoder", weight_variances(laplace))
    found = []
    for batch in batches:
        with laplace.unfrozen():
            tape = record(laplace.network.decoder, batch)
        if isinstance(tape, Call):
            raise ValueError("one pass needs layers that all have a rule: draw networks instead")
        var = push(tape.nodes, None, variances)
        var = torch.zeros_like(tape.output) if var is None else var
        found.append((likelihood.mean(tape.output), likelihood.variance_of_mean(tape.output, var)))
    return found


def n_decoders(method: Method, n_samples: int | None) -> int:
    """How many networks `decode` uses where `n_samples` are asked for."""
    return 1 if n_samples is None or not method.shared_codes else n_distinct(method, n_samples)


def _networks(method: Method, n_samples: int, seed: int) -> Iterator[tuple[Draws, int]]:
    if not method.shared_codes:
        yield method.draw_mean(), 1
        return
    yield from _groups(method, draw_seeds(seed, n_distinct(method, n_samples)))


def _groups(method: Method, seeds: Sequence[int]) -> Iterator[tuple[Draws, int]]:
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


def encode_draws(method: Method, x: Tensor, n: int, *, seed: int = 0, batch_size: int = 512) -> Tensor:
    """Codes of x (N, *shape) under n single networks: (N, copies, K) on the CPU; one copy of a deterministic method."""
    weight = next(method.parameters())
    parts = []
    with evaluating(method):
        for draws, _ in _groups(method, draw_seeds(seed, n_distinct(method, n))):
            codes = [draws.encode(part.to(weight.device, weight.dtype)[None]).cpu() for part in x.split(batch_size)]
            parts.append(torch.cat(codes, 1))
    return torch.cat(parts).transpose(0, 1).flatten(2)
