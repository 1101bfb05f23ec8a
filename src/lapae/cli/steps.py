"""Series in time: what was found for windows, as what it says of every step and channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.calibrate.conformal import p_values
from lapae.cli.new_data import verdicts
from lapae.cli.values import Made
from lapae.data import DataError, Reader
from lapae.runs.outputs import csv_rows, write_arrays
from lapae.space.series import Fold

if TYPE_CHECKING:
    from lapae.calibrate.conformal import Rule
    from lapae.cli.new_data import Rows
    from lapae.model import Model


def window_scores(model: Model, x: Any) -> dict[str, Any]:
    """Scores (n,) of windows, and the contributions (n, W, C) of their values."""
    return {"score": -model.anomaly_score(x)[0], "parts": model.explain(x)}


def write_steps(source: Reader, blocks: Iterator[Rows], out: Path, model: Model, rule: Rule) -> tuple[int, int]:
    """A row per step: the mean score of the windows that hold it, its p-value among held-out windows, and how unusual
    each channel is in it. Windows with nothing observed do not count.

    Returns the number of steps, and of those flagged.
    """
    scores, parts = None, None
    for rows in blocks:
        assert source.steps is not None
        first = np.array([int(cell) for (cell,) in rows.cells])
        if scores is None or parts is None:
            scores, parts = Fold(len(source.steps.x)), Fold(len(source.steps.x))
        known = ~np.isnan(rows.found["score"])
        first, score, values = first[known], rows.found["score"][known], rows.found["parts"][known]
        scores.add(first, np.broadcast_to(score[:, None], values.shape[:2]))
        parts.add(first, values)
    if scores is None or parts is None or source.steps is None:
        raise DataError(f"{source.path}: there are no steps to score")
    score, part = scores.mean(), parts.mean()
    p = p_values(-score, rule.held_out)
    n_outliers = int((p <= rule.rate).sum())
    if out.suffix.lower() != ".csv":
        write_arrays(out, {"score": score, "p_value": p, "unusual": part, "outlier": p <= rule.rate})
        return len(score), n_outliers
    names = model.space.names or tuple(map(str, range(part.shape[1])))
    header = [*source.steps.names, "score", "p_value", *(f"unusual_{name}" for name in names), "outlier"]
    columns = np.concatenate([score[:, None], p[:, None], part], 1).tolist()
    with csv_rows(out, header) as write:
        rows_of = zip(source.steps.cells, columns, verdicts(p, rule.rate), strict=True)
        write([*cells, *map(repr, values), mark] for cells, values, mark in rows_of)
    return len(score), n_outliers


def made_steps(source: Reader, blocks: Iterator[Made]) -> Iterator[Made]:
    """The steps of a series from its windows: values and ends of intervals are means over the windows with a step."""
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
