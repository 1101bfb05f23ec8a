"""Fifteen kinds of generated series with labelled anomalies, drawn by a seed.

One channel: demand by day and week, a machine's temperature, a room's, the load of a processor, heart beats, traffic,
waves, single points, a level that creeps. Several: loops of a plant whose relations change, after 1,800 steps or after
400; processes that follow each other with a lag; a sensor with commands. `unis` are short series of one channel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.signal import lfilter

Series = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Steps to learn from (T, C), new ones (N, C), and which of these are anomalies, (N,)."""


def ar(rng: np.random.Generator, n: int, m: float, c: int | None = None) -> np.ndarray:
    """Draw autoregressive processes of unit variance and memory m: (n,), or (n, c)."""
    e: np.ndarray = rng.standard_normal((n + 300, c or 1)) * np.sqrt(1 - m * m)
    x: Any = lfilter([1], [1, -m], e, axis=0)
    x = x[300:]
    return x if c else x[:, 0]


def place(rng: np.random.Generator, n: int, k: int, length: float) -> list[int]:
    """Draw the starts of k spans in n steps, apart from each other."""
    slots = np.linspace(n * 0.08, n * 0.95 - length, k + 1)
    return [int(rng.uniform(a, max(b - length, a + 1))) for a, b in itertools.pairwise(slots)]


