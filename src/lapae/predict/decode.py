"""Encode or decode alone: outputs of the decoders of a method at given codes, and codes of samples.

Shapes: S draws, G codes of K dimensions; decoded samples are (G, *shape), in the model's space.
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
"""Number of networks drawn at once: more of them would fill the memory if networks are large."""


@dataclass(frozen=True)
class Decoded:
    """Statistics of decoded codes, on the CPU."""

    mean: Tensor
    """(G, *shape): mean of the expected sample over networks."""
    deviation: Tensor
    """(G, *shape): standard deviation over networks, with the noise if the method learns it."""

    @property
    def total(self) -> Tensor:
        """(G,): standard deviation summed over the elements of a sample, as in out-of-distribution detection."""
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
    """Decode codes z (G, K): mean and standard deviation over networks.

    Each member of an ensemble has its own latent space, in which alone a code has a meaning: codes are then those of
    the first member, which decodes them.

    Args:
        method: the trained method.
        z: codes (G, K).
        n_samples: number of networks to draw; None for one pass that carries a variance (`moments`).
        seed: seed of the draws.
        batch_size: number of codes decoded at once.
        at_mean: return means of the network at the mean weights, instead of means over draws.
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
    """Return mean and variance of each batch over networks that are drawn once."""
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
    """Return mean and variance of each batch by `moments`."""
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
    """Return the number of networks that `decode` uses if `n_samples` are asked for."""
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
    """Encode samples by the point estimate.

    Args:
        method: the trained method.
        x: samples (N, *shape) in the model's space.
        batch_size: samples per batch.

    Returns:
        Codes (N, K) on the CPU.
    """
    weight = next(method.parameters())
    with evaluating(method, min(batch_size, len(x))):
        draws = method.draw_mean()
        return torch.cat(
            [draws.encode(part.to(weight.device, weight.dtype)[None])[0].cpu() for part in x.split(batch_size)]
        )


def encode_draws(method: Method, x: Tensor, n: int, *, seed: int = 0, batch_size: int = 512) -> Tensor:
    """Encode samples by sampled networks.

    Args:
        method: the trained method.
        x: samples (N, *shape) in the model's space.
        n: number of networks.
        seed: seed of the networks.
        batch_size: samples per batch.

    Returns:
        Codes (N, copies, K) on the CPU; one copy for a deterministic method.
    """
    weight = next(method.parameters())
    parts = []
    with evaluating(method):
        for draws, _ in _groups(method, draw_seeds(seed, n_distinct(method, n))):
            codes = [draws.encode(part.to(weight.device, weight.dtype)[None]).cpu() for part in x.split(batch_size)]
            parts.append(torch.cat(codes, 1))
    return torch.cat(parts).transpose(0, 1).flatten(2)
