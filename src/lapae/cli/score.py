"""`lapae score`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from lapae.cli.new_data import (
    UNNAMED,
    Out,
    Predictive,
    Run,
    Source,
    check_out,
    finish,
    hand_over,
    open_model,
    open_source,
    predicted,
)


@dataclass(frozen=True)
class ScoreCommand:
    """Score new data: the log-likelihood of each datum under a trained run, higher is more normal.

    The output has a row for each datum, in the order of the input, with the columns of a table that are no features
    (an index, a label) or the name of the image file. A run of the estimator also says which data are outliers.
    """

    run: Run
    """Folder of a trained run."""
    input: Source
    """.csv, .npy or .npz file, image, or folder of images."""
    out: Out
    """.csv, .npy or .npz file to write."""
    options: Annotated[Predictive, UNNAMED] = field(default_factory=Predictive)


def main(arguments: Sequence[str]) -> int:
    """Parse, score block by block, write."""
    command = tyro.cli(ScoreCommand, args=list(arguments), prog="lapae score")
    suffix = check_out(command.out, command.input, (".csv", ".npy", ".npz"))
    import numpy as np

    from lapae.estimator.storage import threshold
    from lapae.files import whole
    from lapae.outputs import csv_rows, write_npz
    from lapae.processes import join, rank

    join()
    options = command.options
    model = open_model(command.run, options)
    source = open_source(command.input, model, options)
    offset = threshold(command.run)
    blocks = predicted(model, source, options, ("log_likelihood",), "scoring")
    n = n_outliers = 0
    if rank() > 0:
        return hand_over(blocks)
    if suffix != ".csv":
        parts = [rows.found["log_likelihood"] for rows in blocks]
        scores = np.concatenate(parts) if parts else np.empty(0)
        n, n_outliers = len(scores), int((scores < offset).sum()) if offset is not None else 0
        if suffix == ".npz":
            write_npz(command.out, {"log_likelihood": scores})
        else:
            with whole(command.out) as path, path.open("wb") as file:
                np.save(file, scores)
    else:
        first = next(blocks, None)
        header = [*(first.names if first else []), "log_likelihood", *(["outlier"] if offset is not None else [])]
        with csv_rows(command.out, header) as write:
            while first is not None:
                scores = first.found["log_likelihood"].astype(float).tolist()
                marks = [[int(score < offset)] if offset is not None else [] for score in scores]
                write([*cell, repr(score), *mark] for cell, score, mark in zip(first.cells, scores, marks, strict=True))
                n, n_outliers = n + len(scores), n_outliers + sum(mark[0] for mark in marks if mark)
                first = next(blocks, None)
    return finish(source, command.out, n, options, **({"outliers": n_outliers} if offset is not None else {}))
