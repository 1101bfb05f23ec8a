"""Number of torch threads that a network needs on a CPU.

Several threads share every operation and wait for each other at its end. In a small network an operation takes a few
microseconds: several threads gain nothing on an idle machine and, on a busy one, wait for a thread that is not running,
up to thirty times as long as the whole takes with one thread (benchmarks/threads.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

SMALL_PASS = 2e7
"""Multiply-adds of a pass below which one thread is as fast as several (benchmarks/threads.md)."""
POSITIONS = 64
"""Smallest number of positions at which a convolution applies its kernel: 8 by 8 pixels."""


def multiply_adds(module: nn.Module, rows: int) -> int:
    """Estimate the multiply-adds of a pass of `rows` samples; a convolution uses its weights at `POSITIONS`."""
    return rows * sum(p.numel() * (POSITIONS if p.ndim > 2 else 1) for p in module.parameters())


@contextmanager
def few_threads(module: nn.Module, rows: int) -> Iterator[None]:
    """Use one torch thread if passes of `rows` samples through `module` are small; restore the number at the end."""
    if torch.get_num_threads() == 1:  # counting weights takes longer than a small pass
        yield
        return
    on_cpu = all(p.device.type == "cpu" for p in module.parameters())
    with one_thread(when=on_cpu and multiply_adds(module, rows) < SMALL_PASS):
        yield


@contextmanager
def one_thread(*, when: bool = True) -> Iterator[None]:
    """Use one torch thread; restore the number of threads at the end."""
    before = torch.get_num_threads()
    if before == 1 or not when:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
