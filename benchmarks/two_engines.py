"""The two engines of the curvature side by side: layers walked by their rules, and gradients per datum of any module.

Both work on the same network in one process with one thread, taking turns; the table has medians. See two_engines.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
from torch import nn

from lapae.curvature import any_module, blocks, diagonal, kfac, walk
from lapae.curvature.call import work
from lapae.curvature.ggn import MEMORY_BUDGET
from lapae.curvature.likelihoods import Gaussian
from lapae.networks.builtin import mlp
from lapae_paper.bench.measure import take_turns
from lapae_paper.variants.networks import paper_fashion, paper_mnist

BUDGET = MEMORY_BUDGET // 4
"""In numbers of four bytes."""
METHODS = ("exact", "mc", "kfac", "bottleneck", "block")
SECONDS = 10.0


def convolutions(side: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Five 3x3 convolutions of three channels."""
    layers = [layer for _ in range(5) for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.Tanh())]
    return nn.Sequential(*layers[:-1]), (3, side, side)


NETWORKS: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[int, ...]]], dict[str, int]]] = {
    "dense MNIST": (lambda: (paper_mnist((784,)), (784,)), dict.fromkeys(("exact", "mc", "kfac", "bottleneck"), 64)),
    "dense 64-32-16-2": (lambda: (mlp((64,), 2, hidden=(32, 16)), (64,)), dict.fromkeys(METHODS, 64)),
    "conv FashionMNIST": (lambda: (paper_fashion(), (1, 28, 28)), {"exact": 4, "mc": 64, "kfac": 64, "bottleneck": 64}),
    "5 convolutions, 16x16": (lambda: convolutions(16), dict.fromkeys(("exact", "mc", "kfac", "block"), 8)),
    "5 convolutions, 32x32": (lambda: convolutions(32), dict.fromkeys(("exact", "mc", "kfac", "block"), 8)),
}
"""Networks, and the batch for each method. Blocks of the paper's networks do not fit into any memory."""


def walked(module: nn.Module, x: torch.Tensor, method: str) -> object:
    """By rules, the forward pass included."""
    with torch.no_grad():
        forward = walk(module, x, lean=True)
    if method == "kfac":
        return kfac(forward, Gaussian())
    return blocks(forward, Gaussian()) if method == "block" else diagonal(forward, Gaussian(), method)  # pyright: ignore


@torch.no_grad()
def per_datum(module: nn.Module, x: torch.Tensor, method: str) -> object:
    """By gradients per datum, the forward pass included."""
    task, likelihood, sampling = work(module, x), Gaussian(), (1, None)
    if method == "kfac":
        return any_module.kfac(task, likelihood, sampling, BUDGET)
    if method == "block":
        return any_module.blocks(task, likelihood, BUDGET)
    if method == "bottleneck":
        return any_module.bottleneck(task, likelihood, None, sampling, BUDGET)
    return any_module.diagonal(task, likelihood, sampling if method == "mc" else None, BUDGET)


def row(name: str, method: str, n_data: int) -> str:
    """A row of the table: medians of both, and their ratio."""
    torch.manual_seed(0)
    module, shape = NETWORKS[name][0]()
    x = torch.rand(n_data, *shape)
    works = {"walked": lambda: walked(module, x, method), "any": lambda: per_datum(module, x, method)}
    a, b = (statistics.median(times) for times in take_turns(works, SECONDS).values())
    return f"| {name} | {method} | {n_data} | {1e3 * a:.1f} ms | {1e3 * b:.1f} ms | {b / a:.2f} |"


def main(only: tuple[str, ...]) -> None:
    """All methods, or those named."""
    torch.set_num_threads(1)
    print("| network | method | batch | walked | any module | ratio |\n|---|---|---|---|---|---|", flush=True)
    for name, (_, batches) in NETWORKS.items():
        for method, n_data in batches.items():
            if method in (only or METHODS):
                print(row(name, method, n_data), flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
