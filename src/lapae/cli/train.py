"""`lapae train`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lapae.cli.new_data import UNNAMED
from lapae.config import Config
from lapae.errors import ConfigError
from lapae.train.launch import end_with_launcher, in_job, may_restart, start_processes

if TYPE_CHECKING:
    from lapae.model import TrainedModel
    from lapae.runs import Run


@dataclass(frozen=True)
class TrainCommand:
    """Train a method on data, into a run folder.

    A TOML file gives the options, flags go on top of it. Stopped at any moment (Ctrl-C, kill -9), a run goes on with
    --resume and ends at the same weights. Under torchrun, or with --devices and --num-nodes, several processes share
    every batch; a job that torchrun starts again (--max-restarts) goes on with the run in --out.
    """

    options: tyro.conf.OmitArgPrefixes[Annotated[Config, UNNAMED]] = field(default_factory=Config)
    config: Path | None = None
    """TOML file of options, such as the config.toml of a run."""
    out: Path | None = None
    """Folder of the run; runs/SOURCE-METHOD-N where not given."""
    resume: Path | None = None
    """Go on with this run."""
    resume_if_exists: bool = False
    """Go on with the run in --out where there is one, with the same options: for jobs that a cluster starts again."""
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    """Parse, train, print."""
    end_with_launcher()
    command = parse(arguments)
    config = command.options.resolved()
    if not in_job() and config.train.devices * config.train.num_nodes > 1:
        return start_processes(["train", *arguments], config.train.devices, config.train.num_nodes)
    # Heavy imports from here on: the help has been answered.
    from lapae.runs import Run
    from lapae.train.distributed import from_first, node_first, rank, take_place
    from lapae.train.fit import load_data

    data = None
    take_place(config.train)  # from here on there are all processes
    if command.resume is None:
        config = replace(config, data=replace(config.data, source=absolute(config.data.source)))
        data = node_first(lambda: load_data(config.data))
    path, resume = from_first(lambda: choose_run(command, config))
    model = train_in(Run(path), config, data, resume=resume)
    return report(model, as_json=command.json) if rank() == 0 else 0


def choose_run(command: TrainCommand, config: Config) -> tuple[str, bool]:
    """The run folder, and whether to go on with what is in it."""
    from lapae.runs import CHECKPOINT, CONFIG, Run
    from lapae.train.distributed import has_begun
    from lapae.train.fit import check_resumable, saved_config

    there = command.resume
    if there is None and command.out is not None and (command.resume_if_exists or has_begun()):
        there = command.out if any((command.out / name).exists() for name in (CONFIG, CHECKPOINT)) else None
    if there is not None:
        run = Run.open(there)
        check_resumable(saved_config(run), config)
        return str(run.path), True
    run = Run.create(command.out, name=f"{Path(config.data.source).stem}-{config.method.method}")
    return str(run.path), False


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
        from lapae.runs import Run
        from lapae.train.fit import saved_config

        if files.config is not None:
            raise ConfigError("--resume takes the options of the run, so there is no --config with it")
        options = saved_config(Run.open(files.resume))
    elif files.config is not None:
        from lapae.runs.toml import read_config

        options = read_config(files.config)
    command = tyro.cli(TrainCommand, args=list(arguments), default=TrainCommand(options), prog="lapae train")
    if command.out is None and command.resume is None and (command.resume_if_exists or may_restart()):
        raise ConfigError("a job that is started again must find its run: --out says where it is")
    return command


def absolute(source: str) -> str:
    """A file or folder by its full path, so that the run can be resumed from anywhere; a name stays as it is."""
    from lapae.data import data_sets

    known = {data_set.name for data_set in data_sets()}
    path = Path(source).expanduser()
    return source if source in known or not path.exists() else str(path.resolve())


def train_in(run: Run, config: Config, data=None, *, resume: bool = False) -> TrainedModel:
    """Train in a run folder that no other job writes, with progress on stderr."""
    from lapae.train.distributed import from_first, note_begun, rank
    from lapae.train.fit import fit
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
