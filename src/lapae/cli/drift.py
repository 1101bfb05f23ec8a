"""`lapae drift`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from lapae.cli.new_data import (
    UNNAMED,
    PredictOptions,
    Run,
    Source,
    open_model,
    open_source,
    predicted,
    warn_of_unobserved,
    with_options,
)
from lapae.cli.parsing import parse
from lapae.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from lapae.model import Model

EXPLAINED = 200
"""Maximum number of rows, before and after a change, whose reasons are compared."""
BEYOND = 0.2
"""Share of the calibration rows beyond which rows of a file are counted."""
NAMED = 3
"""Maximum number of columns that are named."""


@dataclass(frozen=True)
class DriftCommand:
    """Find out when, and in which columns, the rows of a file differ from those that the run was calibrated with.

    Rows are read in the order of the file; a series is cut into windows that share no step. A drift alarm watches their
    anomaly scores. If nothing has changed, it is raised at most once in --every rows, on average, and at most one file
    in --every is found to have changed as a whole, in its scores or in a column of a table by itself. If the rows after
    a change are as before, its end is given too.
    """

    run: Run
    """Folder of a trained run."""
    input: Source
    """.csv, .parquet, .npy or .npz file, in the order of time."""
    every: int = 10_000
    """Minimum number of rows between two false alarms, on average."""
    options: Annotated[PredictOptions, UNNAMED] = field(default_factory=PredictOptions)


def main(arguments: Sequence[str]) -> int:
    command: DriftCommand = parse(DriftCommand, arguments, "lapae drift")
    if command.every < 1:
        raise ConfigError(f"every = {command.every}: expected at least 1")
    import numpy as np

    from lapae.calibrate.changed_columns import changed_columns
    from lapae.calibrate.changes import change_of
    from lapae.calibrate.conformal import by_chance, p_values
    from lapae.calibrate.drift import DriftAlarm
    from lapae.cli.steps import warn_of_times

    options = command.options
    model = with_options(open_model(command.run, options), options)
    if model.space.kind not in ("table", "series"):
        raise ConfigError(f"lapae drift is for tables and series, this is a run of {model.space.kind}s")
    source = open_source(command.input, model, options)
    blocks = predicted(model, source, lambda m, x: {"x": x, "anomaly_score": m.anomaly_score(x)[0]}, "scoring")
    kept = [
        (rows.cells, rows.found["x"], rows.found["anomaly_score"])
        for rows in warn_of_unobserved(model, command.input, blocks)
    ]
    if not kept:
        raise DataError(f"{command.input}: there are no {'steps' if source.is_series else 'rows'} to compare")
    warn_of_times(source, model)
    cells = [cell for block, _, _ in kept for cell in block]
    score = np.concatenate([part for _, _, part in kept])
    reference, at = model.step_rule().held_out, np.arange(len(score))
    if source.is_series:
        first = np.array([int(cell) for (cell,) in cells])
        at = apart(first, model.space.shape[0])
        reference = reference[:: -(-model.space.shape[0] // (model.space.stride or 1))]
    alarm = DriftAlarm(reference, every=command.every).update(score[at])
    # a file that differs from its first row on may be too short for an alarm, which also compares it with itself
    new = score[at][~np.isnan(score[at])]
    far = int((p_values(new, reference) <= BEYOND).sum())
    in_scores = alarm is not None or by_chance(far, len(new), BEYOND, len(reference)) < 0.5 / command.every
    alone: dict[str, tuple[float, str]] = {}
    if model.space.kind == "table" and model.sampler is not None:
        rows = model.sampler.rows.double().numpy()
        alone = changed_columns(
            model.space.numbered, rows, np.concatenate([x for _, x, _ in kept]), 0.5 / command.every
        )
    drifted = in_scores or bool(alone)
    found: dict[str, Any] = {"n": len(score), "drift": drifted, "row": None, "at": None}
    found |= {
        "last_row": None,
        "last_at": None,
        "columns": {},
        "alone": {name: told for name, (_, told) in alone.items()},
    }
    if in_scores:
        change = change_of(reference, score[at])
        inside = at[change.first : change.end]
        share = excess(model, np.concatenate([x for _, x, _ in kept])[inside])
        names = [column.name for column in model.space.numbered]
        leading = {names[i]: float(share[i]) for i in np.argsort(-share, kind="stable")[:NAMED] if share[i] > 0}
        row, last = int(inside[0]), int(inside[-1])
        if source.is_series:
            assert source.steps is not None
            row, last, cells = int(cells[row][0]), int(cells[last][0]) + model.space.shape[0] - 1, source.steps.cells
        found |= {"row": row, "at": " ".join(cells[row]), "columns": leading}
        if change.end is not None:
            found |= {"last_row": last, "last_at": " ".join(cells[last])}
    if options.json:
        print(json.dumps(found))
        return 0
    if not drifted:
        print(f"{command.input}: {len(score)} {'windows' if source.is_series else 'rows'}, no change found")
        return 0
    for name, told in list(found["alone"].items())[:NAMED]:
        print(f"{command.input}: {name} has changed: {told}")
    if not in_scores:
        return 0
    what = "step" if source.is_series else "row"
    since, until = (
        f"{what} {found[row]}" + (f" ({found[at]})" if found[at] else "")
        for row, at in (("row", "at"), ("last_row", "last_at"))
    )
    by = ", ".join(f"{name} ({share:.0%})" for name, share in found["columns"].items())
    when = f"since {since}" if found["last_row"] is None else f"from {since} to {until}, then as before"
    print(f"{command.input}: changed {when}" + (f", by {by}" if by else ""))
    return 0


def apart(first: np.ndarray, length: int) -> np.ndarray:
    """Return the windows, given their first steps (n,) in increasing order, that share no step with one chosen
    before."""
    chosen, free = [], 0
    for i, step in enumerate(first.tolist()):
        if step >= free:
            chosen.append(i)
            free = step + length
    import numpy as np

    return np.array(chosen, int)


def excess(model: Model, x: np.ndarray) -> np.ndarray:
    """Return the share (C,) of each column in how much more unusual rows x (n, *shape) are than calibration rows."""

    from lapae.data.source import even
    from lapae.predict.prediction import numpy

    assert model.calibration is not None
    rows = model.space.to_user(numpy(model.calibration.reference.rows))

    def parts(x: np.ndarray) -> np.ndarray:
        part = model.explain(x[even(len(x), EXPLAINED)])
        return part.reshape(-1, part.shape[-1]).mean(0)

    more = (parts(x) - parts(rows)).clip(0)
    return more / max(more.sum(), 1e-12)
