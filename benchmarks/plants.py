"""Generated plants: is the sensor at fault named, and does the false alarm rate of a stream hold?

    python benchmarks/plants.py [--plants bench …] [--steps 20000] [--seed 0] [--runs FOLDER]

Three kinds of generated plants, 4,000 steps to learn from and 4,000 new ones. In windows of the new steps one sensor,
drawn at random, is stuck at its last value before the window, drifts by three of its standard deviations over it, or
gets noise of three standard deviations. A sensor is named if `explain` gives it most. In the second half of the new
steps each sensor in turn is off by one or by three standard deviations, or drifts off by three: named is the one that
`lapae drift` names first, by the windows after the change.

`bench` is a pump on a test bench: cycles of load that eight sensors follow, of which two vibrate with the load, one
warms up slowly, and one is almost only noise. `cycles` are six mixtures of three oscillations of unsteady size. `mixed`
are ten mixtures of four slow random processes, each with a process of its own on top.

Streams of `--steps` new steps are scored step by step, as by `lapae score`: as in training; with one sensor that creeps
up by six standard deviations, or goes up and down by one within 10,000 steps; with one that is stuck, or off by four,
from the middle on. Told are the share of steps with p_value <= 0.05, that with p_adaptive <= 0.05 (of the last two also
in the second half), the most of the latter in 1,000 steps without an alarm, and the share of steps with an alarm.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lapae.calibrate.adaptive import SPAN
from lapae.calibrate.conformal import p_values
from lapae.cli.drift import excess
from lapae.config import Config, TrainConfig
from lapae.data import Data
from lapae.fit import fit
from lapae.model import Model
from lapae.runs import Run
from lapae.space.series import Fold, cut, starts

RATE = 0.05
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


def drifted(x: np.ndarray, scale: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Return series (T, C) like x in which one sensor each changes in the second half, by the kind of change."""
    n = len(x) // 2
    changes = {"off by 1": np.ones(n), "off by 3": np.full(n, 3.0), "ramp to 3": np.linspace(0, 3, n)}
    found: dict[str, list[np.ndarray]] = {name: [] for name in changes}
    for name, by in changes.items():
        for c, unit in enumerate(scale):
            found[name].append(x.copy())
            found[name][-1][-n:, c] += unit * by
    return found


def streams(x: np.ndarray, scale: np.ndarray) -> dict[str, np.ndarray]:
    """Return streams (T, C) made of x (T, C), in which sensor 4 does what their names say."""
    n, t = len(x), np.arange(len(x))
    change = {
        "same": np.zeros(n),
        "creeps": 6 * t / n,
        "seasons": np.sin(2 * np.pi * t / 10_000),
        "off": 4.0 * (t >= n // 2),
    }
    found = {name: x.copy() for name in (*change, "stuck")}
    for name, by in change.items():
        found[name][:, 4] += scale[4] * by
    found["stuck"][n // 2 :, 4] = x[n // 2, 4]
    return found


def judged(model: Model, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return p-values, adaptive p-values and alarms of the steps of a series x (T, C): (T,) each."""
    window, stride = model.space.shape[0], model.space.stride or 1
    steps, first, every = Fold(len(x)), starts(len(x), window, stride), cut(x, window)
    for block in np.array_split(first, -(-len(first) // 1000)):
        score = model.anomaly_score(np.ascontiguousarray(every[block]))[0]
        steps.add(block, np.broadcast_to(score[:, None], (len(score), window)))
    rule, score = model.step_rule(RATE), steps.mean()
    threshold = model.threshold(rule, overlap=window)
    found = [threshold.update(value) for value in score.tolist()]
    return p_values(score, rule.held_out), *(np.array(part) for part in zip(*found, strict=True))


def draw(model: Model, x: np.ndarray, scale: np.ndarray, out: Path) -> None:
    """Draw a sensor that creeps up and is stuck for the last fifth, and the share of steps that are flagged."""
    import matplotlib.pyplot as plt

    x = streams(x, scale)["creeps"]
    start = len(x) * 4 // 5
    x[start:, 4] = x[start, 4]
    p, _, flagged, drift = judged(model, x)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 4.5), sharex=True, layout="constrained")
    top.plot(x[:, 4], linewidth=0.5, color="0.3")
    top.set_ylabel("temperature")
    mean = np.ones(SPAN // 2) / (SPAN // 2)
    bottom.plot(np.convolve(p <= RATE, mean, "same"), color="0.6", label="p_value <= 0.05")
    bottom.plot(np.convolve(flagged, mean, "same"), color="tab:blue", label="p_adaptive <= 0.05")
    bottom.axhline(RATE, color="black", linewidth=0.5, linestyle="--")
    bottom.fill_between(np.arange(len(x)), 0, 1, where=drift.tolist(), color="tab:red", alpha=0.15, label="drift")
    bottom.set(ylabel="share flagged", xlabel="step", ylim=(0, 1.02))
    bottom.legend(loc="center left")
    figure.savefig(out, dpi=110)
    plt.close(figure)


def main() -> None:

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plants", nargs="*", choices=list(PLANTS), default=list(PLANTS))
    parser.add_argument("--faults", type=int, default=100, help="windows with a fault")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20_000, help="steps of a stream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, help="folder to keep models in, and to take them from")
    parser.add_argument("--figure", type=Path, help="picture of a stream to write, in place of figures")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.plants:
        train, new, stream = (
            PLANTS[name](n, 3 * options.seed + i) for i, n in ((1, 4000), (2, 4000), (3, options.steps))
        )
        began, config = time.perf_counter(), Config(train=TrainConfig(seed=options.seed, verbose=False))
        kept = options.runs / f"{name}-{options.seed}" if options.runs else None
        if kept is not None and kept.exists():
            model = Model.load(kept)
        else:
            run = Run.create(kept) if kept is not None else None
            model = fit(config, Data.of(train, window=options.window, stride=options.window // 16), run=run)
        print(f"{name}: {time.perf_counter() - began:.1f} s")
        if options.figure:
            draw(model, stream, train.std(0), options.figure)
            continue
        for fault in FAULTS:
            windows, channel = faulty(new, fault, train.std(0), options.window, options.faults, options.seed)
            named = model.explain(windows).sum(1).argmax(1) == channel
            flagged = model.anomaly_score(windows)[1] <= RATE
            print(f"  fault {fault:<8} named {named.mean():.2f} flagged {flagged.mean():.2f}", flush=True)
        for change, series in drifted(new, train.std(0)).items():
            later = [cut(x[len(x) // 2 :], options.window)[:: options.window] for x in series]
            right = [excess(model, np.ascontiguousarray(windows)).argmax() == c for c, windows in enumerate(later)]
            print(f"  change {change:<9} named {np.mean(right):.2f} of {len(right)}", flush=True)
        for kind, x in streams(stream, train.std(0)).items():
            p, _, flagged, drift = judged(model, x)
            free = np.convolve(drift, np.ones(SPAN), "valid") == 0
            most = np.convolve(flagged, np.ones(SPAN), "valid")[free].max() / SPAN if free.any() else np.nan
            told = f"static {(p <= RATE).mean():.3f} adaptive {flagged.mean():.3f} most {most:.3f}"
            half = flagged[len(x) // 2 :].mean() if kind in ("off", "stuck") else np.nan
            print(f"  stream {kind:<8} {told} alarm {drift.mean():.3f} second half {half:.3f}", flush=True)


if __name__ == "__main__":
    main()
