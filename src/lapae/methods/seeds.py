"""Random seeds as a function of the run's seed, the purpose and the epoch, so that resuming needs no generator
state."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, *what: str | int) -> int:
    """Return a seed of 63 bits for one purpose; different purposes give unrelated streams."""
    return int.from_bytes(hashlib.sha256(repr((seed, *what)).encode()).digest()[:8], "little") >> 1


def seed_all(
    seed: int,
    *what: str | int,
    generator: torch.Generator | None = None,
    own: torch.Generator | None = None,
    common: torch.Generator | None = None,
    rank: int = 0,
) -> None:
    """Seed the random generators for one purpose.

    Args:
        seed: the seed of the run.
        what: the purpose, such as ("train", epoch).
        generator: draws the noise of a method, the same on all processes.
        own: draws noise that differs between processes.
        common: draws on all processes the same numbers as the global generator of a single process.
        rank: this process. torch's global generators (initial weights, dropout) differ between processes.
    """
    everywhere = derive_seed(seed, "global", *what, *((f"rank {rank}",) if rank else ()))
    if torch.cuda.is_initialized():
        torch.manual_seed(everywhere)
    else:  # torch.manual_seed looks at every kind of device that there might be: milliseconds
        torch.default_generator.manual_seed(everywhere)
    if generator is not None:
        generator.manual_seed(derive_seed(seed, "method", *what))
    if own is not None:
        own.manual_seed(derive_seed(seed, "own", *what, rank))
    if common is not None:
        common.manual_seed(derive_seed(seed, "global", *what))
