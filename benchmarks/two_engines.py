"""The two backward passes of the curvature side by side: by the rules of layers, and by gradients per sample.

Both work on the same network in one process with one thread, taking turns; the table has medians. See two_engines.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
from torch import nn

from lapae.curvature import Forward, blocks, diagonal, kfac, walk
from lapae.curvature.call import Work, work
from lapae.curvature.likelihoods import Gaussian
from lapae.networks.builtin import mlp
from lapae_paper.bench.measure import take_turns
from lapae_paper.variants.networks import paper_fashion, paper_mnist

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
        return curvature(walk(module, x, lean=True), method)


def per_sample(module: nn.Module, x: torch.Tensor, method: str) -> object:
    """By gradients per sample, the forward pass included."""
    return curvature(work(module, x), method)


def curvature(forward: Forward | Work, method: str) -> object:
    """One method over either backward pass."""
    if method == "kfac":
        return kfac(forward, Gaussian())
    return blocks(forward, Gaussian()) if method == "block" else diagonal(forward, Gaussian(), method)  # pyright: ignore


def row(name: str, method: str, n_data: int) -> str:
    """A row of the table: medians of both, and their ratio."""
    torch.manual_seed(0)
    module, shape = NETWORKS[name][0]()
    x = torch.rand(n_data, *shape)
    works = {"walked": lambda: walked(module, x, method), "any": lambda: per_sample(module, x, method)}
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
