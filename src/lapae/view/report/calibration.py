"""Coverage of prediction intervals, on samples that training has not seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from lapae.space import Space
from lapae.view.named_splits import GIVEN, WORDS, NamedSplits
from lapae.view.report.chart import Frame
from lapae.view.verdicts import Verdicts

LEVELS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99]
TOLERANCE = 0.03
"""Coverage of 90 % intervals this far from 90 % is called well calibrated."""


def calibration(verdicts: Verdicts, splits: NamedSplits, seed: int) -> dict[str, Any] | None:
    """Measure coverage by level; None if all samples were trained on."""
    part = splits.held_out("test", "validation")
    if part == splits.main and part != GIVEN:
        return None
    split = splits.parts[part]
    if not _continuous(verdicts.model.space).any():
        return None
    index = verdicts.some(split, seed)
    covered = coverage(verdicts, np.asarray(split.x[index]))
    frame = Frame((0.0, 100.0), (0.0, 100.0), width=340, height=330, left=48, below=44, top=24)
    points = [(100 * level, 100 * share) for level, share in zip(LEVELS, covered, strict=True)]
    inside = covered[LEVELS.index(0.9)]
    return {
        "n": len(index),
        "among": WORDS[part],
        "frame": frame,
        "line": frame.line([(0.0, 0.0), *points]),
        "dots": [(frame.x(a), frame.y(b)) for a, b in points],
        "inside": f"{100 * inside:.0f} %",
        "verdict": verdict(inside),
        "good": abs(inside - 0.9) <= TOLERANCE,
    }


def coverage(verdicts: Verdicts, x: np.ndarray) -> list[float]:
    """Return the share of the values of x (n, *shape) inside the intervals, for each level."""
    left, deviation = verdicts.errors(x)
    ratio = np.abs(left) / deviation
    inside = [ratio <= verdicts.calibration.intervals.radius.at(level) for level in LEVELS]
    known = ~np.isnan(ratio) & _continuous(verdicts.model.space)
    return [float(share[known].mean()) for share in inside]


def _continuous(space: Space) -> np.ndarray:
    """Mask (*model_shape) of the values that have an interval: categories have none."""
    flat = np.zeros(int(np.prod(space.model_shape)), bool)
    for likelihood, start, stop in space.parts:
        flat[start:stop] = likelihood not in ("bernoulli", "categorical")
    return flat.reshape(space.model_shape)


def verdict(inside: float) -> str:
    """Describe the coverage of 90 % intervals."""
    found = f"90 % intervals contain {100 * inside:.0f} % of the values"
    if inside < 0.9 - TOLERANCE:
        return f"Too sure of itself: {found}."
    if inside > 0.9 + TOLERANCE:
        return f"Too cautious: {found}."
    return f"Well calibrated: {found}."
