"""How many threads of torch a network is worth on a CPU.

Several threads share every operation and wait for each other at its end. In a small network an operation takes a few
microseconds: several threads then gain nothing on an idle machine and, on a busy one, wait for whoever is not running,
up to thirty times as long as the whole takes with one thread (benchmarks/threads.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

SMALL = 2e7
"""Multiply-adds of a pass below which one thread is as fast as several, as measured."""
POSITIONS = 64
"""Places at which a convolution applies its kernel, at least: 8 by 8 pixels."""


def multiply_adds(module: nn.Module, rows: int) -> int:
    """Of a pass of `rows` data, about: each weight once per datum, that of a convolution once per position."""
    return rows * sum(p.numel() * (POSITIONS if p.ndim > 2 else 1) for p in module.parameters())


@contextmanager
def few_threads(module: nn.Module, rows: int) -> Iterator[None]:
    """One thread of torch while passes of `rows` data through `module` are small; as many as before at the end."""
    on_cpu = all(p.device.type == "cpu" for p in module.parameters())
    with one_thread(when=on_cpu and multiply_adds(module, rows) < SMALL):
        yield


@contextmanager
def one_thread(*, when: bool = True) -> Iterator[None]:
    """One thread of torch; as many as before at the end."""
    before = torch.get_num_threads()
    if before == 1 or not when:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
