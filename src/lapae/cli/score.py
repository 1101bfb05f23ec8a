"""`lapae score`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from lapae.cli.new_data import PredictCommand, check_out, finish, hand_over


@dataclass(frozen=True)
class ScoreCommand(PredictCommand):
    """Score new data: the log-likelihood of each datum under a trained run, higher is more normal.

    The output has a row for each datum, in the order of the input, with the columns of a table that are no features
    (an index, a label) or the name of the image file. A run of the estimator also says which data are outliers.
    """


def main(arguments: Sequence[str]) -> int:
    """Parse, score block by block, write."""
    command = tyro.cli(ScoreCommand, args=list(arguments), prog="lapae score")
    suffix = check_out(command.out, command.input, (".csv", ".npy", ".npz"))
    import numpy as np

    from lapae.estimator.storage import threshold
    from lapae.runs.outputs import csv_rows, write_arrays
    from lapae.train.distributed import rank

    options = command.options
    source, blocks = command.predictions(("log_likelihood",), "scoring")
    offset = threshold(command.run)
    n = n_outliers = 0
    if rank() > 0:
        return hand_over(blocks)
    if suffix != ".csv":
        parts = [rows.found["log_likelihood"] for rows in blocks]
        scores = np.concatenate(parts) if parts else np.empty(0)
        n, n_outliers = len(scores), int((~(scores >= offset)).sum()) if offset is not None else 0
        write_arrays(command.out, {"log_likelihood": scores})
    else:
        first = next(blocks, None)
        header = [*(first.names if first else []), "log_likelihood", *(["outlier"] if offset is not None else [])]
        with csv_rows(command.out, header) as write:
            while first is not None:
                scores = first.found["log_likelihood"].astype(float).tolist()
                marks = [[int(not score >= offset)] if offset is not None else [] for score in scores]
                write([*cell, repr(score), *mark] for cell, score, mark in zip(first.cells, scores, marks, strict=True))
                n, n_outliers = n + len(scores), n_outliers + sum(mark[0] for mark in marks if mark)
                first = next(blocks, None)
    return finish(source, command.out, n, options, **({"outliers": n_outliers} if offset is not None else {}))
