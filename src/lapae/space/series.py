"""A time series as windows, and results for windows as results for each step."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lapae.errors import DataError

CLOCK = 0.9
"""Minimum share of steps at which a clock advances: others may repeat the previous time."""
FASTER = 1.5
"""Largest ratio of the time between steps and that of training."""


def starts(n_steps: int, window: int, stride: int) -> np.ndarray:
    """Return the first steps of the windows of a series: every `stride` steps, and one that ends with the series."""
    last = n_steps - window
    return np.union1d(np.arange(0, last + 1, stride), last)


def cut(x: np.ndarray, window: int, where: str | Path = "X") -> np.ndarray:
    """Return all windows (n, window, C) of a series (T, C), one for each first step, as a view without a copy."""
    if len(x) < window:
        steps = "1 step" if len(x) == 1 else f"{len(x):,} steps"
        raise DataError(f"{where}: a series of {steps} is shorter than a window of {window}")
    return sliding_window_view(x, window, axis=0).swapaxes(1, 2)


def is_clock(values: np.ndarray) -> bool:
    """Return whether numbers (T,) can be the times of steps: none is missing or less than the previous one."""
    gaps = np.diff(values)
    return len(gaps) > 1 and bool((gaps >= 0).all()) and float((gaps > 0).mean()) >= CLOCK


def times_of(cells: Sequence[Sequence[str]]) -> tuple[np.ndarray, list[str]] | None:
    """Return the times of steps in seconds, (T,), and as written, from the first of their cells that are times or
    numbers; None if there are none."""
    import pandas as pd

    if len(cells) < 3:
        return None
    for written in zip(*cells, strict=True):
        numbers: Any = pd.to_numeric(pd.Series(list(written)), errors="coerce")
        found: list[np.ndarray] = [numbers.to_numpy(np.float64)]
        if np.isnan(found[0]).any():
            found = [_seconds(written, day_first=day_first) for day_first in (False, True)]
        found = [times for times in found if not np.isnan(times).any() and len(np.unique(times)) > 1]
        if found:  # 01.02. may be either: of both, the times that go on more evenly
            return min(found, key=lambda times: float(np.abs(np.diff(times)).max())), list(written)
    return None


def _seconds(written: Sequence[str], *, day_first: bool) -> np.ndarray:
    """Return times as seconds since 1970, NaN for everything else."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forms that are guessed
        times: Any = pd.to_datetime(pd.Series(list(written)), errors="coerce", utc=True, dayfirst=day_first)
    micro = times.dt.tz_localize(None).astype("datetime64[us]").to_numpy()
    return np.where(np.isnat(micro), np.nan, micro.astype(np.int64) / 1e6)


def interval_of(times: np.ndarray) -> float | None:
    """Return the usual time between steps at `times` (T,), None if they have none."""
    return float(np.median(np.abs(np.diff(times)))) or None


def time_faults(times: np.ndarray, written: Sequence[str], window: int, interval: float | None = None) -> list[str]:
    """Say what is wrong with the times of steps (T,): out of order, the same twice, pauses longer than a window, or
    another time between steps than the `interval` of training."""
    gaps, found, usual = np.diff(times), [], interval_of(times) or 0.0
    if interval and usual and not 1 / FASTER < usual / interval < FASTER:
        found.append(
            f"the steps are {usual:g} apart, those of training {interval:g} (in seconds, or as the clock counts): a "
            "window is another time. Resample the file first"
        )
    if (back := gaps < 0).any():
        where = f"{written[int(back.argmax()) + 1]} comes after {written[int(back.argmax())]}"
        found.append(f"the steps are not in the order of time: {where}. Sort the file first")
    if (same := gaps == 0).any():
        found.append(
            f"{int(same.sum())} steps have the time of the one before, the first at {written[int(same.argmax())]}"
        )
    if usual > 0 and not back.any() and (pause := gaps > window * usual).any():
        n, longest = int(pause.sum()), int(gaps.argmax())
        which = f"{n} pauses longer than a window, the longest" if n > 1 else "a pause longer than a window,"
        found.append(f"{which} after {written[longest]}: steps before and after it are read as if time went on")
    return found


class Fold:
    """Mean over all windows that contain a step, of values per window and step."""

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps
        self.total: np.ndarray | None = None
        self.count = np.zeros(n_steps)

    def add(self, first: np.ndarray, values: np.ndarray) -> None:
        """Add values (n, window, …) of windows whose first steps are `first` (n,)."""
        if self.total is None:
            self.total = np.zeros((self.n_steps, *values.shape[2:]))
        for start, part in zip(first, values, strict=True):
            self.total[start : start + len(part)] += part
            self.count[start : start + len(part)] += 1

    def mean(self) -> np.ndarray:
        """Return the means (T, …); NaN where no window contains a step."""
        assert self.total is not None, "there were no windows"
        with np.errstate(invalid="ignore"):
            return self.total / self.count.reshape(-1, *[1] * (self.total.ndim - 1))
