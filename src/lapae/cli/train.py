"""`lapae train`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from lapae.config import Config

if TYPE_CHECKING:
    from lapae.model import TrainedModel
    from lapae.runs import Run


@dataclass(frozen=True)
class TrainCommand:
    """Train a method on data, into a run folder.

    A TOML file gives the options, flags go on top of it. Stopped at any moment (Ctrl-C, kill -9), a run goes on with
    --resume and ends at the same weights.
    """

    options: tyro.conf.OmitArgPrefixes[Config] = field(default_factory=Config)
    config: Path | None = None
    """TOML file of options, such as the config.toml of a run."""
    out: Path | None = None
    """Folder of the run; runs/SOURCE-METHOD-N where not given."""
    resume: Path | None = None
    """Go on with this run."""
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    """Parse, train, print."""
    command = parse(arguments)
    # Heavy imports from here on: the help has been answered.
    from lapae.runs import Run
    from lapae.train.fit import check_resumable, load_data, saved_config

    config = command.options
    if command.resume is not None:
        run = Run.open(command.resume)
        check_resumable(saved_config(run), config)
        return report(train_in(run, config, resume=True), as_json=command.json)
    config = replace(config, data=replace(config.data, source=absolute(config.data.source))).resolved()
    data = load_data(config.data)
    run = Run.create(command.out, name=f"{Path(config.data.source).stem}-{config.method.method}")
    return report(train_in(run, config, data), as_json=command.json)


def parse(arguments: Sequence[str]) -> TrainCommand:
    """The command with its options: those of the file (or of the run to resume), the flags on top."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path)
    first.add_argument("--resume", type=Path)
    # A flag without its value is left for tyro to complain about.
    dangling = bool(arguments) and arguments[-1] in ("--config", "--resume")
    files, _ = first.parse_known_args(arguments[:-1] if dangling else arguments)
    options = Config()
    if files.resume is not None:
        from lapae.errors import ConfigError
        from lapae.runs import Run
        from lapae.train.fit import saved_config

        if files.config is not None:
            raise ConfigError("--resume takes the options of the run, so there is no --config with it")
        options = saved_config(Run.open(files.resume))
    elif files.config is not None:
        from lapae.toml import read_config

        options = read_config(files.config)
    return tyro.cli(TrainCommand, args=list(arguments), default=TrainCommand(options), prog="lapae train")


def absolute(source: str) -> str:
    """A file or folder by its full path, so that the run can be resumed from anywhere; a name stays as it is."""
    from lapae.data import data_sets

    known = {data_set.name for data_set in data_sets()}
    path = Path(source).expanduser()
    return source if source in known or not path.exists() else str(path.resolve())


def train_in(run: Run, config: Config, data=None, *, resume: bool = False) -> TrainedModel:
    """Train in a run folder that no other process writes, with progress on stderr."""
    from lapae.train.fit import fit
    from lapae.train.progress import make_progress

    observers = [make_progress(sys.stderr)] if config.train.verbose else []
    try:
        with run.lock():
            if not resume:  # again, now that no other process can begin one here
                run.check_free()
            return fit(config, data, run=run, resume=resume, observers=observers)
    except KeyboardInterrupt:
        if (run / "config.toml").exists():
            print(f"\nlapae: stopped; go on with: lapae train --resume {run.path}", file=sys.stderr)
        raise


def report(model: TrainedModel, *, as_json: bool) -> int:
    """Print where the run is and its final numbers."""
    from lapae.runs import plain

    metrics = model.metrics
    if as_json:
        print(json.dumps(plain({"run": str(model.path), "method": model.config.method.method, **metrics})))
        return 0
    lines = {"run": str(model.path), "trained": f"{metrics['epochs']} epochs ({metrics['stopped']})"}
    if metrics["best_loss"] is not None:
        lines["best"] = f"epoch {metrics['best_epoch']}, validation loss {metrics['best_loss']:.6g}"
    for name, value in metrics.get("test", {}).items():
        lines[f"test {name.replace('_', ' ')}"] = f"{value:.6g}"
    width = max(map(len, lines))
    print("\n".join(f"{name:<{width}}  {value}" for name, value in lines.items()))
    return 0
