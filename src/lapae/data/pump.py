"""Simulated pump: six sensors with a daily rhythm, inertia and noise, and three faults that keep each within its
range."""

from __future__ import annotations

import numpy as np

SENSORS = ("load", "speed", "flow", "pressure", "temperature", "vibration")
DAY = 288
"""Time steps per day: one reading every five minutes."""


def pump(days: int, rng: np.random.Generator) -> np.ndarray:
    """Generate readings (time, 6) without a fault."""
    time = np.arange(days * DAY)
    wander = np.convolve(rng.standard_normal(len(time)), np.ones(40) / 40, "same")
    load = 0.6 + 0.25 * np.sin(2 * np.pi * time / DAY) + 0.4 * wander
    speed = 1500 + 600 * load
    temperature = 35 + 25 * load
    for i in range(1, len(time)):  # follows the load slowly
        temperature[i] = 0.97 * temperature[i - 1] + 0.03 * temperature[i]
    readings = np.stack([load, speed, 0.04 * speed, 2 + 0.9 * load**2, temperature, 0.001 * speed - 1], 1)
    return readings + rng.standard_normal(readings.shape) * [0.01, 8, 0.6, 0.02, 0.3, 0.03]


def break_it(x: np.ndarray) -> dict[str, slice]:
    """Write three faults into a week of readings x (time, 6), and return {fault: time steps}."""
    faults = {"stuck thermometer": slice(400, 520), "leak": slice(900, 1000), "worn bearing": slice(1300, 1420)}
    x[faults["stuck thermometer"], 4] = x[400, 4]
    x[faults["leak"], 2] *= 0.9
    x[faults["worn bearing"], 5] += np.linspace(0, 0.2, 120)
    return faults
