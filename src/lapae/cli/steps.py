"""Series in time: what was found for windows, as what it says of every step and channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.cli.values import Made
from lapae.data import DataError, Reader
from lapae.runs.outputs import csv_rows, write_arrays
from lapae.space.series import Fold

if TYPE_CHECKING:
    from lapae.cli.shared import Rows
    from lapae.model import Model


def window_scores(model: Model, x: Any) -> dict[str, Any]:
    """Scores (n,) of windows, and the contributions (n, W, C) of their values."""
    return {"score": -model.surprise(x)[0], "parts": model.explain(x)}


def write_steps(source: Reader, blocks: Iterator[Rows], out: Path, model: Model, least: float) -> tuple[int, int]:
    """A row per step: the mean score of the windows that hold it, and how unusual each channel is in it.

    Returns the number of steps, and of those below `least`.
    """
    scores, parts = None, None
    for rows in blocks:
        assert source.steps is not None
        first = np.array([int(cell) for (cell,) in rows.cells])
        if scores is None or parts is None:
            scores, parts = Fold(len(source.steps.x)), Fold(len(source.steps.x))
        values = rows.found["parts"]
        scores.add(first, np.broadcast_to(rows.found["score"][:, None], values.shape[:2]))
        parts.add(first, values)
    if scores is None or parts is None or source.steps is None:
        raise DataError(f"{source.path}: there are no steps to score")
    score, part = scores.mean(), parts.mean()
    outlier = score < least
    if out.suffix.lower() != ".csv":
        write_arrays(out, {"score": score, "unusual": part, "outlier": outlier})
        return len(score), int(outlier.sum())
    names = model.space.names or tuple(map(str, range(part.shape[1])))
    header = [*source.steps.names, "score", *(f"unusual_{name}" for name in names), "outlier"]
    columns = np.concatenate([score[:, None], part], 1).tolist()
    with csv_rows(out, header) as write:
        rows_of = zip(source.steps.cells, columns, outlier.astype(int).tolist(), strict=True)
        write([*cells, *map(repr, values), mark] for cells, values, mark in rows_of)
    return len(score), int(outlier.sum())


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
