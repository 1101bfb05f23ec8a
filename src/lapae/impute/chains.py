"""Missing values: fill with noise, then encode and decode with sampled networks while the observed part stays fixed.

The paper's procedure (appendix A) has two stages. The first explores: each of `modes` chains draws a network (one per
step) and replaces the missing values by its reconstruction. The second averages: `average` more networks reconstruct
every mode, and their mean is the sample. `average=0` is plain iteration (Rezende et al. 2014), with `steps` steps.

Observed values are True in `observed`; a missing value is False there, or NaN in x. Shapes: M modes, N samples,
x and observed are (N, *shape) in the model's space, or observed has the shape of one sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.methods.base import Draws, Method
from lapae.predict.mc import draw_seeds, evaluating
from lapae.predict.prediction import Progress
from lapae.predict.statistics import expected

NOISE = 0.15
"""Standard deviation of the filling noise as a share of the range of the data. The authors scale normal noise to that
range, and noise of a 28x28 image spans about 6.5 standard deviations."""


@dataclass(frozen=True)
class Imputation:
    """Imputed data, with the modes kept separate."""

    samples: Tensor
    """(M, N, *shape): one completed sample per mode."""
    mean: Tensor
    """(N, *shape): mean over modes."""
    var: Tensor
    """(N, *shape): variance over modes, unbiased; zero where observed."""
    reconstructions: Tensor
    """(M, N, *shape): output of the networks, also for the observed part (where `samples` has the observed values)."""


def impute(
    method: Method,
    x: Tensor,
    observed: Tensor | None = None,
    *,
    modes: int = 5,
    average: int = 5,
    steps: int = 1,
    seed: int = 0,
    value_range: tuple[float, float] = (0.0, 1.0),
    shared_noise: bool = False,
    batch_size: int = 512,
    progress: Progress | None = None,
) -> Imputation:
    """Complete the missing values of data.

    Args:
        method: the trained method.
        x: data (N, *shape) in the model's space; a missing value is NaN, or False in `observed`.
        observed: boolean, (N, *shape) or (*shape).
        modes: number of chains, each with networks of its own.
        average: number of networks averaged within each mode after its last step; 0 is plain iteration.
        steps: number of encodings and decodings of each chain.
        seed: seed of the noise and of the networks.
        value_range: range of the data, to which the initial noise is limited.
        shared_noise: start all modes from the same noise, so that they differ only in their networks (the authors'
            code).
        batch_size: number of samples at a time.
        progress: called with the number of samples done.
    """
    if modes < 1 or average < 0 or steps < 1:
        raise ValueError(f"expected modes >= 1, average >= 0 and steps >= 1, got {modes}, {average} and {steps}")
    if not len(x):
        raise ValueError("expected at least one sample to impute, got none")
    x = x.to(next(method.parameters()).dtype)
    known = ~x.isnan()
    if observed is not None:
        if observed.dtype != torch.bool:
            raise TypeError(f"expected a boolean mask (True: observed), got {observed.dtype}")
        known = known & observed.expand_as(x)
    if x[known].isinf().any():
        raise ValueError("observed values must be finite, got infinities")
    x = torch.where(known, x, torch.zeros_like(x))
    device, seeds = next(method.parameters()).device, iter(draw_seeds(seed, modes * steps + average))
    start = noise_like(x.expand(1 if shared_noise else modes, *x.shape), value_range, seed)
    start = start.to(x.dtype).expand(modes, *x.shape)
    batches = []
    for first in range(0, len(x), batch_size):
        part = slice(first, first + batch_size)
        batches.append(_Chain(x[part].to(device), known[part].to(device), start[:, part].to(device)))
    with evaluating(method, modes * min(batch_size, len(x))):
        for _ in range(steps):
            draws = method.draw([next(seeds) for _ in range(modes)])
            for batch in batches:
                batch.explore(method, draws)
        for _ in range(average):
            draws = method.draw([next(seeds)])
            for batch in batches:
                batch.refine(method, draws)
                if progress:
                    progress(len(batch.x))
    return _collect(batches)


class _Chain:
    """The modes of one batch during refinement."""

    def __init__(self, x: Tensor, known: Tensor, start: Tensor) -> None:
        self.x, self.known = x, known
        self.raw = self.state = self._paste(start)
        self.n, self.total = 0, torch.zeros_like(self.state)

    def explore(self, method: Method, draws: Draws) -> None:
        self.raw = _reconstruct(method, draws, self.state)
        self.state = self._paste(self.raw)

    def refine(self, method: Method, draws: Draws) -> None:
        """Apply one network to all modes and average it with the others."""
        flat = _reconstruct(method, draws, self.state.flatten(0, 1)[None])
        self.total += flat[0].unflatten(0, self.state.shape[:2])
        self.n += 1

    def finish(self) -> tuple[Tensor, Tensor]:
        """Return samples and reconstructions (M, B, *shape)."""
        raw = self.total / self.n if self.n else self.raw
        return self._paste(raw), raw

    def _paste(self, values: Tensor) -> Tensor:
        return torch.where(self.known, self.x, values)


def _reconstruct(method: Method, draws: Draws, x: Tensor) -> Tensor:
    return expected(method.likelihood, draws.decode(draws.encode(x))).expand(len(x), *x.shape[1:])


def noise_like(x: Tensor, value_range: tuple[float, float], seed: int) -> Tensor:
    """Return normal noise with the shape of x around the middle of a range, clipped to the range; on the CPU."""
    low, high = value_range
    noise = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
    return (0.5 * (low + high) + NOISE * (high - low) * noise).clamp_(low, high)


def _collect(batches: list[_Chain]) -> Imputation:
    samples, raw = zip(*([part.cpu() for part in batch.finish()] for batch in batches), strict=True)
    joined = torch.cat(samples, 1)
    known = torch.cat([batch.known.cpu() for batch in batches])
    var = joined.var(0) if len(joined) > 1 else torch.zeros_like(joined[0])
    # no rounding where observed
    mean, var = torch.where(known, joined[0], joined.mean(0)), var.masked_fill(known, 0)
    return Imputation(joined, mean, var, torch.cat(raw, 1))
