"""The commands, by name: those of this package and those that others add through the entry point `lapae.commands`.

An entry point names a `Command`, in a module that imports nothing heavy: `lapae --help` reads all of them.

    [project.entry-points."lapae.commands"]
    mine = "my_package.commands:mine"       # mine = Command("what it does", "my_package.mine")
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any


@dataclass(frozen=True)
class Command:
    """A command of the command line."""

    title: str
    """What it does, in a line of `lapae --help`."""
    module: str
    """Dotted name of a module with `main(arguments) -> exit code`, imported when the command is called."""
    several: bool = False
    """Whether several processes share its work, under torchrun."""

    def load(self) -> Any:
        """The module."""
        return import_module(self.module)


def _own(name: str, title: str, several: bool = False) -> tuple[str, Command]:
    return name, Command(title, f"lapae.cli.{name}", several)


OWN = dict(
    [
        _own("demo", "the whole story on embedded data, in about a minute: train, evaluate, report"),
        _own("train", "train any method on any data; flags, a TOML file, or both", several=True),
        _own("embed", "codes of new data under a trained run, with their deviations", several=True),
        _own("score", "how normal new data are under a trained run", several=True),
        _own("impute", "fill in the missing values of new data"),
        _own("sample", "generate new data from a trained run"),
        _own("data", "list the data sets; fetch one"),
        _own("eval", "a task of the paper on a trained run: ood, imputation, calibration, ..."),
        _own("report", "one page about a run: latent map, reconstructions, curves, task results"),
        _own("explore", "the latent space of a run in a browser: move in it, look at data, fill in what is missing"),
    ]
)


@cache
def commands() -> dict[str, Command]:
    """All commands by name; those of this package cannot be replaced."""
    found = {point.name: point.load() for point in entry_points(group="lapae.commands")}
    return OWN | {name: command for name, command in found.items() if name not in OWN}
