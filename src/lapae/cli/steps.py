"""Time series: from results for windows to results for each step and channel."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lapae.calibrate.steps import StepScores, Windows
from lapae.cli.new_data import verdicts
from lapae.cli.values import Made
from lapae.data import DataError, Reader
from lapae.runs.outputs import csv_rows, write_arrays
from lapae.space.series import Fold, time_faults, times_of

if TYPE_CHECKING:
    from lapae.calibrate.conformal import Rule
    from lapae.cli.new_data import Rows
    from lapae.model import Model

MOST_FLAGGED = 0.5
"""Share of flagged steps in a file above which its data are said to have drifted."""


def warn_of_times(source: Reader, model: Model) -> None:
    """Warn if the times of a series that was read are out of order, have pauses or other distances than in training."""
    if source.steps is not None and (times := times_of(source.steps.cells)) is not None:
        for fault in time_faults(*times, model.space.shape[0], model.space.interval):
            warnings.warn(f"{source.path}: {fault}", stacklevel=3)


def write_steps(
    source: Reader, blocks: Iterator[Rows], out: Path, model: Model, rule: Rule, *, explain: bool = False
) -> tuple[int, int, str]:
    """Write one row per step: the mean anomaly score of the windows that contain it, its p-value among held-out
    windows, its adaptive p-value, whether there is a drift alarm, and how unusual each channel is. Windows with nothing
    observed do not count.

    Args:
        source: the series.
        blocks: "anomaly_score" (n,) of its windows, and "parts" (n, W, C), what their values add to it.
        out: file to write.
        model: the model.
        rule: which steps are flagged.
        explain: whether to name the most unusual channel of each step, and its share.

    Returns:
        The number of steps, the number of flagged steps, and a name for the most unusual one: its time and the channel
            that contributes most.
    """

    def windows() -> Iterator[Windows]:
        for rows in blocks:
            first = np.array([int(cell) for (cell,) in rows.cells])
            yield first, rows.found["anomaly_score"], rows.found["parts"]

    of_windows = windows()
    begun = next(of_windows, None)  # the steps are known once windows are read
    if begun is None or source.steps is None:
        raise DataError(f"{source.path}: there are no steps to score")
    warn_of_times(source, model)
    threshold = model.threshold(rule, overlap=model.space.shape[0])
    steps = StepScores.of(len(source.steps.x), chain([begun], of_windows), rule, threshold)
    assert steps is not None
    score, part, p, p_adaptive, drift = steps.anomaly_score, steps.unusual, steps.p_value, steps.p_adaptive, steps.drift
    flagged = p <= rule.rate
    n_outliers = int(flagged.sum())
    names = model.space.names or tuple(map(str, range(part.shape[1])))
    leading, share = steps.leading()
    if n_outliers > MOST_FLAGGED * len(p):
        first = since(flagged)
        when = " ".join(source.steps.cells[first]) or f"step {first}"
        sensor = names[int(np.nansum(part[flagged], 0).argmax())]
        warnings.warn(
            f"{n_outliers} of {len(p)} steps are flagged: these data have drifted, first at {when}, by {sensor}",
            stacklevel=2,
        )
    step = int(np.nan_to_num(score, nan=-np.inf).argmax())
    most = " ".join(source.steps.cells[step]) or f"step {step}"
    most += f", {names[leading[step]]}" if leading[step] >= 0 else ""
    reasons = {"channel": leading, "share": share} if explain else {}
    if out.suffix.lower() != ".csv":
        found = {"anomaly_score": score, "p_value": p, "p_adaptive": p_adaptive, "drift": drift, "unusual": part}
        write_arrays(out, {**found, "outlier": flagged, **reasons})
        return len(score), n_outliers, most
    header = [*source.steps.names, "anomaly_score", "p_value", "p_adaptive", "drift"]
    header += [*(f"unusual_{name}" for name in names), *reasons, "outlier"]
    columns = [
        [*map(repr, numbers), str(int(alarm)), *map(repr, unusual)]
        for numbers, alarm, unusual in zip(
            np.stack([score, p, p_adaptive], 1).tolist(), drift.tolist(), part.tolist(), strict=True
        )
    ]
    if explain:
        told = zip(leading.tolist(), share.tolist(), strict=True)
        of_steps = [[names[i] if i >= 0 else "", repr(part_of)] for i, part_of in told]
        columns = [row + why for row, why in zip(columns, of_steps, strict=True)]
    with csv_rows(out, header) as write:
        rows_of = zip(source.steps.cells, columns, verdicts(p, rule.rate), strict=True)
        write([*cells, *values, mark] for cells, values, mark in rows_of)
    return len(score), n_outliers, most


def since(flagged: np.ndarray) -> int:
    """Return the step of T from which on most steps are flagged: the one after which the flagged steps exceed half of
    all steps by the most."""
    return int(np.argmax(np.cumsum((flagged - 0.5)[::-1])[::-1]))


def made_steps(source: Reader, blocks: Iterator[Made]) -> Iterator[Made]:
    """Yield the steps of a series: values and ends of intervals are means over the windows that contain a step."""
    folded: list[Fold] = []
    every = True
    for made in blocks:
        assert source.steps is not None
        parts = (made.x, *(made.ends or ()))
        folded = folded or [Fold(len(source.steps.x)) for _ in parts]
        every = every and bool(made.ours.all())
        for fold, part in zip(folded, parts, strict=True):
            fold.add(np.array([int(cell) for (cell,) in made.block.cells]), part)
    if folded and source.steps is not None:
        ours = np.isnan(source.steps.x) | every
        x, *ends = (np.where(ours, fold.mean(), source.steps.x) for fold in folded)
        yield Made(source.steps, x, ours, (ends[0], ends[1]) if ends else None)
