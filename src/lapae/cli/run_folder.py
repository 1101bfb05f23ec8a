"""What several commands do with a run folder: open it with its data, train in it, print its numbers."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lapae.errors import ConfigError
from lapae.registry import listing

if TYPE_CHECKING:
    import numpy as np

    from lapae.config import Config
    from lapae.data import Data
    from lapae.model import Model
    from lapae.runs import Run


def open_run(
    path: Path, device: str = "auto", data_dir: str | None = None, file: Path | None = None
) -> tuple[Run, Model, Data]:
    """A run, its model on a device, and its data; or those of a file, all of them to test on."""
    from lapae.data import Data, Split
    from lapae.runs import Run
    from lapae.storage import load_run
    from lapae.train.devices import choose_device

    model = load_run(path, device=choose_device(device))
    if file is None:
        return Run.open(path), model, run_data(model, data_dir)
    x, _ = read_given(model, file)
    given, nothing = Split(x, None), Split(x[:0], None)
    return Run.open(path), model, Data(model.space, given, nothing, nothing, given)


def run_data(model: Model, data_dir: str | None = None) -> Data:
    """The data that a run was trained on."""
    from lapae.data.catalog import check_data
    from lapae.fit import load_data

    check_data(model.config.data.source)
    data = load_data(model.config.data if data_dir is None else replace(model.config.data, data_dir=data_dir))
    if data.shape != model.shape:
        raise ConfigError(f"the data of the run have changed: shape {data.shape}, the model takes {model.shape}")
    return data


def read_given(model: Model, file: Path) -> tuple[np.ndarray, list[str] | None]:
    """All data (n, *shape) of a file or folder that fits a model, and their names where they have some."""
    import numpy as np

    from lapae.data import DataError, open_input

    blocks = list(open_input(file, model.space, any_range=True).blocks(lambda done: None))
    if not sum(len(block.x) for block in blocks):
        raise DataError(f"{file}: holds no data")
    cells = [cells for block in blocks for cells in block.cells]
    ids = [", ".join(map(str, row)) for row in cells]
    return np.concatenate([block.x for block in blocks]), ids if ids and all(ids) else None


def train_in(run: Run, config: Config, data: Data | None = None, *, resume: bool = False) -> Model:
    """Train in a run folder that no other job writes, with progress on stderr."""
    from lapae.fit import fit
    from lapae.train.distributed import from_first, note_begun, rank
    from lapae.train.progress import make_progress

    observers = [make_progress(sys.stderr)] if config.train.verbose and rank() == 0 else []

    def hold() -> None:
        held.enter_context(run.lock())
        if not resume:  # again, now that no other process can begin one here
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
    """Print where the run is and its final numbers."""
    from lapae.runs import plain
    from lapae.train.messages import outcome

    metrics = model.metrics
    if as_json:
        print(json.dumps(plain({"run": str(model.path), "method": model.config.method.method, **metrics})))
        return 0
    lines = {"run": str(model.path), "trained": f"{metrics['epochs']} epochs ({metrics['stopped']})"}
    if metrics["best_loss"] is not None and metrics["best_epoch"]:
        lines["best"] = f"epoch {metrics['best_epoch']}, validation loss {metrics['best_loss']:.6g}"
    if metrics.get("explained") is not None:
        lines["explained"] = outcome(metrics, model.config.model.latent_dim)
    for name, value in metrics.get("test", {}).items():
        lines[f"test {name.replace('_', ' ')}"] = f"{value:.6g}"
    print(listing(lines, indent=""))
    return 0
