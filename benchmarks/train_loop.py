"""An epoch of MNIST in the training loop against a bare PyTorch loop over the same batches, as a ratio.

    LAPAE_DATA=... python benchmarks/train_loop.py

Dense network 784-512-256-2 and back, batch 64, plain autoencoder. Both loops take turns in one process, so that the
ratio of their medians depends little on how busy the machine is. The target is at most 1.3. The bare loop is what one
writes without a library: Adam as torch makes it, the loss read once per epoch. Where MNIST is absent, noise of its
shape stands in.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.data import Batches, Data, DataError, load
from lapae.methods.building import build_method
from lapae.runs import Run
from lapae.train.distributed import take_place
from lapae.train.loop import train
from lapae_paper.choices import as_in_the_paper

SHAPE = (55_000, 1, 28, 28)


def mnist(limit: int | None) -> Data:
    try:
        return load("mnist", validation=5000, limit=limit)
    except DataError as error:
        print(f"noise instead of MNIST: {error}")
        x = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)[:limit]
        return Data.of(x, name="noise", validation=0, calibration=0)


def bare_epoch(network: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, epoch: int) -> float:
    total = torch.zeros((), device=batches.device)
    for x in batches.epoch(epoch):
        optimizer.zero_grad()
        loss = 0.5 * (network(x) - x).square().flatten(1).sum(1).mean()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(x)
    return total.item() / batches.n_data


class Stopwatch:
    """An observer of the loop that takes the time of each epoch, checkpoint and metrics included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def start(self, epoch: int, epochs: int, n_batches: int) -> None:
        self.began = time.perf_counter()

    def say(self, text: str) -> None:
        pass

    def step(self) -> None:
        pass

    def epoch(self, record: dict) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self.began)
        self.began = now
        self.between()
        self.began = time.perf_counter()

    def between(self) -> None:
        """What happens between two epochs: the other loop's turn."""

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--limit", type=int, help="maximum number of images")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--run", help="also write checkpoints into this new run folder, which is kept")
    arguments = parser.parse_args()

    options = TrainConfig(
        epochs=arguments.epochs + 1,
        patience=10**6,
        batch_size=arguments.batch_size,
        device=arguments.device,
    ).filled()
    config = Config(model=ModelConfig(network="paper-mnist"), method=MethodConfig(method="ae"), train=options)
    config = as_in_the_paper(config).resolved()
    data = mnist(arguments.limit)
    device = take_place(options)
    batches = Batches(data.train.x, data.space, options.batch_size, device=device, shuffle=True)
    ours, bare = (build_method(config, data.space).to(device) for _ in range(2))
    optimizer = torch.optim.Adam(bare.parameters(), options.learning_rate)
    watch, bare_seconds, bare_losses = Stopwatch(), [], []

    def turn() -> None:
        began = time.perf_counter()
        bare_losses.append(bare_epoch(bare.network, optimizer, batches, len(bare_seconds) + 1))
        bare_seconds.append(time.perf_counter() - began)

    watch.between = turn
    run = Run.create(arguments.run) if arguments.run else None
    train(ours, batches, None, options, run=run, device=device, observers=[watch])
    loop_time, bare_time = (
        statistics.median(seconds[1:]) for seconds in (watch.seconds, bare_seconds)
    )  # first: warm-up
    print(f"device {device}, {torch.get_num_threads()} threads, {batches.n_data} data, batch {options.batch_size}")
    print(f"bare loop {bare_time:.3f} s an epoch, loss {bare_losses[-1]:.4f}")
    print(f"lapae     {loop_time:.3f} s an epoch{', checkpoint included' if run else ''}")
    print(f"ratio     {loop_time / bare_time:.3f} (target: at most 1.3)")


if __name__ == "__main__":
    main()
