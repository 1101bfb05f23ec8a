"""A series in time as windows, and what was found for windows as what it says of every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lapae.errors import DataError


def starts(n_steps: int, window: int, stride: int) -> np.ndarray:
    """First steps of the windows of a series: every `stride` steps, and one that ends with the series."""
    last = n_steps - window
    return np.union1d(np.arange(0, last + 1, stride), last)


def cut(x: np.ndarray, window: int, where: str | Path = "X") -> np.ndarray:
    """All windows (n, window, C) of a series (T, C), one for each first step: a view, nothing is copied."""
    if len(x) < window:
        raise DataError(f"{where}: a series of {len(x):,} steps is shorter than a window of {window}")
    return sliding_window_view(x, window, axis=0).swapaxes(1, 2)


class Fold:
    """The mean over all windows that cover a step, of values per window and step."""

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps
        self.total: np.ndarray | None = None
        self.count = np.zeros(n_steps)

    def add(self, first: np.ndarray, values: np.ndarray) -> None:
        """Values (n, window, …) of windows whose first steps are `first` (n,)."""
        if self.total is None:
            self.total = np.zeros((self.n_steps, *values.shape[2:]))
        for start, part in zip(first, values, strict=True):
            self.total[start : start + len(part)] += part
            self.count[start : start + len(part)] += 1

    def mean(self) -> np.ndarray:
        """(T, …); NaN where no window covers a step."""
        assert self.total is not None, "there were no windows"
        with np.errstate(invalid="ignore"):
            return self.total / self.count.reshape(-1, *[1] * (self.total.ndim - 1))
