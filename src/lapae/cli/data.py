"""`lapae data`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lapae.cli.parsing import parse
from lapae.errors import ConfigError

if TYPE_CHECKING:
    from lapae.data.inspect import Look


@dataclass(frozen=True)
class DataCommand:
    """List the named data sets (lapae data), fetch one (lapae data fetch mnist), or look at data (lapae data FILE).

    For a file it shows how it is read, without training: the kind and number of samples, how they would be split and,
    for a table, the type of each column, how much of it is missing, and what is left out.
    """

    action: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="list|fetch|FILE")] = "list"
    """list: show the named data sets; fetch: download one, or verify it if it is there; or a file, folder or name."""
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """Data set to fetch."""
    label_column: str | None = None
    """Column of a table that contains the labels."""
    group_column: str | None = None
    """Column of a table that says which rows belong together."""
    window: int | None = None
    """Number of steps in a window of a series."""
    stride: int | None = None
    """Steps from one window of a series to the next."""
    tile: int | None = None
    """Side of the tiles of large images, in pixels."""
    skip_bad: bool = False
    """Skip images of a folder that cannot be read, with a note for each."""
    data_dir: Path | None = None
    """Folder of the data sets; default: $LAPAE_DATA."""
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    command: DataCommand = parse(DataCommand, arguments, "lapae data")
    if command.action == "fetch":
        return fetch(command)
    if command.action != "list":
        if command.name is not None:
            raise ConfigError(f"{command.name!r}: expected one file after lapae data")
        from lapae.data.inspect import look

        names = ("label_column", "group_column", "window", "stride", "tile", "skip_bad", "data_dir")
        found = look(command.action, **{name: getattr(command, name) for name in names})
        print(json.dumps(asdict(found)) if command.json else told(found))
        return 0
    from lapae.data import data_sets

    known = data_sets(command.data_dir)
    if command.json:
        print(json.dumps({d.name: {"description": d.description, "present": d.present} for d in known}))
        return 0
    for data_set in known:
        print(f"{data_set.name:<14} {'here' if data_set.present else 'absent':<7} {data_set.description}")
        if data_set.where is not None:
            print(f"{'':<22} {data_set.where}")
    return 0


def fetch(command: DataCommand) -> int:
    """Download or verify a named data set."""
    from lapae.data import data_sets
    from lapae.data import fetch as fetch_named

    if command.name is None:
        raise ConfigError(f"fetch which? Expected one of {', '.join(d.name for d in data_sets())}")
    folder = fetch_named(command.name, command.data_dir)
    where = "comes with a package" if folder is None else str(folder)
    print(json.dumps({"name": command.name, "where": where}) if command.json else f"{command.name}: {where}")
    return 0


def told(found: Look) -> str:
    """Describe a look in words: the summary, the splits, and one row per column."""
    from lapae.runs.results import Table
    from lapae.train.messages import ROLES

    lines = [found.summary, "; ".join(f"{n:,} {ROLES[split]}" for split, n in found.splits.items() if n)]
    if found.columns:
        rows = [
            (
                c["name"],
                c["kind"] or "left out",
                f"{100 * c['missing']:.3g} %" if c["missing"] else "",
                c["example"],
                "; ".join(part for part in (c["content"], c["form"] and f"as {c['form']}", c["almost"]) if part),
            )
            for c in found.columns
        ]
        lines += ["", str(Table(("column", "kind", "missing", "example", "content"), rows))]
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])
