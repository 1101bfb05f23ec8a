"""`lapae score`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from lapae.cli.many import is_many, map_many
from lapae.cli.new_data import PredictCommand, check_out, finish, verdicts, warn_of_unobserved
from lapae.cli.parsing import parse
from lapae.errors import ConfigError

if TYPE_CHECKING:
    from lapae.cli.new_data import Rows
    from lapae.model import Model

COLUMNS = ("anomaly_score", "p_value", "log_likelihood")
EXPLAINED = 256
"""Rows that are explained before progress is shown."""
REASONS = ("value", "feature", "share", "expected", "low", "high")
NOTHING = "nothing observed"
LONGEST = 40
"""Maximum number of characters of a cell that names a row."""


@dataclass(frozen=True)
class ScoreCommand(PredictCommand):
    """Score new samples: how unusual each one is, its p-value among held-out normal samples, and whether it is an
    outlier.

    The output has one row per sample, in the order of the input, with the columns of a table that are not features (an
    index, a label) or the name of the image file. The anomaly score is higher for more unusual data. A row is an
    outlier if and only if its p-value is at most the false alarm rate; the cell is empty if all values of the row are
    missing. `unseen` names categories that are not in the training data. For a series (time, channels) there is one row
    per step: the mean score of the windows that contain it with its p-value, the p-value for a threshold that follows
    slow change (p_adaptive), whether there is a drift alarm, and how unusual each channel is. For a model of tiles
    (lapae train --tile) there is one row per image, with its most unusual tile.
    """

    false_alarm_rate: Annotated[float | None, tyro.conf.arg(aliases=["--rate"])] = None
    """Share of new normal samples that are called outliers; default: as in the run."""
    maps: Path | None = None
    """Folder for a picture of each image, at its full size and red where it is unusual; for a run with --features also
    the p-values of its pixels (NAME_p.png, 16 bits)."""
    explain: bool = False
    """Also write the value that makes a sample unusual, its feature, its share of the score, and what was expected (in
    a table: given its other values) with a 90 % interval. In a table it is a value that differs from what was expected,
    if one of those that contribute most does. The cells are empty if no single value is unusual, and say "nothing
    observed" if all values are missing. Rows without a column that names them are numbered by `row`, the line in the
    file. For a series: the most unusual channel in each step, and its share."""


def scores(model: Model, x: Any, *, explain: bool = False, maps: bool = False) -> dict[str, Any]:
    """Return the columns of the output for samples x (n, *shape), or windows of a series.

    With `explain` they name reasons, with `maps` they include pictures of images (`lapae.cli.maps`).
    """
    from lapae.cli.maps import pixels
    from lapae.cli.tiles import image_scores

    series, tiles, maps_of = model.space.kind == "series", bool(model.space.tile), model.space.features
    single = not series and not tiles
    if maps_of is not None:
        if explain:
            raise ConfigError(
                "--explain names values; for a model of features use --maps FOLDER, which shows unusual pixels"
            )
        x = model.space.code(x)  # features are made once
        found = model.judge(x)
        out = {"anomaly_score": found.anomaly_score, "p_value": found.p_value}
        return out | (pixels(model, x, None) if maps else {})
    found = model.judge(x, log_likelihood=single, reasons=series or maps or (explain and single))
    out: dict[str, Any] = {"anomaly_score": found.anomaly_score}
    if series:
        return out | {"parts": found.contribution}
    if tiles:
        out = image_scores(model, found)
    else:
        out |= {"p_value": found.p_value, "log_likelihood": found.log_likelihood}
    if explain and single:
        out |= reasons(model, x, found.contribution)
    return out | (pixels(model, x, found.contribution) if maps else {})


def reasons(model: Model, x: Any, contribution: Any) -> dict[str, Any]:
    """Return the feature that makes each sample unusual (-1 for none), its share and what was expected, (n,) by name.

    `contribution` is what each value of samples x (n, *shape) adds to the anomaly score.
    """
    import numpy as np

    if model.space.kind == "table":
        from lapae.view.reasons import find_reasons

        told = find_reasons(model, x, contribution)
        return {name: getattr(told, name) for name in REASONS}
    expected = model.counterfactual(x, top=1, contribution=contribution)
    part = contribution.reshape(len(x), -1)
    first, total = part.argmax(1), part.sum(1)
    told, at = total > 0, (np.arange(len(x)), first)
    value, *there = (end.reshape(part.shape)[at] for end in (np.asarray(x, float), *expected))
    found = (value, np.where(told, first, -1), np.where(told, part.max(1) / total.clip(1e-12), 0.0), *there)
    return dict(zip(REASONS, found, strict=True))


def table_cells(model: Model, rows: Rows, marks: list[str], *, explain: bool) -> dict[str, list[str]]:
    """Return cells of a table's rows: their reasons as the columns are written, and levels that were never seen."""
    from lapae.view.reasons import Reasons, never_seen

    assert rows.block is not None
    cells, words = {}, rows.block.words
    if explain:
        reasons = Reasons(**{name: rows.found[name] for name in ("feature", *(n for n in REASONS if n != "feature"))})
        cells = reasons.texts(model.space.numbered, words)
        cells["feature"] = [f if m else NOTHING for f, m in zip(cells["feature"], marks, strict=True)]
    if model.calibration is not None and model.calibration.unseen is not None:
        cells["unseen"] = never_seen(model, rows.block.x, words)
    return cells


