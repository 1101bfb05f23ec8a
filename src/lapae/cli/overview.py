"""`lapae list`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lapae.cli.parsing import parse
from lapae.errors import ConfigError, LapaeError

DEPTH = 3
"""Depth of the folders below the given one that are searched."""


@dataclass(frozen=True)
class ListCommand:
    """List the runs in a folder, the newest last: what each was trained on, how, and how far it got."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder to search, including its subfolders."""
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    command: ListCommand = parse(ListCommand, arguments, "lapae list")
    if not command.folder.is_dir():
        raise ConfigError(f"{command.folder}: no such folder; use lapae list FOLDER for another one")
    rows = [row(path) for path in sorted(runs(command.folder), key=changed)]
    if command.json:
        print(json.dumps({"runs": rows}))
        return 0
    if not rows:
        print(f"no runs in {command.folder}: create one with lapae train FILE")
        return 0
    from lapae.runs.results import Table

    print(Table(tuple(rows[0]), [tuple(found.values()) for found in rows]))
    return 0


def runs(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield the run folders at or below a folder. There are no runs inside a run."""
    from lapae.runs import CHECKPOINT, CONFIG

    if (folder / CONFIG).is_file() or (folder / CHECKPOINT).is_file():
        yield folder
    elif depth:
        try:
            inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        except OSError:  # of somebody else
            return
        for path in inside:
            yield from runs(path, depth - 1)


def changed(path: Path) -> float:
    """Return when training last wrote into a run; a report does not count."""
    from lapae.runs import CHECKPOINT, CONFIG, METRICS

    files = (path / name for name in (CONFIG, CHECKPOINT, METRICS))
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def row(path: Path) -> dict[str, str]:
    """Describe a run in words, also if it cannot be read, so that the others are still listed."""
    import datetime

    from lapae.runs import ABOUT, CONFIG, Run
    from lapae.runs.toml import read_config

    when = datetime.datetime.fromtimestamp(changed(path)).strftime("%Y-%m-%d %H:%M")
    found = {"run": str(path), "data": "", "method": "", "state": "cannot be read", "explained": "", "changed": when}
    try:
        config = read_config(path / CONFIG)
    except LapaeError:
        return found
    run = Run(path)
    metrics = (run.read_metrics() if run.finished else None) or {}
    share = metrics.get("explained")
    return found | {
        "data": "arrays (--data FILE)" if (path / ABOUT).exists() else Path(config.data.source).name,
        "method": config.method.method,
        "state": f"{metrics['epochs']} epochs" if "epochs" in metrics else "not finished (--resume)",
        "explained": f"{100 * share:.0f} %" if isinstance(share, float) else "",
    }
