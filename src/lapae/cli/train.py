"""`lapae train`."""

from __future__ import annotations

import argparse
import inspect
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import tyro

from lapae.cli.new_data import UNNAMED
from lapae.cli.parsing import parse as parsed
from lapae.cli.run_folder import print_numbers, train_in
from lapae.config import METHODS, Config, DataConfig, MethodConfig, MethodOptions, ModelConfig, TrainConfig
from lapae.config.fields import OneOf
from lapae.config.methods import belongs_to, option_names, options_of, unknown_option
from lapae.errors import ConfigError
from lapae.registry import listing, showing_research
from lapae.train.torchrun import may_restart

M = TypeVar("M", bound=MethodOptions)

MOST_USED = {
    "--out FOLDER": "where the run goes; default: runs/SOURCE-METHOD-N",
    "--drop COLUMN ...": "columns of a table to leave out",
    "--label-column NAME": "column of a table that contains labels: shown in colours, not learned",
    "--group-column NAME": "column that says which rows belong together (one patient, one machine): not learned",
    "--window STEPS": "treat rows as time steps of a series, and learn windows of this length",
    "--tile PIXELS": "cut large images into squares of this side, and learn these at full resolution",
    "--epochs N": "largest number of passes over the data; default: depends on the data",
    "--latent-dim K": "size of the embedding; 2 for a map",
    "--test-fraction SHARE": "share of the rows to keep for `lapae eval`",
    "--seed N": "random seed",
    "--resume RUN": "continue a run that was stopped, or train it further with --epochs",
}
"""Options that `--help` shows: most users need no others."""

SHORT = """usage: lapae train SOURCE [OPTIONS]

Train a model and write it into a run folder. SOURCE is a .csv, .parquet, .npy or .npz file, a folder of images, or a
name that `lapae data` lists. Defaults depend on the data.

options:
{options}

  --help-all shows every option; --method NAME --help-all those of another method.

examples:
  lapae train customers.csv --drop note --out runs/customers
  lapae train machine.csv --window 32 --out runs/machine

Then: lapae score runs/customers new.csv --explain --out scores.csv"""


@dataclass(frozen=True)
class Options(Generic[M]):
    """Options of a `Config` for one method: there are no flags of other methods."""

    data: DataConfig
    model: ModelConfig
    method: M
    train: TrainConfig


@dataclass(frozen=True)
class TrainCommand(Generic[M]):
    """Train a model and write it into a run folder.

    Options come from a TOML file (--config) and from flags, which override it. Training may be stopped at any moment
    (Ctrl-C, kill -9); --resume continues it and ends with the same weights. To use several devices, start one process
    for each with `torchrun -m lapae train`: they share every batch. A job that torchrun restarts (--max-restarts)
    continues the run in --out.
    """

    options: tyro.conf.OmitArgPrefixes[Annotated[Options[M], UNNAMED]]
    name: Annotated[str, tyro.conf.arg(name="method"), OneOf(METHODS)] = "online"
    """Method to train; --method NAME --help-all shows the options of another method."""
    config: Path | None = None
    """TOML file of options, such as the config.toml of a run."""
    out: Path | None = None
    """Folder of the run; default: runs/SOURCE-METHOD-N."""
    resume: Path | None = None
    """Continue this run."""
    resume_if_exists: bool = False
    """Continue the run in --out if there is one, with the same options: for jobs that a cluster restarts."""
    print_config: bool = False
    """Print the configuration, with the defaults for these data, and train nothing; it can be edited and used with
    --config."""
    json: bool = False
    """Print one JSON object to stdout."""

    @property
    def configuration(self) -> Config:
        """Configuration for the other layers."""
        options = self.options
        return Config(options.data, options.model, MethodConfig(self.name, options.method), options.train)


def main(arguments: Sequence[str]) -> int:
    """Run `lapae train` with these arguments, and return its exit code."""
    command = parse(arguments)
    config = command.configuration.resolved()
    # Heavy imports only now: --help does not need them.
    from lapae.fit import load_data
    from lapae.runs import Run
    from lapae.runs.toml import write_config
    from lapae.train.choose import choose
    from lapae.train.distributed import from_first, node_first, rank, take_place

    data = None
    take_place(config.train)  # from here on all processes work together
    if command.resume is None:
        config = replace(config, data=replace(config.data, source=absolute(config.data.source)))
        data = node_first(lambda: load_data(config.data))
        config = choose(config, data.space, portion=data.portion)  # a resumed run has already chosen
    if command.print_config:
        if rank() == 0:
            print(write_config(config), end="")
        return 0
    path, resume = from_first(lambda: choose_run(command, config))
    model = train_in(Run(path), config, data, resume=resume)
    return print_numbers(model, as_json=command.json) if rank() == 0 else 0


