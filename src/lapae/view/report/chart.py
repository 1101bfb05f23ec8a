"""A line chart as the numbers of an SVG: the page draws it, so that it follows the page's colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 240, 64, 34, 10, 12


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Lines in the coordinates of a picture of WIDTH by HEIGHT."""

    lines: dict[str, str]
    """By name: the points of a polyline."""
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    mark: float | None
    """Horizontal place of the marked epoch."""
    clipped: bool
    """Whether early values lie outside of the picture."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def line_chart(
    x: Sequence[float], series: Mapping[str, Sequence[float | None]], *, mark: float | None = None
) -> Chart | None:
    """Lines of `series` over x, None where there is nothing to draw.

    The first tenth of x does not set the vertical range: losses start far above the rest, which would look flat.
    """
    kept = {name: _finite(x, values) for name, values in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return None
    skip = max(1, math.ceil(len(x) / 10)) if len(x) > 2 else 0
    late = [v for points in kept.values() for at, v in points if at >= x[skip]] or [
        v for p in kept.values() for _, v in p
    ]
    early = [v for points in kept.values() for _, v in points]
    low, high = min(late), max(late)
    if low == high:
        low, high = low - 0.5, high + 0.5
    low, high = low - 0.04 * (high - low), high + 0.06 * (high - low)
    first, last = x[0], max(x[-1], x[0] + 1)

    def place(at: float, value: float) -> tuple[float, float]:
        across = LEFT + (at - first) / (last - first) * (WIDTH - RIGHT - LEFT)
        up = HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)
        return across, min(max(up, -10.0 * HEIGHT), 10.0 * HEIGHT)

    lines = {
        name: " ".join("{:.1f},{:.1f}".format(*place(at, value)) for at, value in _thinned(points))
        for name, points in kept.items()
    }
    return Chart(
        lines,
        [Tick(place(at, low)[0], f"{at:g}") for at in ticks(first, last, whole=True)],
        [Tick(place(first, value)[1], f"{value:g}") for value in ticks(low, high)],
        None if mark is None or not first <= mark <= last else place(mark, low)[0],
        max(early) > high or min(early) < low,
    )


def ticks(low: float, high: float, n: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers from low to high, about n of them."""
    rough = (high - low) / n
    power = 10 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    count = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [float(f"{i * step:.12g}") for i in count]


def _finite(x: Sequence[float], values: Sequence[float | None]) -> list[tuple[float, float]]:
    return [(a, float(v)) for a, v in zip(x, values, strict=True) if v is not None and math.isfinite(v)]


def _thinned(points: list[tuple[float, float]], most: int = 500) -> list[tuple[float, float]]:
    step = -(-len(points) // most)
    return points if step == 1 else [*points[::step], points[-1]]
