"""Series in time: what was found for windows, as what it says of every step and channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.data import Block, DataError, Reader
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


def filled_steps(source: Reader, blocks: Iterator[Any]) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
    """The steps of a series without a hole, from windows without a hole: the mean over the windows that hold a step."""
    folded = None
    for block, x, _ in blocks:
        assert source.steps is not None
        folded = folded or Fold(len(source.steps.x))
        folded.add(np.array([int(cell) for (cell,) in block.cells]), x)
    if folded is not None and source.steps is not None:
        missing = np.isnan(source.steps.x)
        yield source.steps, np.where(missing, folded.mean(), source.steps.x), missing
