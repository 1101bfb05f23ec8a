"""`lapae reproduce`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from lapae.errors import ConfigError, LapaeError, RunError


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce a table or figure of the paper, beside the paper's own numbers."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """Name of the experiment, or all; --list shows the names."""
    list: bool = False
    """List the experiments, what they need and how long they take."""
    quick: bool = False
    """Run the pipeline on embedded data, in minutes on two CPU cores."""
    seeds: int | None = None
    """Train with at most this number of seeds: fewer models than the paper, and a rougher mean."""
    out: Path | None = None
    """Folder of the results and of the trained models; default: reproduced, or reproduced-quick."""
    jobs: int = 1
    """Number of models to train and measure at the same time, each in its own process."""
    kept: bool = False
    """Train and measure nothing: make tables of the measurements that are there, whatever machine they were made on,
    with as many seeds as they have. With --page those that its record keeps are there, too: the record is extended."""
    again: bool = False
    """Measure everything again, with all also finished experiments. Trained models are kept in any case."""
    page: Path | None = None
    """Page of the record, docs/results.md: results are kept in the folder of that name beside it, and its head and
    tables are written. Without NAME, from the results that are there."""
    check: bool = False
    """With --page: change nothing, and fail if page and results differ or if they are older than the code."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on; auto: cuda if there is one."""
    data_dir: str | None = None
    """Folder of the named data sets; default: $LAPAE_DATA."""
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    command = tyro.cli(ReproduceCommand, args=list(arguments), prog="lapae reproduce")
    for name, number in (("jobs", command.jobs), ("seeds", command.seeds)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} = {number}: expected at least 1")
    from lapae_paper.experiments import EXPERIMENTS, find

    if command.list:
        print_list(as_json=command.json)
        return 0
    if command.check or (command.page is not None and command.name is None):
        return write_or_check(command)
    if command.name is None:
        raise ConfigError(f"which experiment? One of {', '.join(EXPERIMENTS)}, or all; --list says more")
    chosen = list(EXPERIMENTS.values()) if command.name == "all" else [find(command.name)]
    return reproduce(chosen, command)


def write_or_check(command: ReproduceCommand) -> int:
    """Write the page of the record from the results that are kept, or check both."""
    from lapae_paper.experiments.record import age, faults, publish

    if command.page is None or (command.check and command.name is not None):
        raise ConfigError("--check is for a page, and takes no NAME: lapae reproduce --page docs/results.md --check")
    if command.check:
        found = faults(command.page)
        if found:
            raise RunError(f"{command.page} is no record of this code: " + "; ".join(found))
        print(f"{command.page} is as its results say, and no older than the code")
    else:
        publish(command.page, [], Path())
        print(f"{command.page}: written. {age(command.page)}")
    return 0


def print_list(*, as_json: bool = False) -> None:
    from lapae.runs.results import Table
    from lapae_paper.experiments import EXPERIMENTS, Size
    from lapae_paper.experiments.workspace import key

    entries = [
        {
            "name": e.name,
            "of": e.of,
            "about": e.about,
            "needs": list(e.needs),
            "models": len({key(trial) for trial in e.plan(Size()).values()}),
            "minutes_quick": e.minutes[0],
            "minutes": e.minutes[1],
        }
        for e in EXPERIMENTS.values()
    ]
    if as_json:
        print(json.dumps(entries))
        return
    rows = [
        (
            e["name"],
            e["of"],
            ", ".join(e["needs"]) or "-",
            str(e["models"]),
            f"{e['minutes_quick']:g} min",
            f"{e['minutes']:g} min",
            e["about"],
        )
        for e in entries
    ]
    print(Table(("name", "the paper's", "data", "models", "quick, CPU", "full, GPU", "about"), rows))


def reproduce(chosen: Sequence[Any], command: ReproduceCommand) -> int:
    """Run experiments one after another; models that several need are trained once."""
    from lapae.curvature.chunking import OutOfMemory
    from lapae.errors import DataError
    from lapae.runs.files import make_folder
    from lapae_paper.experiments import Size, Workspace
    from lapae_paper.experiments.record import measurements_of, publish
    from lapae_paper.experiments.results import save, settings, tables, write_pages
    from lapae_paper.experiments.training import fit_all

    if command.kept and command.again:
        raise ConfigError("--kept measures nothing and --again everything: leave out one of them")
    if command.page is not None and command.quick:
        raise ConfigError("the quick size is no record of the paper: leave out --quick or --page")
    root = command.out or Path("reproduced-quick" if command.quick else "reproduced")
    make_folder(root)
    say = (
        (lambda text: print(text, file=sys.stderr, flush=True))
        if command.json
        else (lambda text: print(text, flush=True))
    )
    size = Size(command.quick, command.seeds)
    places: dict[str, Any] = {"device": command.device, "data_dir": command.data_dir}
    extended = command.page if command.kept else None
    workspaces = [
        Workspace(
            entry,
            size,
            root,
            **places,
            kept_only=command.kept,
            record={} if extended is None else measurements_of(extended, entry.name),
        )
        for entry in chosen
    ]
    if command.kept:
        workspaces = [workspace for workspace in workspaces if workspace.plan]
        if not workspaces:
            raise DataError(f"{root} holds no measurements of {command.name}: leave out --kept to make them")
    if command.again:
        for workspace in workspaces:
            workspace.forget()
    kept = (
        {}
        if command.again or command.kept or len(workspaces) == 1
        else {workspace.experiment.name: _kept(workspace) for workspace in workspaces}
    )
    failed = fit_all(
        [workspace for workspace in workspaces if not kept.get(workspace.experiment.name)], command.jobs, say
    )
    records = []
    for workspace in workspaces:
        name = workspace.experiment.name
        if record := kept.get(name):
            say(f"{name}: already done (repeat it with --again)")
        elif name in failed:
            continue
        else:
            say(f"\n{name}: {workspace.experiment.about}")
            began = time.monotonic()
            try:
                outcome = workspace.experiment.run(workspace)
            except (LapaeError, DataError, OutOfMemory) as error:  # the others go on
                failed[name] = str(error)
                say(f"  failed: {error}")
                continue
            record = save(workspace, outcome, time.monotonic() - began)
            say(f"\n{settings(record)}")
            for table in tables(record):
                say(f"\n{table.title}\n\n{table.markdown()}\n")
            for note in record["notes"]:
                say(f"- {note}")
        records.append(record)
    pages = write_pages(root)
    if command.page is not None:
        publish(command.page, records, root)
        say(f"{command.page}: head and tables written")
    if command.json:
        print(json.dumps({"out": str(root), "experiments": records}))
    say(
        f"\n{root}/: "
        + ", ".join(str(page.relative_to(root)) if page.is_relative_to(root) else str(page) for page in pages)
    )
    if failed:
        raise RunError("not done: " + "; ".join(f"{name} ({reason})" for name, reason in failed.items()))
    return 0


def _kept(workspace: Any) -> dict[str, Any] | None:
    """Return the result of an experiment that was done before on the same models."""
    from lapae_paper.experiments.results import identity, load

    record = load(workspace.root, workspace.experiment.name)
    same = record is not None and record["quick"] == workspace.size.quick and record["plan"] == identity(workspace)
    return record if same else None
