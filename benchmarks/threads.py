"""Training steps and predictions with one torch thread and with several: what they gain, by the size of the network.

    python benchmarks/threads.py --threads 2 8 --note "16 quiet cores"      measure; print the table
    python benchmarks/threads.py --busy 2 --threads 2                       with two processes beside it that compute

The work of a pass is weights times rows: multiply-adds of a dense network. One thread and several take turns; the
shortest time of all rounds counts, or with --busy the median.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from lapae.config import MethodConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.methods import build
from lapae.methods.step import StepContext
from lapae.networks import conv, mlp
from lapae.predict import predict
from lapae.train.step import LossSum, make_optimizer, make_step

NETWORKS = {
    "dense 20-64-32-2": ((20,), lambda: mlp((20,), 2, hidden=(64, 32))),
    "dense 64-128-64-2": ((64,), lambda: mlp((64,), 2, hidden=(128, 64))),
    "dense 200-256-128-4": ((200,), lambda: mlp((200,), 4, hidden=(256, 128))),
    "dense 784-512-256-2": ((784,), lambda: mlp((784,), 2, hidden=(512, 256))),
    "conv 1x8x8": ((1, 8, 8), lambda: conv((1, 8, 8), 2)),
}
BATCHES = (32, 128, 512)


def make(kind: str, name: str, rows: int) -> tuple[Callable[[], object], int]:
    """A call to measure and the number of weights of its network."""
    shape, network = NETWORKS[name]
    torch.manual_seed(0)
    method = build(MethodConfig("online"), network, Gaussian(), 1000).train()
    x = torch.rand(rows, *shape)
    n_weights = sum(p.numel() for p in method.parameters())
    if kind == "predict":
        return lambda: predict(method, x, n_samples=20, batch_size=rows), n_weights
    device = torch.device("cpu")
    context = StepContext(torch.Generator().manual_seed(0))
    step = make_step(method, make_optimizer(method, 1e-3, device), context, LossSum(device), batch_size=rows)
    return lambda: step(x), n_weights


def seconds(call: Callable[[], object], threads: int, budget: float) -> float:
    """Of a call, by as many of them as take about `budget` seconds."""
    torch.set_num_threads(threads)
    began = time.perf_counter()
    call()
    n = max(1, int(budget / max(time.perf_counter() - began, 1e-5)))
    began = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - began) / n


def compute_for_ever() -> None:
    torch.set_num_threads(1)
    x = torch.rand(400, 400)
    while True:
        x = (x @ x).tanh_()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--kinds", nargs="+", default=["step", "predict"])
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside the measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.05, help="seconds of a measurement")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()

    others = [multiprocessing.Process(target=compute_for_ever, daemon=True) for _ in range(arguments.busy)]
    for other in others:
        other.start()
    summary = statistics.median if arguments.busy else min
    columns = [1, *arguments.threads]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.busy} busy, torch {torch.__version__}")
    print("| what | network | rows | work | one thread | " + " | ".join(f"{n}, ratio" for n in columns[1:]) + " |")
    print("|---|---|---|---|---|" + "---|" * (len(columns) - 1))
    found = []
    for kind in arguments.kinds:
        for name in NETWORKS:
            for rows in BATCHES:
                call, n_weights = make(kind, name, rows)
                times: dict[int, list[float]] = {n: [] for n in columns}
                for _ in range(arguments.rounds):
                    for n in columns:
                        times[n].append(seconds(call, n, arguments.budget))
                ms = {n: 1e3 * summary(values) for n, values in times.items()}
                work = n_weights * rows
                found.append({"what": kind, "network": name, "rows": rows, "work": work, "ms": ms})
                ratios = " | ".join(f"{ms[n] / ms[1]:.2f}" for n in columns[1:])
                print(f"| {kind} | {name} | {rows} | {work:.1e} | {ms[1]:.3f} ms | {ratios} |", flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    for other in others:
        other.kill()


if __name__ == "__main__":
    main()
