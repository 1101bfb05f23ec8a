"""The commands by name: those of this package, and those that others add through the entry point `lapae.commands`.

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
            _own("demo", "show everything in about twenty seconds: on a table, on images or on sensors"),
            _own("train", "train any method on any data; flags, a TOML file, or both", several=True),
            _own("embed", "write the embeddings of new data, with their standard deviations"),
            _own("score", "score new data: how unusual they are, with p-values"),
            _own("drift", "find out since when, and in which columns, new data differ"),
            _own("reconstruct", "write what the model expects in place of every value, with intervals"),
            _own("impute", "fill in the missing values of new data"),
            _own("sample", "generate new data"),
            _own("data", "show how a file is read, before training; list or fetch the named data sets"),
            # a module named list would hide the builtin in this package
            (
                "list",
                Command(
                    "list the runs in a folder: what they were trained on, and how far they got", "lapae.cli.overview"
                ),
            ),
            _own("eval", "evaluate a run on held-out data: coverage, detection, imputation, ..."),
            _own("report", "write one page about a run: verdict, most unusual samples, errors, latent map"),
            _own("explore", "explore the latent space of a run in a browser, look at samples, fill in missing values"),
            _own("export", "export a run as one ONNX graph: reconstruction, intervals, score and p-value"),
        ]
    ),
    group="lapae.commands",
    adapt=_as_command,
)
