"""Charts as the numbers of an SVG: the page draws them, so that they follow its colours and are crisp at any size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lapae.runs.numbers import number

Points = list[tuple[float, float]]
BINS = 40


@dataclass(frozen=True)
class Frame:
    """A picture of `width` by `height` with a range of values along each axis."""

    across: tuple[float, float]
    up: tuple[float, float]
    width: int = 640
    height: int = 240
    left: int = 64
    top: int = 10
    margin: int = 12
    below: int = 34
    whole: bool = False
    """Whether the horizontal axis has whole numbers only."""
    log: bool = False
    """Whether the horizontal axis is logarithmic."""

    @property
    def right(self) -> int:
        return self.width - self.margin

    @property
    def bottom(self) -> int:
        return self.height - self.below

    def x(self, value: float) -> float:
        """Horizontal position of a value."""
        low, high = self.across
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(self.left + (value - low) / (high - low) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """Vertical position of a value, clipped to ten heights of the picture."""
        low, high = self.up
        place = self.bottom - (value - low) / (high - low) * (self.bottom - self.top)
        return round(min(max(place, -10.0 * self.height), 10.0 * self.height), 1)

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Positions and texts of round numbers along the horizontal axis."""
        if self.log:
            return [(self.x(v), number(v)) for v in powers(*self.across)]
        scale = self.across[1] - self.across[0]
        return [(self.x(v), number(v, scale=scale)) for v in ticks(*self.across, whole=self.whole)]

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Positions and texts of round numbers along the vertical axis."""
        scale = self.up[1] - self.up[0]
        return [(self.y(v), number(v, scale=scale)) for v in ticks(*self.up)]

    def line(self, points: Points) -> str:
        """Write points for an SVG polyline."""
        return " ".join(f"{self.x(a)},{self.y(b)}" for a, b in points)


@dataclass(frozen=True)
class Chart:
    frame: Frame
    lines: dict[str, str]
    mark: float | None
    """Horizontal position of the mark."""
    clipped: bool = False
    """Whether early values are outside the picture."""


@dataclass(frozen=True)
class Histogram:
    """Bars by name: (x, y, width, height) each."""

    frame: Frame
    bars: dict[str, list[tuple[float, float, float, float]]]
    mark: float | None
    """Horizontal position of the threshold."""
    beyond: dict[str, int]
    """Number of values to the right of the picture, by name."""


def line_chart(
    x: Sequence[float], series: Mapping[str, Sequence[float | None]], *, mark: float | None = None
) -> Chart | None:
    """Draw lines of `series` over x; None if there is nothing to draw.

    The first tenth of x does not set the vertical range: losses start far above the rest, which would look flat.
    """
    known = {name: _finite(x, values) for name, values in series.items()}
    known = {name: points for name, points in known.items() if points}
    if not known:
        return None
    skip = max(1, math.ceil(len(x) / 10)) if len(x) > 2 else 0
    early = [v for points in known.values() for _, v in points]
    late = [v for points in known.values() for at, v in points if at >= x[skip]] or early
    low, high = min(late), max(late)
    if low == high:
        low, high = low - 0.5, high + 0.5
    low, high = low - 0.04 * (high - low), high + 0.06 * (high - low)
    first, last = x[0], max(x[-1], x[0] + 1)
    frame = Frame((first, last), (low, high), whole=True)
    lines = {name: frame.line(_thinned(points)) for name, points in known.items()}
    place = None if mark is None or not first <= mark <= last else frame.x(mark)
    return Chart(frame, lines, place, max(early) > high or min(early) < low)


def histogram(series: Mapping[str, np.ndarray], mark: float, *, log: bool = False) -> Histogram | None:
    """Draw the share of each series (n,) in bins, with a mark; extreme values are left out, so that bars are seen.

    Args:
        series: values by name.
        mark: the threshold; nothing is drawn for infinity.
        log: whether the values, which are above 0, lie along a logarithmic axis.
    """
    known = {name: values[np.isfinite(values)] for name, values in series.items()}
    known = {name: values for name, values in known.items() if len(values)}
    if not known:
        return None
    low = min(float(np.percentile(values, 0.2)) for values in known.values())
    high = max(float(np.percentile(values, 99)) for values in known.values())
    if math.isfinite(mark):
        high = max(high, mark + 0.3 * max(mark - low, 0.0))
    if log:
        low, high = low / 1.05, max(high, 2 * low)
    high = high if high > low else low + 1.0
    edges = np.geomspace(low, high, BINS + 1) if log else np.linspace(low, high, BINS + 1)
    shares = {name: np.histogram(np.maximum(v, low), edges)[0] / len(v) for name, v in known.items()}
    most = 108 * max(float(share.max()) for share in shares.values())
    frame = Frame((low, high), (0.0, most), height=240, below=44, top=22, log=log)
    bars = {
        name: [
            (frame.x(left), frame.y(100 * s), round(frame.x(right) - frame.x(left), 1), frame.bottom - frame.y(100 * s))
            for left, right, s in zip(edges[:-1], edges[1:], share.tolist(), strict=True)
            if s
        ]
        for name, share in shares.items()
    }
    beyond = {name: int((values > high).sum()) for name, values in known.items()}
    return Histogram(frame, bars, frame.x(mark) if math.isfinite(mark) else None, beyond)


def p_histogram(p: np.ndarray) -> Histogram | None:
    """Draw the share of p-values (n,) in ten bins, with a line at a tenth: of normal samples they are uniform."""
    known = p[np.isfinite(p)]
    if len(known) < 20:
        return None
    edges = np.linspace(0, 1, 11)
    shares = np.histogram(known, edges)[0] / len(known)
    frame = Frame((0.0, 1.0), (0.0, 108 * float(shares.max())), height=200, below=44, top=22)
    width = round(frame.x(0.1) - frame.x(0.0) - 1, 1)
    tops = [(frame.x(a), frame.y(100 * s)) for a, s in zip(edges[:-1], shares.tolist(), strict=True)]
    bars = [(x, y, width, frame.bottom - y) for x, y in tops if y < frame.bottom]
    return Histogram(frame, {"p-values": bars}, frame.y(10.0), {})


def ticks(low: float, high: float, n: int = 5, *, whole: bool = False) -> list[float]:
    """Return about n round numbers from low to high."""
    rough = (high - low) / n
    power = 10 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    count = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [float(f"{i * step:.12g}") for i in count]


def powers(low: float, high: float) -> list[float]:
    """Return round numbers from low to high for a logarithmic axis: 1, 2 and 5 times powers of ten, or these alone."""
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    return [v for ten in tens for step in steps if low <= (v := float(f"{step}e{ten}")) <= high]


def _finite(x: Sequence[float], values: Sequence[float | None]) -> Points:
    return [(a, float(v)) for a, v in zip(x, values, strict=True) if v is not None and math.isfinite(v)]


def _thinned(points: Points, most: int = 500) -> Points:
    step = -(-len(points) // most)
    return points if step == 1 else [*points[::step], points[-1]]
