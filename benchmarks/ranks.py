"""Steps of one process and of two on the same batches, the all-reduce between them, and a plan for many GPUs.

    python benchmarks/ranks.py                 measure (two processes over gloo), write results/ranks.json
    python benchmarks/ranks.py --tables        the tables of benchmarks/ranks.md: what was measured, and the plan

One process and two take turns, so that a busy moment of the machine meets both. Kept are the shortest wall time of all
rounds, and the median over rounds of the processor time of a process: what a machine with other work on it disturbs
least. The first includes waiting for the other process, the second does not.

The model of a step on W processes, with b data and P weights on each:

    time = compute(b) + max(0, reduce(W, bytes) - overlap),   reduce(W, n) = 2 (W - 1) α + 2 (W - 1) / W · n / bandwidth

for a ring; bytes is 4 P for the gradient and 4 P / k for the curvature that is refreshed every k steps.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import socket
import statistics
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "ranks.json"
METHODS = {"ae": {}, "online": {}, "online, every 4": {"hessian_every": 4}}
WEIGHTS = 1_068_306
"""Of the paper's dense network for MNIST, which takes the steps."""
SIZES = [2**10, 2**14, 2**17, 2**20, 2**22]
"""Floats in an all-reduce."""


def worker(pipe: Any, place: dict[str, str]) -> None:
    """Answer requests for the time of steps and of all-reduces, as one process or as one of two."""
    os.environ |= place
    import torch
    from torch import distributed as dist

    from lapae.config import MethodConfig, TrainConfig
    from lapae.curvature.likelihoods import Gaussian
    from lapae.methods import build
    from lapae.train.distributed import take_place, together, world_size
    from lapae.train.step import LossSum, make_optimizer, make_step
    from lapae_paper.variants.networks import paper_mnist

    torch.set_num_threads(1)
    device = take_place(TrainConfig(device="cpu"))
    shape = (1, 28, 28)

    def make(name: str, rows: int) -> Any:
        config = MethodConfig.taking(name.split(",")[0], forgetting=1e-3, **METHODS[name])
        torch.manual_seed(0)
        method = build(config, lambda: paper_mnist(shape), Gaussian(), 55_000)
        optimizer = make_optimizer(method.train(), 1e-3, device)
        parts = (method, optimizer, together(torch.Generator().manual_seed(0)), LossSum(device))
        step = make_step(*parts, batch_size=rows, capture=False)
        x = torch.rand(rows // world_size(), *shape)
        return (lambda: step(x, rows)) if world_size() > 1 else (lambda: step(x))

    def reduce(size: int) -> Any:
        buffer = torch.ones(size)
        return lambda: dist.all_reduce(buffer.fill_(1.0))

    made: dict[Any, Any] = {}
    while (request := pipe.recv()) is not None:
        kind, what, rows, repeats = request
        call = made.get((kind, what, rows))
        if call is None:
            call = made[kind, what, rows] = make(what, rows) if kind == "step" else reduce(what)
            for _ in range(3):
                call()
        if world_size() > 1:
            dist.barrier()
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            call()
        pipe.send(((time.perf_counter() - wall) / repeats, (time.process_time() - processor) / repeats))


class Job:
    """One process, or two that work together."""

    def __init__(self, world_size: int) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.pipes, self.processes = [], []
        for rank in range(world_size):
            here, there = context.Pipe()
            place = {"OMP_NUM_THREADS": "1"}
            if world_size > 1:
                place |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "ranks"}
                place |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
                place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            process = context.Process(target=worker, args=(there, place), daemon=True)
            process.start()
            self.pipes.append(here)
            self.processes.append(process)

    def time(self, kind: str, what: Any, rows: int, repeats: int) -> tuple[float, float]:
        """Seconds a call by the clock and of a processor, of the slowest process."""
        for pipe in self.pipes:
            pipe.send((kind, what, rows, repeats))
        wall, processor = zip(*(pipe.recv() for pipe in self.pipes), strict=True)
        return max(wall), max(processor)

    def end(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


def measure(batch_sizes: list[int], rounds: int, repeats: int) -> dict[str, Any]:
    alone, pair = Job(1), Job(2)
    load = os.getloadavg()[0]
    reduces = []
    for size in SIZES:
        wall, processor = zip(*(pair.time("reduce", size, 0, 2 * repeats) for _ in range(2 * rounds)), strict=True)
        reduces.append({"floats": size, "wall_ms": 1e3 * min(wall), "processor_ms": 1e3 * statistics.median(processor)})
        print(reduces[-1])
    ring = {clock: fit(reduces, clock) for clock in ("wall_ms", "processor_ms")}
    print(ring)
    steps = []
    for rows in batch_sizes:
        for name, options in METHODS.items():
            times: dict[str, list[tuple[float, float]]] = {"one": [], "half": [], "two": []}
            for turn in range(rounds + 1):
                found = {
                    "one": alone.time("step", name, rows, repeats),
                    "half": alone.time("step", name, rows // 2, repeats),
                    "two": pair.time("step", name, rows, repeats),
                }
                if turn:  # the first is a warm-up
                    for key, value in found.items():
                        times[key].append(value)
            wall = {key: 1e3 * min(value[0] for value in values) for key, values in times.items()}
            processor = {key: 1e3 * statistics.median(value[1] for value in values) for key, values in times.items()}
            share = 0 if name == "ae" else 1 / options.get("hessian_every", 1)
            model = {
                clock: found["half"] + 1e3 * (1 + share) * (2 * line["alpha"] + 4 * WEIGHTS / line["bandwidth"])
                for (clock, line), found in zip(ring.items(), (wall, processor), strict=True)
            }
            row: dict[str, Any] = {
                "method": name,
                "batch": rows,
                "wall_ms": wall,
                "processor_ms": processor,
                "speedup_wall": wall["one"] / wall["two"],
                "speedup_processor": processor["one"] / processor["two"],
                "model_of_two": model,
            }
            steps.append(row)
            print(row)
    alone.end()
    pair.end()
    machine = {"cores": os.cpu_count(), "load before": load, "load after": os.getloadavg()[0], "threads a process": 1}
    versions = {"python": platform.python_version(), "torch": metadata.version("torch"), "backend": "gloo"}
    return {"machine": machine, "versions": versions, "reduces": reduces, "fit": ring, "steps": steps}


def fit(reduces: list[dict[str, float]], clock: str) -> dict[str, float]:
    """α (s) and the bandwidth (bytes/s) of a ring of two, T = 2 α + bytes / bandwidth, least relative errors."""
    seconds = np.array([row[clock] for row in reduces]) / 1e3
    columns = np.stack([np.full(len(reduces), 2.0), [4.0 * row["floats"] for row in reduces]], 1) / seconds[:, None]
    alpha, inverse = np.linalg.lstsq(columns, np.ones(len(reduces)), rcond=None)[0]
    largest = float(np.abs(columns @ [alpha, inverse] - 1).max())
    return {"alpha": float(alpha), "bandwidth": float(1 / inverse), "largest_error": largest}


def measured(results: dict[str, Any]) -> str:
    """The table of benchmarks/ranks.md about two processes: processor time of a step."""
    lines = [
        "| step | batch | one process | one, half the batch | each of two | model | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for step in results["steps"]:
        times = step["processor_ms"]
        cells = [f"{times[key]:.1f} ms" for key in ("one", "half", "two")]
        cells += [f"{step['model_of_two']['processor_ms']:.1f} ms", f"{step['speedup_processor']:.2f}"]
        lines.append(f"| {step['method']} | {step['batch']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


THROUGHPUT = "operations a second and GPU, T"
ASSUMED = {
    "GPUs a machine": 8,
    "bus bandwidth in a machine, GB/s": 350.0,
    "bandwidth between machines a GPU, GB/s": 45.0,
    "latency of a hop, µs": 10.0,
    THROUGHPUT: 50.0,
    "least time of an eager step, ms": 2.0,
    "data a GPU": 128,
}


def reduce_seconds(n_gpus: int, n_bytes: float, n_calls: float = 1.0) -> float:
    """In two levels: over the GPUs of a machine, then, an equal part a GPU, between machines; latency of a tree."""
    local = min(n_gpus, int(ASSUMED["GPUs a machine"]))
    machines = math.ceil(n_gpus / local)
    inside = 2 * (local - 1) / local * n_bytes / (1e9 * ASSUMED["bus bandwidth in a machine, GB/s"])
    share = n_bytes / local
    between = 2 * (machines - 1) / machines * share / (1e9 * ASSUMED["bandwidth between machines a GPU, GB/s"])
    return inside + between + n_calls * 2 * math.log2(n_gpus) * 1e-6 * ASSUMED["latency of a hop, µs"]


def plan() -> str:
    """The table of benchmarks/ranks.md about many GPUs: efficiency, which is compute over the time of a step."""
    lines = [
        "| weights | GPUs | reduced a step | all-reduce | plain DDP | online | online, k = 10 | online, nothing hidden "
        "| data a GPU for 90 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for weights in (1.07e6, 17.2e6, 100e6):
        operations = 10 * weights * ASSUMED["data a GPU"]  # forward 2, backward 4, curvature 4 a weight and datum
        online = max(operations / (1e12 * ASSUMED[THROUGHPUT]),
                     1e-3 * ASSUMED["least time of an eager step, ms"])  # fmt: skip
        plain = 0.6 * online
        backward = 0.4 * online
        for n_gpus in (8, 64, 256, 1000):

            def efficiency(compute: float, n_bytes: float, overlap: float, calls: float, n_gpus: int = n_gpus) -> str:
                step = compute + max(0.0, reduce_seconds(n_gpus, n_bytes, calls) - overlap)
                return f"{100 * compute / step:.0f} %"

            both = 8 * weights
            # compute / (compute + reduce - 0.4 compute) = 0.9, in operations
            needed = reduce_seconds(n_gpus, both, 2) / (1 / 0.9 - 0.6) * 1e12 * ASSUMED[THROUGHPUT]
            cells = [
                f"{weights / 1e6:.3g} M",
                f"{n_gpus:,}",
                f"{both / 1e6:,.0f} MB",
                f"{1e3 * reduce_seconds(n_gpus, both, 2):.2f} ms",
                efficiency(plain, both / 2, backward, 1),
                efficiency(online, both, backward, 2),
                efficiency(online, both * 0.55, backward, 1.1),
                efficiency(online, both, 0.0, 2),
                f"{math.ceil(needed / (10 * weights)):,}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.tables:
        print(measured(json.loads(arguments.out.read_text("utf-8"))), plan(), sep="\n\n")
        return
    found = measure(arguments.batch_sizes, arguments.rounds, arguments.repeats)
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
