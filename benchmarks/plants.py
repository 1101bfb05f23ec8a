"""Which sensor of a plant is at fault: is the right one named?

    python benchmarks/plants.py [--plants bench …] [--faults 100] [--seed 0]

Three kinds of generated plants, 4,000 steps to learn from and 4,000 new ones. In windows of the new steps one sensor,
drawn at random, is stuck at its last value before the window, drifts by three of its standard deviations over it, or
gets noise of three standard deviations. A sensor is named if `explain` gives it most.

`bench` is a pump on a test bench: cycles of load that eight sensors follow, of which two vibrate with the load, one
warms up slowly, and one is almost only noise. `cycles` are six mixtures of three oscillations of unsteady size. `mixed`
are ten mixtures of four slow random processes, each with a process of its own on top.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np

FAULTS = ("stuck", "drift", "noise")
SIZE = 3.0
"""Size of faults in standard deviations of the sensor."""
WARM_UP = 300
"""Steps until a plant is warm, which are left out."""


def process(rng: np.random.Generator, n: int, memory: float, n_channels: int = 1) -> np.ndarray:
    """Draw autoregressive processes (n, C) of unit variance."""
    noise = rng.standard_normal((n + WARM_UP, n_channels))
    x = np.zeros_like(noise)
    for t in range(1, len(x)):
        x[t] = memory * x[t - 1] + np.sqrt(1 - memory**2) * noise[t]
    return x[WARM_UP:]


def bench(n: int, seed: int) -> np.ndarray:
    """Return a series (n, 8): vibration twice, current, pressure, two temperatures, voltage, flow."""
    rng, t = np.random.default_rng([seed, 1]), np.arange(n + WARM_UP)
    cycle = np.sin(2 * np.pi * t / 400)
    load = 1 + 0.3 * np.sign(cycle) * np.minimum(1, np.abs(cycle) * 6) + 0.05 * process(rng, len(t), 0.95)[:, 0]
    ambient = process(rng, len(t), 0.999)[:, 0]
    noise = rng.standard_normal((len(t), 8))
    warm = np.zeros(len(t))
    for i in range(1, len(t)):
        warm[i] = 0.98 * warm[i - 1] + 0.02 * 30 * load[i]
    warm += 40
    vibration = load[:, None] * [0.03, 0.04] * (1 + 0.3 * noise[:, :2])
    sensors = [
        1 + 1.2 * load + 0.1 * noise[:, 2],
        0.2 * load**2 + 0.15 * noise[:, 3],
        warm + 0.4 * ambient + 0.2 * noise[:, 4],
        25 + 0.1 * warm + 0.3 * ambient + 0.02 * noise[:, 5],
        230 + 4 * noise[:, 6],
        32 * load + 0.5 * noise[:, 7],
    ]
    return np.concatenate([vibration, np.stack(sensors, 1)], 1)[WARM_UP:]


def cycles(n: int, seed: int) -> np.ndarray:
    """Return a series (n, 6)."""
    plant, rng, t = np.random.default_rng(100), np.random.default_rng([seed, 2]), np.arange(n)[:, None]
    angle = 2 * np.pi * t / [23.0, 61.0, 170.0]
    waves = np.concatenate([np.sin(angle), np.cos(angle)], 1) * (1 + 0.2 * process(rng, n, 0.99, 6))
    mix = plant.standard_normal((6, 6)) * (plant.random((6, 6)) < 0.5)
    return waves @ mix + 0.15 * rng.standard_normal((n, 6)) * np.sqrt((mix**2).sum(0) + 0.1)


def mixed(n: int, seed: int) -> np.ndarray:
    """Return a series (n, 10)."""
    plant, rng = np.random.default_rng(7), np.random.default_rng([seed, 3])
    slow = np.concatenate([process(rng, n, memory) for memory in (0.9, 0.97, 0.99, 0.995)], 1)
    mix = plant.standard_normal((4, 10))
    own = np.concatenate([process(rng, n, memory) for memory in plant.uniform(0, 0.95, 10)], 1)
    return slow @ mix + 0.4 * own


PLANTS: dict[str, Callable[[int, int], np.ndarray]] = {"bench": bench, "cycles": cycles, "mixed": mixed}


def faulty(
    x: np.ndarray, fault: str, scale: np.ndarray, window: int, n: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return windows (n, window, C) of x (T, C) with a fault of one channel, and which channel, (n,)."""
    rng = np.random.default_rng(seed)
    first, channel = np.linspace(1, len(x) - window, n).astype(int), rng.integers(x.shape[1], size=n)
    windows = np.stack([x[start : start + window] for start in first])
    for values, start, c in zip(windows, first, channel, strict=True):
        if fault == "stuck":
            values[:, c] = x[start - 1, c]
        elif fault == "drift":
            values[:, c] += SIZE * scale[c] * rng.choice([-1, 1]) * np.linspace(0, 1, window)
        else:
            values[:, c] += SIZE * scale[c] * rng.standard_normal(window)
    return windows, channel


def main() -> None:
    from lapae.config import Config, TrainConfig
    from lapae.data import Data
    from lapae.fit import fit

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plants", nargs="*", choices=list(PLANTS), default=list(PLANTS))
    parser.add_argument("--faults", type=int, default=100, help="windows with a fault")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.plants:
        train, new = (PLANTS[name](4000, 2 * options.seed + i) for i in (1, 2))
        began, config = time.perf_counter(), Config(train=TrainConfig(seed=options.seed, verbose=False))
        model = fit(config, Data.of(train, window=options.window, stride=options.window // 16))
        told = [f"{name:<8} fitted in {time.perf_counter() - began:.1f} s"]
        for fault in FAULTS:
            windows, channel = faulty(new, fault, train.std(0), options.window, options.faults, options.seed)
            named = model.explain(windows).sum(1).argmax(1) == channel
            told.append(
                f"{fault}: named {named.mean():.2f}, flagged {(model.anomaly_score(windows)[1] <= 0.05).mean():.2f}"
            )
        print("; ".join(told), flush=True)


if __name__ == "__main__":
    main()
