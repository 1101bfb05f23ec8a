"""Normal numbers, drawn fast: drawing a million per step costs a CPU core more than the forward and backward pass.

On a CPU they are drawn in chunks of fixed size, each from a generator seeded for it, by as many threads as torch uses:
the numbers depend only on the seed, not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

CHUNK = 1 << 17
"""Numbers from one generator."""


def fill_normal(rows: Tensor, seeds: Sequence[int]) -> Tensor:
    """Fill rows with standard normal numbers in place.

    Args:
        rows: (n, P).
        seeds: one per row.

    Returns:
        The rows.
    """
    if rows.device.type != "cpu":
        generator = torch.Generator(rows.device)
        for row, seed in zip(rows, seeds, strict=True):
            row.normal_(generator=generator.manual_seed(seed))
        return rows
    tasks = [
        (chunk, seed + 0x9E3779B97F4A7C15 * i & 0x7FFFFFFFFFFFFFFF)  # chunks of a row far apart from those of the next
        for row, seed in zip(rows, seeds, strict=True)
        for i, chunk in enumerate(row.split(CHUNK))
    ]
    n_threads = torch.get_num_threads()
    if n_threads == 1 or len(tasks) == 1:
        for task in tasks:
            _fill(task)
    else:
        list(_pool(n_threads).map(_fill, tasks))
    return rows


def _fill(task: tuple[Tensor, int]) -> None:
    chunk, seed = task
    # The Mersenne twister reads the low 32 bits: fold the others in.
    chunk.normal_(generator=torch.Generator().manual_seed((seed ^ seed >> 32) & 0xFFFFFFFF))


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, "lapae-noise")


def normal(like: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Draw standard normal numbers.

    Args:
        like: a tensor of the device and dtype wanted.
        n: how many.
        generator: source of randomness; torch's own by default.

    Returns:
        (n,).
    """
    if like.device.type != "cpu":  # from the generator itself: this may be captured in a CUDA graph
        return torch.randn(n, generator=generator, device=like.device, dtype=like.dtype)
    seed = int(torch.randint(2**62, (), generator=generator))
    return fill_normal(torch.empty(1, n, dtype=like.dtype), [seed])[0]
