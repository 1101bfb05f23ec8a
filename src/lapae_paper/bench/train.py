"""`lapae bench train`: time of a training step of every method, as a multiple of a plain autoencoder's.

Steps are those of training (`lapae.train.step`: eager, or replayed as a CUDA graph), on one batch in memory. Methods
take turns in rounds, so that a slow moment of the machine hits all of them; the median over rounds is reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lapae.config import NETWORKS, MethodConfig, TrainConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.methods import build
from lapae.methods.step import StepContext
from lapae.train.distributed import take_place
from lapae.train.float_precision import matrix_products
from lapae.train.step import LossSum, make_optimizer, make_step

SHAPES = {"paper-mnist": (1, 28, 28), "paper-fashion": (1, 28, 28), "paper-celeba": (3, 64, 64)}
N_DATA = 55_000


@dataclass(frozen=True)
class TrainBench:
    """Time of a training step, beside a plain autoencoder's."""

    network: str = "paper-mnist"
    """paper-mnist, paper-fashion or paper-celeba."""
    batch_size: int = 64
    """Samples per step."""
    methods: tuple[str, ...] = (
        "online:approx",
        "online:mc",
        "online:sketch",
        "online:bottleneck",
        "bbb",
        "dropout",
        "vae",
        "ensemble",
    )
    """Methods to time; `online:HESSIAN` names the curvature."""
    device: str = "auto"
    """auto, cpu or cuda."""
    capture: str = "auto"
    """auto: CUDA graphs; never: eager."""
    precision: str = "32"
    """32, tf32 or bf16."""
    rounds: int = 9
    """Rounds in which the methods take turns."""
    seconds: float = 0.3
    """Approximate time of a method in a round."""


def run(options: TrainBench) -> list[dict[str, Any]]:
    """Return one row per method: name, milliseconds per step, multiple of the plain autoencoder's."""
    with matrix_products(TrainConfig(precision=options.precision)):  # pyright: ignore[reportArgumentType]
        return _run(options)


def _run(options: TrainBench) -> list[dict[str, Any]]:
    steps = {name: make(name, options) for name in ("ae", *options.methods)}
    times: dict[str, list[float]] = {name: [] for name in steps}
    counts = {name: _steps_for(step, options.seconds) for name, step in steps.items()}
    for _ in range(options.rounds):
        for name, step in steps.items():
            times[name].append(_time(step, counts[name]))
    # One ratio per round, of steps close in time: a slow moment changes their median least.
    rows = []
    for name, seconds in times.items():
        ratios = [mine / plain for mine, plain in zip(seconds, times["ae"], strict=True)]
        rows.append({"method": name, "ms": 1e3 * statistics.median(seconds), "ratio": statistics.median(ratios)})
    return rows


def make(name: str, options: TrainBench) -> Callable[[], object]:
    """Return a function that takes one training step of a method on a fixed batch."""
    method_name, _, hessian = name.partition(":")
    config = MethodConfig.taking(method_name, hessian=hessian or "approx", forgetting=1e-3)
    shape = SHAPES[options.network]
    train = TrainConfig(batch_size=options.batch_size, device=options.device, precision=options.precision)  # pyright: ignore
    device = take_place(train)
    torch.manual_seed(0)
    method = build(config, lambda: NETWORKS[options.network].load()(shape), Gaussian(), N_DATA)
    method.to(device).train()
    optimizer = make_optimizer(method, 1e-3, device)
    step = make_step(
        method,
        optimizer,
        StepContext(torch.Generator(device).manual_seed(0)),
        LossSum(device),
        batch_size=options.batch_size,
        precision=train.precision,
        capture=options.capture == "auto",
    )
    x = torch.rand(options.batch_size, *shape, device=device)
    return lambda: step(x)


def _steps_for(step: Callable[[], object], seconds: float) -> int:
    for _ in range(8):  # warm up; a captured step is captured here
        step()
    return max(3, int(seconds / max(_time(step, 5), 1e-6)))


def _time(step: Callable[[], object], n: int) -> float:
    """Measure the seconds per step over n steps."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(n):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / n
