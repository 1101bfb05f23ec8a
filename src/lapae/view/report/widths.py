"""Whether given samples lie where the model knows less: their prediction intervals beside those of held-out samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from lapae.predict.prediction import join, numpy
from lapae.runs.numbers import number
from lapae.view.display import Display, channel_names
from lapae.view.named_splits import GIVEN, NamedSplits
from lapae.view.report.chart import histogram
from lapae.view.verdicts import LEVEL, Verdicts, batch_size

WIDER, NARROWER = 1.25, 0.8
"""Ratios of widths between which intervals are called as wide as those of held-out samples."""
LACKING = 0.02
"""Share of values missing beyond that of held-out samples that is named as a reason for wide intervals."""
SHOWN = 8
"""Number of columns or channels shown: those whose intervals have widened the most."""


def widths(verdicts: Verdicts, splits: NamedSplits, display: Display, seed: int) -> dict[str, Any] | None:
    """Compare the widths of prediction intervals, for samples given by the user.

    The width of a sample is the mean over its values of their widths, each in units of the median width of that value
    in held-out samples, so that all values count alike. The samples are compared by medians. The held-out samples are
    those that made the intervals: they are kept with the model.

    Returns:
        What the page says; None for samples that are not given by the user, or whose values have no intervals.
    """
    split = splits.parts.get(GIVEN)
    if split is None:
        return None
    model = verdicts.model
    x = model.tensor(np.asarray(split.x[verdicts.some(split, seed)]))
    known = verdicts.calibration.held_out
    (ours, posterior), (usual, usual_posterior) = _widths(verdicts, x), _widths(verdicts, known)
    counted = np.array([not display.is_word(j) for j in range(ours.shape[1])])
    each = np.median(usual, 0)
    counted &= each > 0
    if not counted.any():
        return None
    here, there = ((part / np.where(counted, each, 1.0))[:, counted].mean(1) for part in (ours, usual))
    times = float(np.median(here) / np.median(there))
    lacking = float(x.isnan().double().mean()), float(known.isnan().double().mean())
    return {
        "n": len(x),
        "held_out": len(known),
        "times": f"{_times(times)} times",
        "verdict": verdict(times),
        "good": times <= WIDER,
        "beyond": f"{100 * float(np.mean(here > np.quantile(there, 0.95))):.0f} %",
        "posterior": _posterior(posterior, usual_posterior),
        "lacking": f"{100 * lacking[0]:.0f} %" if lacking[0] > lacking[1] + LACKING else None,
        "columns": _columns(verdicts, display, ours, usual, counted),
        "chart": histogram({"held-out samples": there, "given samples": here}, math.inf, log=True),
    }


def verdict(times: float) -> str:
    """Say whether samples with intervals that are this many times as wide lie where the model knows less."""
    if times > WIDER:
        return f"These samples lie where the model knows less: their intervals are {_times(times)} times as wide."
    if times < NARROWER:
        return f"The model is surer of these samples: their intervals are {_times(times)} times as wide."
    return "The model knows these samples as well as held-out ones: their intervals are as wide."


def _widths(verdicts: Verdicts, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the widths of the intervals of samples x (n, *model_shape), in the units of the data (n, F), and standard
    deviations over networks (n, F')."""
    model, size = verdicts.model, batch_size(x[0].numel())
    found = join([model.predict(some) for some in x.split(size)])
    low, high = model.ends(found, x, LEVEL)
    weights = np.sqrt(numpy(found.x_var).clip(0)).reshape(len(x), -1)
    return (high - low).reshape(len(x), -1), weights


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if 0.1 < ratio < 10 else number(ratio, 2)


def _posterior(ours: np.ndarray, usual: np.ndarray) -> str | None:
    """Write how many times as large the deviations (n, F) over networks are; None if one network makes them."""
    each = np.median(usual, 0)
    if not (each > 0).any():
        return None
    here, there = (np.median((part[:, each > 0] / each[each > 0]).mean(1)) for part in (ours, usual))
    return _times(float(here / there))


def _columns(
    verdicts: Verdicts, display: Display, ours: np.ndarray, usual: np.ndarray, counted: np.ndarray
) -> list[tuple[str, str, str, str]]:
    """Return for each column or channel its median width in held-out and in given samples, and their ratio."""
    if display.kind == "image":
        return []
    names = list(display.names)
    if display.channels:
        names = list(channel_names(verdicts.model.space))
        ours, usual = (part.reshape(-1, len(names)) for part in (ours, usual))
        counted = np.ones(len(names), bool)
    widths = [(np.median(usual[:, j]), np.median(ours[:, j]), names[j]) for j in np.flatnonzero(counted)]
    widths = sorted(((old, new, name) for old, new, name in widths if old > 0), key=lambda found: -found[1] / found[0])
    return [(name, number(old, 3), number(new, 3), _times(new / old)) for old, new, name in widths[:SHOWN]]
