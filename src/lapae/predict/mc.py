"""The Monte Carlo predictive: statistics of codes and reconstructions over networks drawn from a method.

Samples are processed in blocks; for each block, chunks of draws are the outer loop and batches the inner one, so that
the networks of a chunk are drawn once per block.

Shapes: N samples, S draws, K latent dimensions; x is (N, *shape), in the model's space.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from lapae.curvature.chunking import within_memory
from lapae.methods.base import Method
from lapae.networks.adapt import in_eval_mode
from lapae.networks.threads import few_threads
from lapae.predict.prediction import Inputs, Prediction, Progress, Quantity, batches, check_quantities, join
from lapae.predict.statistics import Statistics


def draw_seeds(seed: int, n_draws: int) -> list[int]:
    """Return seeds of n draws: consecutive, so that members of an ensemble take turns, and apart for other `seed`s."""
    start = seed * 2654435761 % 2**31  # torch's CPU generator reads the low 32 bits only
    return list(range(start, start + n_draws))


def n_distinct(method: Method, n_samples: int) -> int:
    """Return the number of draws to make for `n_samples`: some methods have fewer different ones."""
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: expected at least 1")
    if not method.stochastic:
        return 1
    return n_samples if method.distinct_draws is None else min(n_samples, method.distinct_draws)


@contextmanager
def evaluating(method: Method, rows: int | None = None) -> Generator[None]:
    """Turn off gradients, set evaluation mode and the number of threads for `rows` samples; restore all at the end."""
    threads = nullcontext() if rows is None else few_threads(method, rows)
    with in_eval_mode(method), torch.no_grad(), threads:
        yield


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
    at_mean: bool = False,
) -> Iterator[Prediction]:
    """Yield statistics over `n_samples` networks, for one block of at most `block_elements` input elements at a time.

    Up to rounding, the result does not depend on `draws_at_once` (nor on `batch_size`, for methods that draw weights).

    Args:
        method: the trained method.
        x: samples (N, *shape) in the model's space, or batches of them.
        n_samples: number of networks drawn.
        seed: seed of the draws, which are those of `draw_seeds(seed, n_samples)`.
        want: the quantities to compute.
        batch_size: samples per batch.
        draws_at_once: networks at a time; default: as many as fit.
        block_elements: maximum number of input elements per block.
        progress: called with the number of (network, sample) pairs done.
        at_mean: return mean codes and reconstructions of the network at the mean weights, instead of means over draws.
    """
    check_quantities(want)
    seeds = draw_seeds(seed, n_distinct(method, n_samples))
    wanted, most = frozenset(want), None
    for block in _blocks(x, batch_size, block_elements):
        largest = max(map(len, block))
        planned = largest * min(draws_at_once or _draws_at_once(method, block[0]), len(seeds))
        found, pairs = within_memory(
            lambda pairs, block=block: _block(method, block, seeds, wanted, pairs, progress, at_mean),
            min(planned, most or planned),
            "a prediction (networks times samples)",
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
    at_mean: bool = False,
) -> Prediction:
    """Predict one block with at most `pairs` (network, sample) pairs at once: fewer networks first, then samples."""
    weight = next(method.parameters())
    largest = max(map(len, block))
    if pairs < largest:  # each on its own: neither do the statistics of the others fill the memory
        parts = [part for batch in block for part in batch.split(pairs)]
        return join([_block(method, [part], seeds, want, len(part), progress, at_mean) for part in parts])
    statistics = [Statistics(method.likelihood, x.to(weight.device, weight.dtype), want) for x in block]
    chunk = pairs // largest
    done = 0
    try:
        with evaluating(method, pairs):
            for start in range(0, len(seeds), chunk):
                part = seeds[start : start + chunk]
                draws = method.draw(part)
                for batch in statistics:
                    batch.add(draws, len(part))
                    done += len(part) * len(batch.x)
                    if progress:
                        progress(len(part) * len(batch.x))
            center = method.draw_mean() if at_mean else None
            return join([batch.finish(center) for batch in statistics])
    except (MemoryError, RuntimeError):
        if progress:
            progress(-done)  # it is done again
        raise


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
    """Return the number of networks that keeps the outputs and weights of a chunk small.

    On a CPU well below 32 MB: larger blocks of memory are returned to the system and faulted in again at every use.
    """
    device = next(method.parameters()).device
    outputs, weights = (2**21, 2**22) if device.type == "cpu" else (2**27, 2**30)
    n_weights = sum(p.numel() for p in method.parameters())
    return max(1, min(outputs // max(batch.numel(), 1), weights // max(n_weights, 1)))
