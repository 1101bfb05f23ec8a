"""The commands, by name: those of this package and those that others add through the entry point `lapae.commands`.

An entry point names a `Command`, in a module that imports nothing heavy: `lapae --help` reads all of them.

    [project.entry-points."lapae.commands"]
    mine = "my_package.commands:mine"       # mine = Command("what it does", "my_package.mine")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lapae.registry import Entry, Registry


@dataclass(frozen=True)
class Command(Entry):
    """A command of the command line; `target` is a module with `main(arguments) -> exit code`."""

    several: bool = False
    """Whether several processes share its work, under torchrun."""


def _own(name: str, title: str, several: bool = False) -> tuple[str, Command]:
    return name, Command(title, f"lapae.cli.{name}", several=several)


def _as_command(found: Any) -> Command:
    if not isinstance(found, Command):
        raise TypeError(f"expected a lapae.cli.registry.Command, got {type(found).__name__}")
    return found


COMMANDS: Registry[Command] = Registry(
    "command",
    dict(
        [
            _own("demo", "the whole story in about twenty seconds: a table, or images, or sensors"),
            _own("train", "train any method on any data; flags, a TOML file, or both", several=True),
            _own("embed", "latent codes of new data under a trained run, with their standard deviations"),
            _own("score", "how unusual new data are under a trained run"),
            _own("drift", "since when, and by which columns, new data differ"),
            _own("reconstruct", "what a trained run expects in place of every value, with intervals"),
            _own("impute", "fill in the missing values of new data"),
            _own("sample", "generate new data from a trained run"),
            _own("data", "look at a file before training; list the named data sets, fetch one"),
            # a module named list would hide the builtin in this package
            (
                "list",
                Command("the runs in a folder: what they were trained on, and how far they got", "lapae.cli.overview"),
            ),
            _own("eval", "judge a trained run on held-out data: coverage, detection, imputation, ..."),
            _own("report", "one page about a run: latent map, reconstructions, curves, task results"),
            _own(
                "explore", "the latent space of a run in a browser: move in it, look at data, fill in what is missing"
            ),
            _own("export", "one ONNX graph of a trained run: reconstruction, intervals, score and p-value"),
        ]
    ),
    group="lapae.commands",
    adapt=_as_command,
)
