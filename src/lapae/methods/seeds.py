"""Randomness as a pure function of the seed, the purpose and the epoch, so that resuming needs no generator's state."""

from __future__ import annotations

import hashlib

import torch


def derive_seed(seed: int, *what: str | int) -> int:
    """A seed of 63 bits for one purpose; different purposes give unrelated streams."""
    return int.from_bytes(hashlib.sha256(repr((seed, *what)).encode()).digest()[:8], "little") >> 1


def seed_all(
    seed: int,
    *what: str | int,
    generator: torch.Generator | None = None,
    own: torch.Generator | None = None,
    common: torch.Generator | None = None,
    rank: int = 0,
) -> None:
    """Seed torch's global generators (dropout, initial weights) and `generator` (what a method draws) for a purpose.

    Those of the process `rank` differ from those of others, and so does `own`; `generator` is the same on all, and so
    is `common`, which draws what the global generator of a process that trains alone does.
    """
    everywhere = derive_seed(seed, "global", *what, *((f"rank {rank}",) if rank else ()))
    if torch.cuda.is_initialized():
        torch.manual_seed(everywhere)
    else:  # the other leaves a note to every kind of device that there might be: milliseconds
        torch.default_generator.manual_seed(everywhere)
    if generator is not None:
        generator.manual_seed(derive_seed(seed, "method", *what))
    if own is not None:
        own.manual_seed(derive_seed(seed, "own", *what, rank))
    if common is not None:
        common.manual_seed(derive_seed(seed, "global", *what))