def taxi(seed: int) -> Series:
    rng = np.random.default_rng([1, seed])
    day = 48
    nd = 7 * 12
    n = nd * day
    t = np.arange(n)
    h = (t % day) / day
    dow = (t // day) % 7
    wk = (
        0.35
        + 0.45 * np.exp(-(((h - 0.35) / 0.08) ** 2))
        + 0.8 * np.exp(-(((h - 0.79) / 0.12) ** 2))
        - 0.3 * np.exp(-(((h - 0.16) / 0.1) ** 2))
    )
    we = (
        0.45
        + 0.5 * np.exp(-(((h - 0.55) / 0.2) ** 2))
        + 0.5 * np.exp(-(((h - 0.95) / 0.08) ** 2))
        + 0.4 * np.exp(-(((h - 0.02) / 0.08) ** 2))
        - 0.2 * np.exp(-(((h - 0.25) / 0.1) ** 2))
    )
    shape = np.where(dow >= 5, we, wk)
    size = 1 + 0.06 * ar(rng, n, 0.995) + 0.1 * np.sin(2 * np.pi * t / n * rng.uniform(0.5, 1.2))
    x = shape * size + 0.035 * ar(rng, n, 0.5)
    cut = n // 3
    label = np.zeros(n)
    for s in place(rng, n - cut, 4, day * 2):
        s = cut + s // day * day
        k = rng.integers(4)
        if k == 0:
            x[s : s + day] = (we if dow[s] < 5 else wk)[s : s + day] * size[
                s : s + day
            ] * 0.8 + 0.035 * rng.standard_normal(day)
            sp = (s, s + day)
        elif k == 1:
            x[s : s + 2 * day] *= np.linspace(0.7, 0.35, 2 * day)
            sp = (s, s + 2 * day)
        elif k == 2:
            x[s + 20 : s + 30] += 0.5
            sp = (s + 20, s + 30)
        else:
            x[s : s + day] = np.roll(x[s : s + day], 10) * 0.9
            sp = (s, s + day)
        c = (sp[0] + sp[1]) // 2
        label[max(cut, c - 72) : c + 72] = 1
    return x[:cut, None], x[cut:, None], label[cut:]


def machine(seed: int) -> Series:
    rng = np.random.default_rng([2, seed])
    n = 9000
    cut = 3000
    x = 85 + 8 * ar(rng, n, 0.998) + 1.5 * ar(rng, n, 0.9) + 0.6 * rng.standard_normal(n)
    x += 5 * np.sin(2 * np.pi * np.arange(n) / 288)
    label = np.zeros(n)
    for s in place(rng, n - cut, 3, 500):
        s += cut
        k = rng.integers(3)
        L = rng.integers(60, 200)
        if k == 0:
            x[s : s + L] -= 60 * np.minimum(1, np.minimum(np.arange(L) / 20, np.arange(L)[::-1] / 20))
        elif k == 1:
            x[s : s + L] += np.linspace(0, 28, L)
        else:
            x[s : s + L] = x[s : s + L].mean() + 4 * (x[s : s + L] - x[s : s + L].mean()) * np.sign(
                rng.standard_normal(L)
            )
        label[s - 150 : s + L + 100] = 1
    return x[:cut, None], x[cut:, None], label[cut:]


def ambient(seed: int) -> Series:
    rng = np.random.default_rng([3, seed])
    n = 6000
    cut = 2000
    t = np.arange(n)
    amp = 1.5 * (1 + 0.3 * ar(rng, n, 0.99))
    x = (
        71
        + amp * np.sin(2 * np.pi * t / 24)
        + 4 * ar(rng, n, 0.9985)
        + 0.7 * ar(rng, n, 0.7)
        + np.where((t // 24) % 7 >= 5, -0.8, 0)
    )
    label = np.zeros(n)
    for s in place(rng, n - cut, 2, 200):
        s += cut
        k = rng.integers(4)
        L = rng.integers(24, 96)
        if k == 0:
            x[s : s + L] -= 6 * np.hanning(L)
        elif k == 1:
            x[s : s + L] = x[s] + 0.1 * rng.standard_normal(L)
        elif k == 2:
            x[s : s + L] += np.where(rng.random(L) < 0.2, 5, 0) * rng.choice([-1, 1])
        else:
            x[s : s + L] += amp[s : s + L] * 1.4 * np.sin(2 * np.pi * t[s : s + L] / 24)
        label[max(cut, s - 100) : s + L + 100] = 1
    return x[:cut, None], x[cut:, None], label[cut:]


def cpu(seed: int) -> Series:
    rng = np.random.default_rng([4, seed])
    n = 6000
    cut = 2000
    t = np.arange(n)
    x = (
        40
        + 2 * rng.standard_normal(n)
        + 1.5 * ar(rng, n, 0.95)
        + np.where(rng.random(n) < 0.01, 15 * rng.random(n), 0)
        + 6 * (t % 288 < 12)
    )
    label = np.zeros(n)
    for s in place(rng, n - cut, 3, 300):
        s += cut
        k = rng.integers(3)
        L = rng.integers(50, 250)
        if k == 0:
            x[s : s + L] += 10
        elif k == 1:
            x[s : s + L] = 40 + 6 * rng.standard_normal(L)
        else:
            x[s : s + L] = 38 + 0.3 * rng.standard_normal(L)
        label[s : s + L] = 1
    return x[:cut, None], x[cut:, None], label[cut:]


def ecg(seed: int) -> Series:
    rng = np.random.default_rng([5, seed])
    n = 8000
    cut = 2500
    x = np.zeros(n)
    label = np.zeros(n)
    t = 0
    beats = []
    while t < n:
        beats.append(t)
        t += int(40 * (1 + 0.06 * rng.standard_normal()))
    bad = set(rng.choice([i for i, b in enumerate(beats) if b > cut + 100 and b < n - 100], 6, replace=False).tolist())
    u = np.arange(60)
    for i, b in enumerate(beats):
        p = (
            np.exp(-(((u - 8) / 3) ** 2)) * 0.3
            + np.exp(-(((u - 16) / 1.2) ** 2)) * 2
            - np.exp(-(((u - 19) / 1.5) ** 2)) * 0.6
            + np.exp(-(((u - 30) / 4) ** 2)) * 0.5
        )
        if i in bad:
            p = np.exp(-(((u - 12) / 4) ** 2)) * 1.4 - np.exp(-(((u - 24) / 5) ** 2)) * 0.7
            label[b : b + 45] = 1
        m = min(60, n - b)
        x[b : b + m] += p[:m] * (1 + 0.05 * rng.standard_normal())
    x += 0.05 * rng.standard_normal(n) + 0.2 * ar(rng, n, 0.998)
    return x[:cut, None], x[cut:, None], label[cut:n]


def traffic(seed: int) -> Series:
    rng = np.random.default_rng([6, seed])
    n = 7000
    cut = 2500
    t = np.arange(n)
    day = 144
    base = (
        60
        - 15 * np.exp(-((((t % day) / day - 0.35) / 0.06) ** 2))
        - 20 * np.exp(-((((t % day) / day - 0.73) / 0.07) ** 2)) * np.where((t // day) % 7 < 5, 1, 0.2)
    )
    x = base + 3 * ar(rng, n, 0.8) + 1.5 * rng.standard_normal(n)
    label = np.zeros(n)
    for s in place(rng, n - cut, 4, 150):
        s += cut
        k = rng.integers(3)
        L = rng.integers(20, 100)
        if k == 0:
            x[s : s + L] -= 25 * np.hanning(L)
        elif k == 1:
            x[s : s + L] = 60 + 3 * rng.standard_normal(L) - 18 * (base[s : s + L] > 55)
        else:
            x[s : s + L] += rng.choice([-12, 12], L)
        label[s - 10 : s + L + 10] = 1
    return x[:cut, None], x[cut:, None], label[cut:]


def waves(seed: int) -> Series:
    """Harmonics with shape-, frequency- and trend anomalies (TODS-like)."""
    rng = np.random.default_rng([7, seed])
    n = 7000
    cut = 2500
    t = np.arange(n)
    per = rng.integers(25, 90)

    def w(a):
        return np.sin(a) + 0.4 * np.sin(2 * a + 1) + 0.2 * np.sin(5 * a)

    x = w(2 * np.pi * t / per) + 0.15 * rng.standard_normal(n)
    label = np.zeros(n)
    for s in place(rng, n - cut, 4, 250):
        s += cut
        k = rng.integers(4)
        L = rng.integers(40, 200)
        if k == 0:
            x[s : s + L] = w(2 * np.pi * t[s : s + L] / per * 1.6) + 0.15 * rng.standard_normal(L)
        elif k == 1:
            x[s : s + L] = np.sign(np.sin(2 * np.pi * t[s : s + L] / per)) + 0.15 * rng.standard_normal(L)
        elif k == 2:
            x[s : s + L] += np.linspace(0, 1.5, L)
        else:
            x[s : s + L] *= 0.4
        label[s : s + L] = 1
    return x[:cut, None], x[cut:, None], label[cut:]


def points(seed: int) -> Series:
    rng = np.random.default_rng([8, seed])
    n = 6000
    cut = 2000
    t = np.arange(n)
    x = (
        np.sin(2 * np.pi * t / rng.uniform(40, 200)) * rng.uniform(1, 3)
        + ar(rng, n, 0.97) * 0.5
        + 0.2 * rng.standard_normal(n)
    )
    label = np.zeros(n)
    for s in place(rng, n - cut, 6, 20):
        s += cut
        L = rng.integers(1, 8)
        x[s : s + L] += rng.choice([-1, 1]) * rng.uniform(1.5, 4)
        label[s - 8 : s + L + 8] = 1
    return x[:cut, None], x[cut:, None], label[cut:]


def shift(seed: int) -> Series:
    """Seasonal, noisy, with creeping level in the test."""
    rng = np.random.default_rng([9, seed])
    n = 8000
    cut = 2500
    t = np.arange(n)
    x = (
        1.2 * np.sin(2 * np.pi * t / 96)
        + 0.4 * np.sin(2 * np.pi * t / (96 * 7))
        + 0.4 * ar(rng, n, 0.9)
        + 0.2 * rng.standard_normal(n)
    )
    x[cut:] += np.linspace(0, rng.uniform(-2, 2), n - cut)
    label = np.zeros(n)
    for s in place(rng, n - cut, 4, 200):
        s += cut
        k = rng.integers(3)
        L = rng.integers(60, 200)
        if k == 0:
            x[s : s + L] += rng.choice([-1, 1]) * 2
        elif k == 1:
            x[s : s + L] = x[s] + 0.2 * rng.standard_normal(L)
        else:
            x[s : s + L] = x[s : s + L][::-1] + 0.8 * rng.standard_normal(L)
        label[s : s + L] = 1
    return x[:cut, None], x[cut:, None], label[cut:]


def skab(seed: int, creep: float = 1.0, d: int = 8) -> Series:
    """A loop with valves: relations between sensors change for some 300 steps; temperature creeps."""
    rng = np.random.default_rng([10, seed])
    n = 4200
    cut = 1800
    speed = ar(rng, n, 0.97)
    temp = 3 * ar(rng, n, 0.9995) * creep
    flow = ar(rng, n, 0.8)
    lat = np.stack([speed, temp, flow, ar(rng, n, 0.5)], 1)
    A = rng.standard_normal((4, d)) * (rng.random((4, d)) < 0.45)
    own = np.concatenate([ar(rng, n, m, 1) for m in rng.uniform(0, 0.9, d)], 1)
    noise = rng.uniform(0.3, 1.0, d)
    X = lat @ A + noise * own
    X[:, 5] += temp
    label = np.zeros(n)
    sd = X[:cut].std(0)
    for s in place(rng, n - cut, 3, 320):
        s += cut
        k = rng.integers(5)
        L = rng.integers(150, 320)
        c = rng.choice(d, rng.integers(1, 4), replace=False)
        ramp = np.minimum(1, np.arange(L) / 30)[:, None]
        if k == 0:
            X[s : s + L][:, c] = X[s : s + L][:, c] + 1.2 * sd[c] * rng.choice([-1, 1], len(c)) * ramp
        elif k == 1:
            X[s : s + L, c] += noise[c] * own[s : s + L, c] * 1.2
        elif k == 2:  # one loop weaker
            B = A.copy()
            B[:, c] *= -0.2
            X[s : s + L] = lat[s : s + L] @ B + noise * own[s : s + L]
            X[s : s + L, 5] += temp[s : s + L]
        elif k == 3:
            X[s : s + L][:, c] *= 0.35
        else:
            X[s : s + L] += (ramp * 1.0) * sd * rng.standard_normal(d) * 0.7
        label[s : s + L] = 1
    return X[:cut], X[cut:], label[cut:]


def skab0(seed: int) -> Series:
    return skab(seed + 50, 0.15)


def rel(seed: int) -> Series:
    """Two sensors that follow a process with lag: the lag, gain, coupling change."""
    rng = np.random.default_rng([11, seed])
    n = 6000
    cut = 2500
    u = np.cumsum(rng.standard_normal(n) * (rng.random(n) < 0.02))
    u = 3 * ar(rng, n, 0.98) + np.repeat(rng.standard_normal(n // 100), 100)
    y: Any = lfilter([0.1], [1, -0.9], u)
    z = np.roll(u, 12) * 0.6
    X = np.stack([u, y, z, 0.5 * y + 0.5 * z], 1)
    label = np.zeros(n)
    for s in place(rng, n - cut, 4, 250):
        s += cut
        k = rng.integers(4)
        L = rng.integers(80, 250)
        if k == 0:
            slower: Any = lfilter([0.03], [1, -0.97], u)
            X[s : s + L, 1] = slower[s : s + L]
        elif k == 1:
            X[s : s + L, 2] = np.roll(u, 25)[s : s + L] * 0.6
        elif k == 2:
            X[s : s + L, 3] = X[s, 3]
        else:
            X[s : s + L, 1] *= 1.4
        label[s : s + L] = 1
    X = X + 0.15 * rng.standard_normal(X.shape) * X.std(0)
    return X[:cut], X[cut:], label[cut:]


def tele(seed: int) -> Series:
    """Telemetry: one sensor with regimes and commands (0/1)."""
    rng = np.random.default_rng([12, seed])
    n = 7000
    cut = 2500
    C = 10
    cmd = np.zeros((n, C))
    for j in range(C):
        at = np.flatnonzero(rng.random(n) < rng.uniform(0.002, 0.02))
        for a in at:
            cmd[a : a + rng.integers(1, 10), j] = 1
    reg = np.zeros(n)
    for a in np.flatnonzero(cmd[:, 0]):
        reg[a : a + 60] = 1
    x = reg * 0.8 + 0.2 * np.sin(2 * np.pi * np.arange(n) / 80) + 0.15 * ar(rng, n, 0.95)
    x = np.round(x / 0.05) * 0.05
    label = np.zeros(n)
    for s in place(rng, n - cut, 3, 200):
        s += cut
        k = rng.integers(4)
        L = rng.integers(40, 200)
        if k == 0:
            x[s : s + L] = x[s]
        elif k == 1:
            x[s : s + L] += 0.5
        elif k == 2:
            x[s : s + L] = 0.2 * np.sin(2 * np.pi * np.arange(L) / 30)
        else:
            x[s : s + L] = 0.8 - x[s : s + L]
        label[s : s + L] = 1
    X = np.concatenate([x[:, None], cmd], 1)
    return X[:cut], X[cut:], label[cut:]


def skabs(seed: int) -> Series:
    """A plant of which 400 steps are known: sensors that hang together, creeping temperatures, one long fault."""
    rng = np.random.default_rng([13, seed])
    n = 1150
    cut = 400
    d = 8
    lat = np.stack([ar(rng, n, 0.9), 3 * ar(rng, n, 0.999), ar(rng, n, 0.6)], 1)
    A = rng.standard_normal((3, d)) * (rng.random((3, d)) < 0.5)
    noise = rng.uniform(0.3, 1.2, d)
    own = np.concatenate([ar(rng, n, m, 1) for m in rng.choice([0, 0.2, 0.6, 0.9], d)], 1)
    X = lat @ A + noise * own
    X[:, 5] += 2 * lat[:, 1]
    X[:, 4] += lat[:, 1]
    sd = X[:cut].std(0)
    label = np.zeros(n)
    s = cut + 180 + rng.integers(60)
    L = int(rng.integers(280, 400))
    L = min(L, n - s)
    k = rng.integers(4)
    c = rng.choice([0, 1, 2, 3, 6, 7], rng.integers(1, 4), replace=False)
    ramp = np.minimum(1, np.arange(L) / 60)[:, None]
    if k == 0:
        X[s : s + L][:, c] = X[s : s + L][:, c] + 1.5 * sd[c] * rng.choice([-1, 1], len(c)) * ramp
    elif k == 1:
        X[s : s + L, c] += noise[c] * own[s : s + L, c] * 1.5
    elif k == 2:
        X[s : s + L][:, c] = X[s : s + L][:, c] - 2 * sd[c] * ramp * np.sign(rng.standard_normal(len(c)))
        X[s : s + L, 5] += 0.01 * np.arange(L) * sd[5]
    else:
        X[s : s + L][:, c] = X[s : s + L][:, c] * 0.4 + ramp * sd[c] * 0.8
    label[s : s + L] = 1
    return X[:cut], X[cut:], label[cut:]


def unis(seed: int) -> Series:
    """One of the kinds of one channel, of which 600 steps are known."""
    kind = (machine, ambient, cpu, traffic, waves, points, shift)[seed % 7]
    train, test, label = kind(seed + 100)
    return train[-600:], test[:3000], label[:3000]


KINDS: dict[str, Callable[[int], Series]] = {
    "taxi": taxi,
    "machine": machine,
    "ambient": ambient,
    "cpu": cpu,
    "ecg": ecg,
    "traffic": traffic,
    "waves": waves,
    "points": points,
    "shift": shift,
    "skab": skab,
    "skab0": skab0,
    "rel": rel,
    "tele": tele,
    "skabs": skabs,
    "unis": unis,
}
