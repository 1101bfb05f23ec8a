"""`lapae data`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lapae.errors import ConfigError


@dataclass(frozen=True)
class DataCommand:
    """List the named data sets (lapae data), or fetch one (lapae data fetch mnist)."""

    action: Annotated[Literal["list", "fetch"], tyro.conf.Positional] = "list"
    """list: which there are; fetch: download one, or verify it where it is there."""
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """Data set to fetch."""
    data_dir: Path | None = None
    """Folder of the data sets; $LAPAE_DATA where not given."""
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    command = tyro.cli(DataCommand, args=list(arguments), prog="lapae data")
    from lapae.data import data_sets, fetch

    if command.action == "fetch":
        if command.name is None:
            raise ConfigError(f"fetch which? Expected one of {', '.join(d.name for d in data_sets())}")
        folder = fetch(command.name, command.data_dir)
        where = "comes with a package" if folder is None else str(folder)
        print(json.dumps({"name": command.name, "where": where}) if command.json else f"{command.name}: {where}")
        return 0
    known = data_sets(command.data_dir)
    if command.json:
        print(json.dumps({d.name: {"description": d.description, "present": d.present} for d in known}))
        return 0
    for data_set in known:
        print(f"{data_set.name:<14} {'here' if data_set.present else 'absent':<7} {data_set.description}")
        if data_set.where is not None:
            print(f"{'':<22} {data_set.where}")
    return 0