def counted(n: int, flagged: int, rate: float, unit: str = "rows") -> str:
    """Say how many of n samples are flagged, beside what chance flags if all are normal."""
    chance = f"{n * rate:.0f}" if n * rate >= 0.5 else "less than 1"
    return f"{n:,} {unit} scored, {flagged:,} flagged at {100 * rate:g} % ({chance} expected by chance)"


class MostUnusual:
    """Scores blocks, and remembers the most unusual of the samples that pass."""

    def __init__(self, scores: Callable[[Model, Any], dict[str, Any]]) -> None:
        self.scores, self.unit, self.label, self.most, self.passed = scores, "samples", "", float("-inf"), 0
        self.block: Any = None
        self.x: Any = None
        self.words: dict[int, str] = {}

    def __call__(self, model: Model, x: Any) -> dict[str, Any]:
        """Score a block of samples x (B, *shape)."""
        self.unit = (
            "images" if model.space.features else {"table": "rows", "image": "images"}.get(model.space.kind, "samples")
        )
        self.block = x
        return self.scores(model, x)

    def watching(self, blocks: Iterator[Rows], number: Callable[[int], str]) -> Iterator[Rows]:
        """Yield blocks as they are, each just after it was scored; `number` is that of a sample, from its place."""
        import numpy as np

        for rows in blocks:
            score = np.nan_to_num(rows.found["anomaly_score"], nan=-np.inf)
            if len(score) and score.max() > self.most:
                i = int(score.argmax())
                self.most, self.x = float(score[i]), self.block[i]
                words = {} if rows.block is None else rows.block.words
                self.words = {j: word for (row, j), word in words.items() if row == i}
                cell = rows.cells[i][0] if rows.cells[i] else ""
                named = cell if rows.names[:1] == ["file"] else named_by(rows, i)
                self.label = named or f"row {number(self.passed + i)}"
            self.passed += len(score)
            yield rows

    def told(self, model: Model) -> str:
        """Say which sample it is and, in a table, which value contributes most and what was expected there."""
        if self.x is None:
            return ""
        said, row = f"; most unusual: {self.label}", self.x[None]
        if model.space.kind != "table":
            return said
        from lapae.view.reasons import find_reasons

        found = find_reasons(model, row)
        j = int(found.feature[0])
        if j < 0:
            return said
        name = model.space.names[j] if model.space.names else f"column {j}"
        value = self.words.get(j) or as_written(model, j, found.value[0])
        return f"{said}, {name} {value}, expected {as_written(model, j, found.expected[0])}"


def named_by(rows: Rows, i: int) -> str:
    """Return the name and the cell of row i in the first column that tells the rows apart; "" if none does."""
    for name, cells in zip(rows.names, zip(*rows.cells, strict=True), strict=True):
        if len(set(cells)) == len(cells) and cells[i] and len(cells[i]) <= LONGEST and cells[i].isprintable():
            return f"{name} {cells[i]}".strip()
    return ""


