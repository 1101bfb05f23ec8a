"""The sketch on a GPU: time and memory of an online step beside the others, and its error per layer.

    python benchmarks/sketch_gpu.py --out results            # about five minutes on an H200

Three tables, and all numbers in sketch_gpu.json under `--out` (or $OUT):

1. milliseconds of a training step, captured as a CUDA graph, and its peak of memory, eager, on the paper's networks;
2. relative error and ratio of sums per layer against the exact diagonal, FashionMNIST's network after some training;
3. the same of CelebA's network, against the mean of 100 sampled vectors per datum, as exact takes too long there.

Data are made here (blobs of random place, size and colour): what is compared are methods on the same network.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapae.config import NETWORKS, MethodConfig
from lapae.curvature import ggn_diagonal
from lapae.curvature.likelihoods import Gaussian
from lapae.methods import build
from lapae.methods.laplace import Laplace
from lapae.methods.step import StepContext
from lapae_paper.bench.train import SHAPES, TrainBench, make
from lapae_paper.bench.train import run as run_train

STEPS = ("online:approx", "online:mc", "online:sketch", "online:bottleneck")
ESTIMATES: dict[str, dict[str, Any]] = {
    "approx": {"method": "approx"},
    "bottleneck": {"method": "bottleneck", "bottleneck": "encoder"},
    "mc": {"method": "mc"},
    "sketch": {"method": "sketch"},
    "sketch(10)": {"method": "sketch", "n_samples": 10},
}


def blobs(n: int, shape: tuple[int, ...], device: torch.device, seed: int = 0) -> Tensor:
    """Images with three soft blobs each, in [0, 1]: (n, C, H, W)."""
    generator = torch.Generator(device).manual_seed(seed)
    channels, height, width = shape
    rows = torch.linspace(0, 1, height, device=device)[:, None]
    columns = torch.linspace(0, 1, width, device=device)[None]
    x = torch.zeros(n, *shape, device=device)
    for _ in range(3):
        place = torch.rand(n, 3, 1, 1, 1, device=device, generator=generator)
        colour = torch.rand(n, channels, 1, 1, device=device, generator=generator)
        distance = (rows - place[:, 0]) ** 2 + (columns - place[:, 1]) ** 2
        x = x + colour * torch.exp(-distance / (0.003 + 0.02 * place[:, 2]))
    return x.clamp(0, 1)


def steps(network: str, batch_size: int, device: str) -> list[dict[str, Any]]:
    """Milliseconds of a step, as a CUDA graph where it can be captured, and its peak of memory, eager."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = TrainBench(network=network, batch_size=batch_size, methods=STEPS, device=device, rounds=5)
        rows = run_train(options)
    refused = [str(w.message) for w in caught if "cannot be captured" in str(w.message)]
    for row in rows:
        row |= {
            "network": network,
            "batch_size": batch_size,
            "peak_gb": peak(row["method"], network, batch_size, device),
        }
    if refused:
        print("not captured:", *set(refused), sep="\n  ")
    return rows


