"""The Monte Carlo predictive: statistics of codes and reconstructions over networks drawn from a method.

Data go by in blocks; for each block, chunks of draws are the outer loop and batches of data the inner one, so that a
chunk's networks are drawn once a block. Means and squared deviations are merged chunk by chunk (Chan et al. 1979) and
densities by log-sum-exp, so that memory does not grow with the number of draws.

Shapes: N data, S draws, K latent dimensions; x is (N, *shape), in the model's space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from lapae.memory import within_memory
from lapae.methods.base import Draws, Method, Output
from lapae.methods.density import log_prob
from lapae.models import Gaussian, Likelihood

Quantity = Literal["codes", "covariance", "outputs", "density", "error"]
QUANTITIES: tuple[Quantity, ...] = ("codes", "covariance", "outputs", "density", "error")


@runtime_checkable
class Epochs(Protocol):
    """Batches that can be gone through in order (`lapae.data.Batches`)."""

    def epoch(self, epoch: int = 0) -> Iterator[Tensor]:
        """Tensors (B, *shape)."""
        ...


Inputs = Tensor | Epochs | Iterable[Tensor]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Prediction:
    """What the draws say about N data, on the CPU; None for what was not asked for.

    Variances are over networks (unbiased; zero for a single one). The noise of the data around a network's output is
    kept apart in `x_noise`.
    """

    n_draws: int
    """How many different networks were used."""
    z_mean: Tensor | None = None
    """(N, K), "codes"."""
    z_var: Tensor | None = None
    """(N, K), "codes"."""
    z_cov: Tensor | None = None
    """(N, K, K), "covariance"."""
    x_mean: Tensor | None = None
    """(N, *shape), "outputs": mean of the expected data."""
    x_var: Tensor | None = None
    """(N, *shape), "outputs"."""
    x_noise: Tensor | None = None
    """(N, *shape), "outputs": mean variance of the data given a network, learned or that of the likelihood."""
    x_learned: bool = False
    """Whether `x_noise` was learned by the method."""
    log_likelihood: Tensor | None = None
    """(N,), "density": log of the mean over networks of p(x | network)."""
    mean_log_likelihood: Tensor | None = None
    """(N,), "density": mean over networks of log p(x | network)."""
    squared_error: Tensor | None = None
    """(N,), "error": squared error summed over features, a mean over networks (the paper's "-log p")."""
    squared_error_of_mean: Tensor | None = None
    """(N,), "error" with "outputs": squared error of the mean reconstruction (the paper's "MSE")."""


def draw_seeds(seed: int, n_draws: int) -> list[int]:
    """Seeds of n draws: consecutive, so that an ensemble's members take turns, and apart for different `seed`s."""
    start = seed * 2654435761 % 2**31  # torch's CPU generator reads the low 32 bits only
    return list(range(start, start + n_draws))


def n_distinct(method: Method, n_samples: int) -> int:
    """How many draws to make where `n_samples` are asked for and some methods have fewer different ones."""
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: expected at least 1")
    if not method.stochastic:
        return 1
    return n_samples if method.distinct_draws is None else min(n_samples, method.distinct_draws)


@contextmanager
def evaluating(method: Method) -> Iterator[None]:
    """No gradients and evaluation mode; every module gets its own mode back."""
    modes = [(module, module.training) for module in method.modules()]
    method.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def predict_blocks(
    method: Method,
    x: Inputs,
    *,
    n_samples: int = 100,
    seed: int = 0,
    want: Collection[Quantity] = ("codes", "outputs", "density", "error"),
    batch_size: int = 512,
    draws_at_once: int | None = None,
    block_elements: int = 2**26,
    progress: Progress | None = None,
) -> Iterator[Prediction]:
    """Statistics over `n_samples` networks, for a block of at most `block_elements` input elements at a time.

    `want` names what to compute. The draws are those of `draw_seeds(seed, n_samples)`, and the result does not depend
    on `draws_at_once` but for rounding (nor on `batch_size`, for methods that draw weights). `progress` is called with
    the number of (network, datum) pairs done.
    """
    check_quantities(want)
    seeds = draw_seeds(seed, n_distinct(method, n_samples))
    wanted, most = frozenset(want), None
    for block in _blocks(x, batch_size, block_elements):
        largest = max(map(len, block))
        planned = largest * min(draws_at_once or _draws_at_once(method, block[0]), len(seeds))
        found, pairs = within_memory(
            lambda pairs, block=block: _block(method, block, seeds, wanted, pairs, progress),
            min(planned, most or planned),
            "a prediction (networks times data)",
            "device cpu, or a machine with more memory",
        )
        most = pairs if pairs < planned else most  # what did not fit once is not tried with every block
        yield found


def _block(
    method: Method,
    block: list[Tensor],
    seeds: list[int],
    want: frozenset[str],
    pairs: int,
    progress: Progress | None = None,
) -> Prediction:
    """One block with at most `pairs` (network, datum) pairs at once: fewer networks first, then fewer data."""
    weight = next(method.parameters())
    largest = max(map(len, block))
    if pairs < largest:  # each on its own: neither do the statistics of the others fill the memory
        parts = [part for batch in block for part in batch.split(pairs)]
        return join([_block(method, [part], seeds, want, len(part), progress) for part in parts])
    statistics = [_Statistics(method.likelihood, x.to(weight.device, weight.dtype), want) for x in block]
    chunk = pairs // largest
    done = 0
    try:
        with evaluating(method):
            for start in range(0, len(seeds), chunk):
                part = seeds[start : start + chunk]
                draws = method.draw(part)
                for batch in statistics:
                    batch.add(draws, len(part))
                    done += len(part) * len(batch.x)
                    if progress:
                        progress(len(part) * len(batch.x))
            return _joined([batch.finish() for batch in statistics], len(seeds))
    except (MemoryError, RuntimeError):
        if progress:
            progress(-done)  # it is done again
        raise


def join(parts: Sequence[Prediction]) -> Prediction:
    """Predictions for some data after another as one."""
    joined = {}
    for field in fields(Prediction):
        values = [getattr(part, field.name) for part in parts]
        joined[field.name] = torch.cat(values) if isinstance(values[0], Tensor) else values[0]
    return Prediction(**joined)


def check_quantities(want: Collection[Quantity]) -> None:
    """ValueError where something is asked for that is no `Quantity`."""
    unknown = set(want) - set(QUANTITIES)
    if unknown:
        raise ValueError(f"cannot predict {', '.join(sorted(unknown))}: expected some of {', '.join(QUANTITIES)}")


class _Moments:
    """Running mean and sum of squared deviations (or outer products of deviations) over draws."""

    def __init__(self, outer: bool = False) -> None:
        self.n = 0
        self.outer = outer

    def add(self, values: Tensor) -> None:
        """Take in a chunk (S, B, ...)."""
        n, mean = len(values), values.mean(0)
        spread = self._product(values - mean).sum(0)
        if self.n == 0:
            self.n, self.mean, self.spread = n, mean, spread
            return
        shift = mean - self.mean
        total = self.n + n
        self.mean += shift * (n / total)
        self.spread += spread.add_(self._product(shift), alpha=self.n * n / total)
        self.n = total

    def _product(self, deviation: Tensor) -> Tensor:
        """Of a tensor that nobody else holds: in place where possible, as fresh memory costs more than the sum."""
        return deviation[..., :, None] * deviation[..., None, :] if self.outer else deviation.square_()

    @property
    def variance(self) -> Tensor:
        """Unbiased; zero for a single draw."""
        return self.spread / max(self.n - 1, 1)


class _Statistics:
    """Everything asked for about one batch."""

    def __init__(self, likelihood: Likelihood, x: Tensor, want: frozenset[str]) -> None:
        self.likelihood, self.x, self.want = likelihood, x, want
        self.codes = _Moments(outer="covariance" in want)
        self.outputs = _Moments()
        self.noise: Tensor | float = 0.0
        self.learned = False
        self.log_sum = x.new_full((len(x),), -math.inf)
        self.log_total = x.new_zeros(len(x))
        self.error = x.new_zeros(len(x))
        self.n = 0

    def add(self, draws: Draws, n_draws: int) -> None:
        """Run the networks of a chunk and take in what they say."""
        z = _check(draws.encode(self.x[None]), n_draws, "codes")
        self.n += n_draws
        if {"codes", "covariance"} & self.want:
            self.codes.add(z)
        if not {"outputs", "density", "error"} & self.want:
            return
        output = draws.decode(z)
        _check(output.loc, n_draws, "outputs")
        if "density" in self.want:
            terms = log_prob(self.likelihood, output, self.x)
            self.log_sum = torch.logaddexp(self.log_sum, terms.logsumexp(0))
            self.log_total += terms.sum(0)
        if {"outputs", "error"} & self.want:
            mean = expected(self.likelihood, output)
            if "error" in self.want:
                self.error += (mean - self.x).square().flatten(2).nansum(2).sum(0)  # of what is observed
            if "outputs" in self.want:
                self.outputs.add(mean)
                self.learned = output.var is not None
                noise = noise_variance(self.likelihood, output)
                self.noise = self.noise + (noise.sum(0) if isinstance(noise, Tensor) else noise * n_draws)

    def finish(self) -> dict[str, Tensor | bool]:
        """The fields of a `Prediction`."""
        out: dict[str, Tensor | bool] = {}
        if self.codes.n:
            variance = self.codes.variance
            if "covariance" in self.want:
                out["z_cov"] = variance
                variance = variance.diagonal(dim1=-2, dim2=-1)
            if "codes" in self.want:
                out |= {"z_mean": self.codes.mean, "z_var": variance}
        if "outputs" in self.want:
            mean = self.outputs.mean
            noise = self.noise / self.n
            out |= {"x_mean": mean, "x_var": self.outputs.variance, "x_learned": self.learned}
            out["x_noise"] = noise if isinstance(noise, Tensor) else torch.full_like(mean, noise)
        if "density" in self.want:
            out["log_likelihood"] = self.log_sum - math.log(self.n)
            out["mean_log_likelihood"] = self.log_total / self.n
        if "error" in self.want:
            out["squared_error"] = self.error / self.n
            if "outputs" in self.want:
                out["squared_error_of_mean"] = (self.outputs.mean - self.x).square().flatten(1).nansum(1)
        return out


def expected(likelihood: Likelihood, output: Output) -> Tensor:
    """Expected data under each network: (S, B, *shape)."""
    if isinstance(likelihood, Gaussian):
        return output.loc
    return likelihood.mean(output.loc.flatten(0, 1)).unflatten(0, output.loc.shape[:2])


def noise_variance(likelihood: Likelihood, output: Output) -> Tensor | float:
    """Variance of the data given the network: learned, or that of the likelihood (a number where it is constant)."""
    if output.var is not None:
        return output.var
    if isinstance(likelihood, Gaussian):
        return likelihood.sigma**2
    # in the other exponential families the Hessian in the natural parameter is the variance
    return likelihood.hessian_diag(output.loc.flatten(0, 1)).unflatten(0, output.loc.shape[:2])


def _check(values: Tensor, n_draws: int, what: str) -> Tensor:
    if len(values) != n_draws:
        raise ValueError(f"asked for {n_draws} draws and got {what} of shape {tuple(values.shape)}")
    return values


def batches(x: Inputs, batch_size: int) -> Iterable[Tensor]:
    """The data of x in order, in tensors (B, *shape)."""
    if isinstance(x, Tensor):
        return x.split(batch_size) if len(x) else ()
    return x.epoch(0) if isinstance(x, Epochs) else x


def _blocks(x: Inputs, batch_size: int, block_elements: int) -> Iterator[list[Tensor]]:
    block: list[Tensor] = []
    for batch in batches(x, batch_size):
        if block and sum(b.numel() for b in block) + batch.numel() > block_elements:
            yield block
            block = []
        block.append(batch)
    if block:
        yield block


def _draws_at_once(method: Method, batch: Tensor) -> int:
    """As many networks as keep a chunk's outputs and weights small.

    On a CPU well below 32 MB: larger blocks of memory are given back and faulted in anew at every use.
    """
    device = next(method.parameters()).device
    outputs, weights = (2**21, 2**22) if device.type == "cpu" else (2**27, 2**30)
    n_weights = sum(p.numel() for p in method.parameters())
    return max(1, min(outputs // max(batch.numel(), 1), weights // max(n_weights, 1)))


def _joined(parts: list[dict[str, Tensor | bool]], n_draws: int) -> Prediction:
    joined: dict[str, Tensor | bool] = {}
    for name, value in parts[0].items():
        same = [part[name] for part in parts]
        joined[name] = (
            torch.cat([v for v in same if isinstance(v, Tensor)]).cpu() if isinstance(value, Tensor) else value
        )
    return Prediction(n_draws=n_draws, **joined)  # pyright: ignore[reportArgumentType]
