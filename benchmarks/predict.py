"""Cost of the predictives on the dense MNIST network, 1,000 inputs, in plain forward passes of the same network.

    python benchmarks/predict.py --threads 2

100 sampled networks against 100 plain forward passes, `moments` against one; ratios of neighbours in time, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from lapae.config import MethodConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.methods import build
from lapae.predict import predict
from lapae_paper.variants.networks import paper_mnist


def seconds(f: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    f()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    method = build(MethodConfig(hessian="approx", forgetting=1e-3), paper_mnist, Gaussian(), 55_000).to(args.device)
    x = torch.rand(1000, 1, 28, 28, device=args.device)

    @torch.no_grad()
    def plain(n: int) -> None:
        for _ in range(n):
            method.network(x)

    runs: dict[str, tuple[Callable[[], object], int]] = {
        "mc, 100 networks, mean and variance": (lambda: predict(method, x, want=("codes", "outputs")), 100),
        "mc, 100 networks, everything": (lambda: predict(method, x), 100),
        "moments": (lambda: predict(method, x, predictive="moments", batch_size=1000), 1),
    }
    for name, (run, n) in runs.items():
        repeat = 1 if n > 1 else 20
        plain(3), run()
        ratios = []
        for _ in range(args.rounds):
            mine = min(seconds(run) for _ in range(repeat))
            ratios.append(mine / min(seconds(partial(plain, n)) for _ in range(repeat)))
        spread = f"(rounds: {min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:<40} {statistics.median(ratios):5.2f} x {n} plain forward passes  {spread}")


if __name__ == "__main__":
    main()