def as_written(model: Model, j: int, value: float) -> str:
    """Write a value of column j as in the input."""
    import numpy as np

    from lapae.space.frames import cells

    column = (model.space.columns or ())[j : j + 1]
    if not column or (column[0].kind == "number" and not column[0].written):
        unit = float(model.space.to_user(np.ones((1, *model.space.model_shape)), deviation=True)[0].reshape(-1)[j])
        size = abs(value) / unit if unit > 0 and np.isfinite(value) else 0.0
        digits = max(4, 3 + int(np.log10(max(size, 1.0))))  # of 5,400,003 ± 20 the first four are always the same
        return f"{value:.{digits}g}"
    kind = "number" if column[0].kind == "count" else column[0].kind  # 1.82 among whole centimetres
    return cells(np.array([value]), replace(column[0], kind=kind))[0]


def main(arguments: Sequence[str]) -> int:
    command: ScoreCommand = parse(ScoreCommand, arguments, "lapae score")
    rate = command.false_alarm_rate
    if rate is not None and not 0 < rate < 1:
        raise ConfigError(f"false_alarm_rate = {rate}: expected a number between 0 and 1")
    if is_many(command):
        if command.maps is not None:
            raise ConfigError("--maps is for images")
        return map_many(command, "score", false_alarm_rate=rate, explain=command.explain)
    suffix = check_out(command.out, command.input, (".csv", ".npy", ".npz"))
    import warnings

    import numpy as np

    from lapae.runs.outputs import csv_rows, write_arrays

    most = MostUnusual(partial(scores, explain=command.explain, maps=command.maps is not None))
    model, source, blocks = command.predictions(most, "scoring", EXPLAINED if command.explain else None)
    blocks = warn_of_unobserved(model, command.input, blocks)
    if command.maps is not None:
        from lapae.cli.maps import writing

        if model.space.kind != "image" and model.space.features is None:
            raise ConfigError("--maps is for images")
        blocks = writing(blocks, command.maps, model, source)
    rule = model.step_rule(rate) if source.is_series else model.rule(rate)
    assert model.calibration is not None
    if unmet := model.calibration.unmet(rule.rate, tiles=model.space.tile):
        warnings.warn(unmet, stacklevel=1)
    if source.is_series:
        from lapae.cli.steps import write_steps

        n, n_outliers, step = write_steps(source, blocks, command.out, model, rule, explain=command.explain)
        said = f"{counted(n, n_outliers, rule.rate, 'steps')}; most unusual: {step}"
        return finish(source, command.out, n, command.options, said=said, outliers=n_outliers)
    columns = [*COLUMNS, *(REASONS if command.explain else ())]
    if model.space.tile or model.space.features is not None:
        columns = ["anomaly_score", "p_value"]
    if model.space.tile:
        from lapae.cli.tiles import image_rows

        blocks = image_rows(blocks)

    blocks = most.watching(blocks, source.row_number)
    n = n_outliers = 0
    if suffix != ".csv":
        parts = [rows.found for rows in blocks]
        found = {name: np.concatenate([part[name] for part in parts]) if parts else np.empty(0) for name in columns}
        found["outlier"] = found["p_value"] <= rule.rate
        n, n_outliers = len(found["p_value"]), int(found["outlier"].sum())
        write_arrays(command.out, found)
        said = counted(n, n_outliers, rule.rate, most.unit) + most.told(model)
        return finish(source, command.out, n, command.options, said=said, outliers=n_outliers)
    table = model.space.kind == "table"
    if table and model.calibration.unseen is not None:
        columns.append("unseen")
    first = next(blocks, None)
    names = source.carried if first is None else first.names
    numbered = table and command.explain and not names
    with csv_rows(command.out, [*(["row"] if numbered else names), *columns, "outlier"]) as write:
        while first is not None:
            marks = verdicts(first.found["p_value"], rule.rate)
            cells = {name: list(map(repr, values.tolist())) for name, values in first.found.items() if name in columns}
            if table:
                cells |= table_cells(model, first, marks, explain=command.explain)
            elif "feature" in cells:
                cells["feature"] = [f if m else NOTHING for f, m in zip(cells["feature"], marks, strict=True)]
            ids = [[source.row_number(n + i)] for i in range(len(marks))] if numbered else first.cells
            rows = zip(ids, *(cells[name] for name in columns), marks, strict=True)
            write([*cell, *values] for cell, *values in rows)
            n, n_outliers = n + len(marks), n_outliers + marks.count("1")
            first = next(blocks, None)
    said = counted(n, n_outliers, rule.rate, most.unit) + most.told(model)
    return finish(source, command.out, n, command.options, said=said, outliers=n_outliers)