def peak(name: str, network: str, batch_size: int, device: str) -> float | None:
    """Most memory that eager steps hold, in GB."""
    if device == "cpu":
        return None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = make(name, TrainBench(network=network, batch_size=batch_size, device=device, capture="never"))
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def trained(network: str, n_steps: int, batch_size: int, device: torch.device) -> tuple[torch.nn.Module, Tensor]:
    """A network after some steps of online training with a sketch, and data that it has not seen."""
    shape = SHAPES[network]
    torch.manual_seed(0)
    options = MethodConfig.taking("online", hessian="sketch", forgetting=1e-3)
    method = build(options, lambda: NETWORKS[network].load()(shape), Gaussian(), 10_000).to(device).train()
    assert isinstance(method, Laplace)
    optimizer = torch.optim.Adam(method.network.parameters(), 1e-3 if network == "paper-fashion" else 1e-4)
    x = blobs(4096, shape, device)
    step = StepContext(torch.Generator(device).manual_seed(0))
    for i in range(n_steps):
        batch = x[torch.randint(len(x), (batch_size,), device=device)]
        optimizer.zero_grad()
        loss = method(batch, step)
        method.after_forward(step)
        loss.backward()
        optimizer.step()
        if i % max(1, n_steps // 5) == 0:
            print(f"  {network}: step {i}, loss {loss.item():.2f}", flush=True)
    return method.network.eval(), blobs(4096, shape, device, seed=1)


def total(network: torch.nn.Module, x: Tensor, batch_size: int, options: dict[str, Any]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for batch in x.split(batch_size):
        for name, h in ggn_diagonal(network, batch, Gaussian(), **options).items():
            found[name] = found[name] + h.double() if name in found else h.double()
    return found


def quality(name: str, network: torch.nn.Module, x: Tensor, batch_size: int, reference: dict[str, Any]) -> list[dict]:
    """Relative error and ratio of sums, per layer and estimate."""
    began = time.perf_counter()
    exact = total(network, x, batch_size, reference)
    print(f"  {name}: reference {reference} in {time.perf_counter() - began:.0f} s", flush=True)
    rows = []
    for estimate, options in ESTIMATES.items():
        h = total(network, x, batch_size, options)
        layers: dict[str, list[str]] = {}
        for parameter in exact:
            layers.setdefault(parameter.rpartition(".")[0], []).append(parameter)
        for layer, names in layers.items():
            a, b = (torch.cat([part[n].flatten() for n in names]) for part in (h, exact))
            error, ratio = float((a - b).norm() / b.norm()), float(a.sum() / b.sum())
            rows.append({"network": name, "layer": layer, "estimate": estimate, "error": error, "ratio": ratio})
    return rows


def table(rows: list[dict], title: str) -> str:
    found = {(row["layer"], row["estimate"]): row for row in rows}
    lines = [title, "", "| layer | " + " | ".join(ESTIMATES) + " |", "|---" * (len(ESTIMATES) + 1) + "|"]
    for layer in dict.fromkeys(row["layer"] for row in rows):
        cells = [f"{found[layer, e]['error']:.2f} ({found[layer, e]['ratio']:.2f})" for e in ESTIMATES]
        lines.append(f"| {layer} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", default=["paper-mnist", "paper-fashion", "paper-celeba"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1000, help="of training before the errors are measured")
    parser.add_argument("--batches", type=int, default=20, help="that the errors are measured on")
    args = parser.parse_args()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    results: dict[str, Any] = {"machine": f"{name}, torch {torch.__version__}", "steps": [], "quality": []}

    def keep() -> None:  # after every part: what is measured stays, whatever comes
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "sketch_gpu.json").write_text(json.dumps(results, indent=1) + "\n")

    print(results["machine"])
    print("\n| network | method | ms per step | autoencoder's steps | peak GB |\n|---|---|---|---|---|")
    for network in args.networks:
        for row in steps(network, args.batch_size, args.device):
            memory = "-" if row["peak_gb"] is None else f"{row['peak_gb']:.2f}"
            print(f"| {network} | {row['method']} | {row['ms']:.3f} | {row['ratio']:.2f} | {memory} |", flush=True)
            results["steps"].append(row)
        keep()
    exact, sampled = {"method": "exact"}, {"method": "mc", "n_samples": 100}
    for network, reference in (("paper-fashion", exact), ("paper-celeba", sampled)):
        if network not in args.networks:
            continue
        module, x = trained(network, args.steps, args.batch_size, device)
        rows = quality(network, module, x[: args.batches * args.batch_size], args.batch_size, reference)
        results["quality"] += rows
        keep()
        print(
            "\n"
            + table(rows, f"{network}: relative error (ratio of sums), {args.batches} batches of {args.batch_size}")
        )
    print(f"\nwrote {args.out / 'sketch_gpu.json'}")


if __name__ == "__main__":
    main()
