"""Functions for run folders that several commands share: open one with its data, train in it, print its numbers."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lapae.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from lapae.config import Config
    from lapae.data import Data
    from lapae.model import Model
    from lapae.runs import Run


def open_run(
    path: Path,
    device: str = "auto",
    data_dir: str | None = None,
    file: Path | None = None,
    label_column: str | None = None,
) -> tuple[Run, Model, Data]:
    """Open a run: the run, its model on a device, and data.

    The data are those of `file`, all to test on, or by default those of the run, with its splits. Folder of the named
    data sets and column with labels are by default those of the run.
    """
    from lapae.runs import Run
    from lapae.storage import load_run
    from lapae.train.devices import choose_device

    model = load_run(path, device=choose_device(device))
    if file is None:
        return Run.open(path), model, run_data(model, data_dir, label_column)
    return Run.open(path), model, given_data(model, file, label_column)


def given_data(model: Model, file: Path, label_column: str | None = None) -> Data:
    """Return the data of a file, all as the test set, with the labels of a column: the named one, or the run's."""
    import numpy as np

    from lapae.data import Data, Split
    from lapae.data.labels import as_classes
    from lapae.data.opening import read_all

    block, space, y = read_all(file, model.space), model.space, None
    if label_column is None and model.config.data.label_column in block.names:
        label_column = model.config.data.label_column
    if label_column is not None:
        if label_column not in block.names:
            there = f"expected one of {', '.join(map(repr, block.names))}" if block.names else "there are no others"
            raise ConfigError(f"{file}: no column {label_column!r} besides the features; {there}")
        place = block.names.index(label_column)
        y, names = as_classes(file, np.array([str(row[place]).strip() for row in block.cells]), len(block.x))
        space = replace(space, label_names=names)
    given, nothing = Split(block.x, y), Split(block.x[:0], None)
    return Data(space, given, nothing, nothing, given)


def run_data(model: Model, data_dir: str | None = None, label_column: str | None = None) -> Data:
    """Return the data that a run was trained on; the arguments replace options of its configuration."""
    from lapae.data.catalog import check_data
    from lapae.fit import load_data

    check_data(model.config.data.source)
    changed = {"data_dir": data_dir, "label_column": label_column}
    config = replace(model.config.data, **{name: value for name, value in changed.items() if value is not None})
    data = load_data(config).in_memory
    if data.shape != model.shape:
        raise ConfigError(f"the data of the run have changed: shape {data.shape}, the model takes {model.shape}")
    return data


def read_given(model: Model, file: Path) -> tuple[np.ndarray, list[str] | None]:
    """Return all data (n, *shape) of a file or folder that fits a model, and their names if they have any."""
    from lapae.data.opening import read_all

    block = read_all(file, model.space)
    ids = [", ".join(map(str, row)) for row in block.cells]
    return block.x, ids if ids and all(ids) else None


def train_in(run: Run, config: Config, data: Data | None = None, *, resume: bool = False) -> Model:
    """Train in a run folder that no other job is writing to, with progress on stderr."""
    from lapae.fit import fit
    from lapae.train.distributed import from_first, note_begun, rank
    from lapae.train.progress import make_progress

    observers = [make_progress(sys.stderr)] if config.train.verbose and rank() == 0 else []

    def hold() -> None:
        held.enter_context(run.lock())
        if not resume:  # check again, now that no other process can start one here
            run.check_free()
        note_begun()

    try:
        with ExitStack() as held:
            from_first(hold)
            return fit(config, data, run=run, resume=resume, observers=observers)
    except KeyboardInterrupt:
        if rank() == 0 and (run / "config.toml").exists():
            print(f"\nlapae: stopped; continue with: lapae train --resume {run.path}", file=sys.stderr)
        raise


def print_numbers(model: Model, *, as_json: bool) -> int:
    """Print how long training took, what the model explains, and what to do next."""
    from lapae.runs import plain

    metrics = model.metrics
    if as_json:
        print(json.dumps(plain({"run": str(model.path), "method": model.config.method.method, **metrics})))
        return 0
    epochs = f"{metrics['epochs']} epoch{'' if metrics['epochs'] == 1 else 's'}"
    parts = [f"trained in {metrics['seconds']:.0f} s ({epochs})"]
    if metrics.get("explained") is not None:
        pca = metrics.get("explained_by_pca")
        beside = "" if pca is None else f" (PCA {100 * pca:.0f} %)"
        share = f"{100 * metrics['explained']:.0f} %" if metrics["explained"] > 0 else "nothing"
        parts.append(f"explains {share}{beside}")
    print(" · ".join([*parts, f"next: {shlex.join(['lapae', 'report', str(model.path)])}"]))
    return 0
