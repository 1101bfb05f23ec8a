"""Generated surfaces and parts of 224x224 pixels, and defects on them: sets that no score was chosen on.

`normal(name, rng)` draws an image, `spoilt(image, rng)` gives it a defect and returns its mask.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.ndimage import gaussian_filter

SIDE = 224
ROWS, COLUMNS = np.mgrid[:SIDE, :SIDE].astype(float)


def noise(rng: np.random.Generator, scale: float | tuple[float, float]) -> np.ndarray:
    """Smooth noise of unit variance."""
    x = gaussian_filter(rng.normal(size=(SIDE, SIDE)), scale, mode="wrap")
    return x / x.std()


def grain(rng: np.random.Generator) -> np.ndarray:
    return 0.5 + 0.12 * noise(rng, 2) + 0.05 * noise(rng, 8)


def brushed(rng: np.random.Generator) -> np.ndarray:
    return 0.5 + 0.1 * noise(rng, (0.7, 14)) + 0.04 * noise(rng, 20)


def weave(rng: np.random.Generator) -> np.ndarray:
    phase, turn = rng.uniform(0, 2 * np.pi, 2), rng.normal(0, 0.02)
    along = ROWS * np.cos(turn) - COLUMNS * np.sin(turn)
    across = ROWS * np.sin(turn) + COLUMNS * np.cos(turn)
    waves = np.sin(2 * np.pi / 14 * along + phase[0]) * np.sin(2 * np.pi / 14 * across + phase[1])
    return 0.5 + 0.16 * waves + 0.06 * noise(rng, 1)


def mixed(rng: np.random.Generator) -> np.ndarray:
    """One of the three above."""
    return (grain, brushed, weave)[rng.integers(3)](rng)


def leather(rng: np.random.Generator) -> np.ndarray:
    folds = np.tanh(3 * np.abs(noise(rng, 3)) - 1.5)
    return 0.45 + 0.1 * folds + 0.03 * noise(rng, 1) + 0.03 * noise(rng, 25)


def part(rng: np.random.Generator) -> np.ndarray:
    """A disc with six holes that lies nearly still."""
    return disc(rng, 3, rng.normal(0, 0.03))


def turned(rng: np.random.Generator) -> np.ndarray:
    """The disc, anywhere near the middle and at any angle."""
    return disc(rng, 25, rng.uniform(0, 2 * np.pi))


def disc(rng: np.random.Generator, reach: float, angle: float) -> np.ndarray:
    down, right = (
        at - SIDE / 2 - shift for at, shift in zip((ROWS, COLUMNS), rng.uniform(-reach, reach, 2), strict=True)
    )
    radius, around = np.hypot(down, right), np.arctan2(down, right) + angle
    x = np.where(radius < 85, 0.65, 0.2)
    x = x - 0.25 * ((radius > 35) & (radius < 70) & (np.cos(6 * around) > 0.6)) - 0.3 * (radius < 18)
    x = x + 0.15 * ((radius > 70) & (radius < 76))
    return gaussian_filter(x, 1) + 0.03 * noise(rng, 1.5) + rng.normal(0, 0.02)


SURFACES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    made.__name__: made for made in (grain, brushed, weave, mixed, leather, part, turned)
}


def spoilt(x: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """An image with one of five defects, and where it is: a spot, a scratch, a blur, a turned piece or a stain."""
    kind, (row, column) = int(rng.integers(5)), rng.uniform(50, SIDE - 50, 2)
    away, sign = np.hypot(ROWS - row, COLUMNS - column), rng.choice([-1, 1])
    if kind == 0:
        mask = away < rng.uniform(4, 10)
        return x + sign * rng.uniform(0.12, 0.3) * gaussian_filter(mask.astype(float), 1.5), mask
    if kind == 1:
        angle, half = rng.uniform(0, np.pi), rng.uniform(25, 60)
        t = np.linspace(-half, half, 400)
        bend = np.interp(t, np.linspace(-half, half, 6), rng.normal(0, 4, 6))
        places = (row + t * np.sin(angle) + bend * np.cos(angle), column + t * np.cos(angle) - bend * np.sin(angle))
        drawn = np.zeros((SIDE, SIDE))
        drawn[tuple(np.clip(np.rint(at).astype(int), 0, SIDE - 1) for at in places)] = 1
        line = np.minimum(3 * gaussian_filter(drawn, rng.uniform(0.7, 1.5)), 1)
        return x + sign * rng.uniform(0.12, 0.3) * line, line > 0.3
    if kind == 2:
        mask = away < rng.uniform(14, 26)
        return np.where(mask, gaussian_filter(x, rng.uniform(2.5, 5)), x), mask
    if kind == 3:
        half, top, left = int(rng.uniform(14, 26)), int(row), int(column)
        here = np.s_[top - half : top + half, left - half : left + half]
        down, right = rng.integers(half, SIDE - half, 2)
        x, mask = x.copy(), np.zeros((SIDE, SIDE), bool)
        x[here] = np.rot90(x[down - half : down + half, right - half : right + half])
        mask[here] = True
        return x, mask
    mask = (away < rng.uniform(15, 30)) & (noise(rng, 8) > -0.5)
    return x + sign * rng.uniform(0.08, 0.18) * gaussian_filter(mask.astype(float), 3), mask


def drawn(name: str, n_normal: int, n_spoilt: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images (n, H, W) of bytes, normal ones first, masks (n, H, W) and kinds, "free" and "spoilt"."""
    rng = np.random.default_rng([sum(map(ord, name)), seed])
    images = [SURFACES[name](rng) for _ in range(n_normal + n_spoilt)]
    masks = np.zeros((len(images), SIDE, SIDE), bool)
    for i in range(n_normal, len(images)):
        images[i], masks[i] = spoilt(images[i], rng)
    pixels = np.rint(255 * np.clip(np.stack(images), 0, 1)).astype(np.uint8)
    return pixels, masks, np.repeat(["free", "spoilt"], [n_normal, n_spoilt])
