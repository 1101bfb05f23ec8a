"""`lapae demo`."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapae.cli.parsing import parse
from lapae.config import Config, DataConfig, TrainConfig

if TYPE_CHECKING:
    from lapae.data import Data
    from lapae.model import Model
    from lapae.runs import Run
    from lapae.runs.results import Record

KNOWN = 8
"""Digits below are trained on; the others are kept for out-of-distribution detection."""
DATA = "digits-0-to-7.npz"


@dataclass(frozen=True)
class DemoCommand:
    """Train on scikit-learn's digits 0 to 7 (embedded, no download), see whether 8 and 9 are told apart, impute
    hidden pixels, measure the coverage of intervals and p-values, and write the report. About a minute on two cores."""

    out: Path | None = None
    """Folder of the run; default: runs/demo-N."""
    epochs: int = 100
    """Passes over the training data at most."""
    seed: int = 0
    """Seed of everything random."""
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    command: DemoCommand = parse(DemoCommand, arguments, "lapae demo")
    from lapae.cli.run_folder import print_numbers, train_in
    from lapae.fit import load_data
    from lapae.runs import Run, plain
    from lapae.view.report.page import REPORT, write_report

    run = Run.create(command.out, name="demo")
    unknown = split_digits(run)
    source = DataConfig(source=str((run / DATA).resolve()), test_fraction=0.1)
    config = Config(data=source, train=TrainConfig(epochs=command.epochs, seed=command.seed)).resolved()
    data = load_data(config.data)
    model = train_in(run, config, data)
    records = evaluate(run, model, data, unknown, command.seed)
    write_report(run, model, data)
    page = (run / REPORT).resolve()
    if command.json:
        tasks = {record.task: record.result for record in records}
        print(json.dumps(plain({"run": str(run.path), **model.metrics, "tasks": tasks, "report": str(page)})))
        return 0
    print_numbers(model, as_json=False)
    for record in records:
        print(f"\n{record.task}")
        print(record.table)
    print(f"\nopen in a browser: {page}")
    return 0


def split_digits(run: Run) -> Any:
    """Write the known digits into the run, so that later commands on it find them; the other digits (n, 1, 8, 8)."""
    import numpy as np

    from lapae.data.digits import read_digits
    from lapae.runs.files import write_whole

    digits = read_digits()
    x, y = np.asarray(digits.x).astype(np.float32) / 16, np.asarray(digits.y)
    file = io.BytesIO()
    np.savez_compressed(file, x=x[y < KNOWN, 0], y=y[y < KNOWN])
    write_whole(run / DATA, file.getvalue())
    return x[y >= KNOWN]


def evaluate(run: Run, model: Model, data: Data, unknown: Any, seed: int) -> list[Record]:
    """Run the three tasks, and keep their results in the run."""
    import numpy as np

    from lapae.evaluate import run_task
    from lapae.evaluate.detection import detect
    from lapae.runs.results import save_result

    test = np.asarray(data.test.x)
    # Inverted digits are easy: they have ink where no training image has any. New classes are the honest test.
    unusual = {"digits 8 and 9": unknown, "inverted digits": 1 - test}
    found = detect(model, test, unusual, seed=seed)
    records = [save_result(run, "detection", {"against": list(unusual), "seed": seed}, found)]
    for task, options in {"imputation": {"limit": 100, "seed": seed}, "coverage": {"seed": seed}}.items():
        records.append(save_result(run, task, options, run_task(task, model, data, options)))
    return records