def choose_run(command: TrainCommand, config: Config) -> tuple[str, bool]:
    """Return the run folder, and whether to continue the run in it."""
    from lapae.data.files import name_of
    from lapae.runs import CHECKPOINT, CONFIG, Run
    from lapae.train.distributed import has_begun
    from lapae.train.resume import check_resumable, saved_config

    there = command.resume
    if there is None and command.out is not None and (command.resume_if_exists or has_begun()):
        there = command.out if any((command.out / name).exists() for name in (CONFIG, CHECKPOINT)) else None
    if there is not None:
        run = Run.open(there)
        check_resumable(saved_config(run), config)
        return str(run.path), True
    run = Run.create(command.out, name=f"{name_of(config.data.source)}-{config.method.method}")
    return str(run.path), False


def parse(arguments: Sequence[str]) -> TrainCommand:
    """Return the command with its options: those of the file or of the resumed run, overridden by flags."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags = ("--config", "--resume", "--method")
    for flag in flags:
        first.add_argument(flag)
    # tyro reports a flag without its value.
    dangling = bool(arguments) and arguments[-1] in flags
    given, _ = first.parse_known_args(arguments[:-1] if dangling else arguments)
    config = Config()
    if given.resume is not None:
        from lapae.runs import Run
        from lapae.train.resume import saved_config

        if given.config is not None:
            raise ConfigError("--resume uses the options of the run: leave out --config")
        config = saved_config(Run.open(given.resume))
    elif given.config is not None:
        from lapae.runs.toml import read_config

        config = read_config(given.config)
    if given.method is not None:
        config = replace(config, method=MethodConfig(given.method, config.method.options))
    if {"-h", "--help"} & set(arguments) and not showing_research():
        print(SHORT.format(options=listing(MOST_USED)))
        raise SystemExit(0)
    name, options = config.method.method, config.method.options
    check_no_launcher(arguments)
    check_flags(arguments, name)
    command: TrainCommand = parsed(
        TrainCommand[type(options)],
        arguments,
        "lapae train",
        default=TrainCommand(Options(config.data, config.model, options, config.train), name),
        description="\n".join([str(inspect.getdoc(TrainCommand)), "", "methods:", listing(METHODS.titles())]),
    )
    if command.out is None and command.resume is None and (command.resume_if_exists or may_restart()):
        raise ConfigError("a job that may be restarted must be able to find its run: give its folder with --out")
    return command


def check_no_launcher(arguments: Sequence[str]) -> None:
    """Raise ConfigError, with the command to use, if flags ask for several processes: torchrun starts those."""
    launcher = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    launcher.add_argument("--devices", nargs="?", const="1")
    launcher.add_argument("--num-nodes", "--num_nodes", nargs="?", const="1")
    asked, others = launcher.parse_known_args(list(arguments))
    if asked.devices is None and asked.num_nodes is None:
        return
    nodes = [] if asked.num_nodes in (None, "1") else ["--nnodes", asked.num_nodes]
    start = ["torchrun", *nodes, "--nproc-per-node", asked.devices or "1", "-m", "lapae", "train", *others]
    raise ConfigError(f"torchrun starts several processes, not lapae; use: {shlex.join(start)}")


def check_flags(arguments: Sequence[str], method: str) -> None:
    """Raise ConfigError if a flag is an option of a method other than the chosen one."""
    others = {name for kind in (DataConfig, ModelConfig, TrainConfig) for name in option_names(kind)}
    own = {*option_names(options_of(method)), *others}
    for word in arguments:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_")
        name = name if name in own else name.removeprefix("no_")
        if word.startswith("--") and name not in own and belongs_to(name):
            raise ConfigError(unknown_option(method, name))


def absolute(source: str) -> str:
    """Return the full path of a file or folder, so that the run can be resumed from anywhere; names stay as they are.

    Links are followed, unless only the name of the link tells the format.
    """
    from glob import has_magic

    from lapae.data import data_sets
    from lapae.data.files import tables_of
    from lapae.data.opening import format_of

    known = {data_set.name for data_set in data_sets()}
    path = Path(source).expanduser()
    if source in known or not path.exists():
        return str(path.absolute()) if has_magic(source) and tables_of(source) else source
    end = path.resolve()
    return str(end if format_of(end) == format_of(path) else path.absolute())
