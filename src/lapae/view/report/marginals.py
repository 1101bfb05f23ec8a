"""Samples of a table beside the rows: is each column of what the model generates like the column it learned?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from lapae.model import Model
from lapae.runs.numbers import number
from lapae.space import Column
from lapae.space.frames import cells

SHOWN, MOST_LEVELS, BINS = 12, 8, 16
"""Columns that are shown, levels of a category, bins of a number."""


def sampled(model: Model, x: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """Draw as many rows as there are in x (n, F), and return shares of both by bin or level, column by column.

    Returns:
        For each column its name and its bars: a label, and the heights of real and of sampled ones in percent of the
        tallest. Nothing for data that are no table with columns.
    """
    columns = model.space.columns
    if model.space.kind != "table" or not columns or model.space.features is not None or len(x) < 20:
        return []
    drawn = model.sample(len(x), seed=seed)
    return [
        {"name": column.name, "bars": _bars(np.asarray(x[:, j], float), drawn[:, j], column)}
        for j, column in enumerate(columns[:SHOWN])
    ]


def _bars(real: np.ndarray, made: np.ndarray, column: Column) -> list[tuple[str, float, float]]:
    levels = column.categories

    def text(value: float) -> str:
        return cells(np.array([value]), column)[0] if column.kind == "date" else number(float(value))

    real, made = real[np.isfinite(real)], made[np.isfinite(made)]
    if not len(real) or not len(made):
        return []
    values = np.unique(real)
    if len(values) <= MOST_LEVELS:
        names = [str(levels[int(v)]) if levels else text(v) for v in values]
        shares = [[float(np.mean(part == v)) for v in values] for part in (real, made)]
    elif levels:
        values = values[np.argsort([-np.mean(real == v) for v in values], kind="stable")][:MOST_LEVELS]
        names = [str(levels[int(v)]) for v in values]
        shares = [[float(np.mean(part == v)) for v in values] for part in (real, made)]
    else:
        low, high = np.percentile(real, [0.5, 99.5])
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
        names = [f"{text(a)} to {text(b)}" for a, b in pairwise(edges)]
        shares = [(np.histogram(part, edges)[0] / len(part)).tolist() for part in (real, made)]
    top = max(max(part) for part in shares) or 1.0
    return [(name, 100 * a / top, 100 * b / top) for name, a, b in zip(names, *shares, strict=True)]
