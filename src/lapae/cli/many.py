"""Tables in many files: what `score`, `impute`, `embed` and `reconstruct` do with a folder or a glob."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from lapae.cli.new_data import Device, Intake, Many
from lapae.errors import ConfigError

TABLES = (".csv", ".tsv", ".parquet", ".pq")


class ManyCommand(Protocol):
    """A command that takes many tables."""

    @property
    def run(self) -> Path: ...
    @property
    def input(self) -> Path: ...
    @property
    def out(self) -> Path: ...
    @property
    def options(self) -> Intake: ...
    @property
    def many(self) -> Many: ...


def is_many(command: ManyCommand) -> bool:
    """Return whether the input is many tables, or one table whose output is a folder of parts."""
    from glob import has_magic

    from lapae.data.image_files import SUFFIXES as IMAGES

    source = command.input
    if source.is_dir():
        if not any(source.iterdir()):
            raise ConfigError(f"{source}: is an empty folder; expected tables (.csv, .tsv, .parquet), images or a glob")
        names = [path.suffix.lower() for path in source.rglob("*") if not path.name.startswith((".", "_"))]
        found = any(name in TABLES for name in names) and not any(name in IMAGES for name in names)
    elif source.exists():
        found = source.suffix.lower() in TABLES and not command.out.suffix
    else:
        found = has_magic(str(source))
        if not found and not command.out.suffix:
            raise ConfigError(f"{source}: there is no such file or folder")
    if not found and command.many != Many():
        given = [f"--{each.name}" for each in fields(Many) if getattr(command.many, each.name) != each.default]
        raise ConfigError(
            f"{' and '.join(given)}: only for many tables; give a folder or a glob in quotes, or a folder as --out"
        )
    return found


def map_many(command: ManyCommand, verb: str, **options: Any) -> int:
    """Map many tables, part by part.

    Args:
        command: the input, the output and how they are shared out.
        verb: the verb of `lapae.mapper`.
        options: of the verb.
    """
    from lapae import mapper
    from lapae.arrow import job
    from lapae.arrow.engines import engine_of
    from lapae.arrow.mapper import is_of_series
    from lapae.arrow.parts import check_range, kept_columns, parts_of
    from lapae.data.files import find_files
    from lapae.data.progress import progress

    many, how = command.many, command.options
    _check(command, how)
    files = find_files(command.input)
    predicting = {name: getattr(how, name, None) for name in ("predictive", "n_samples", "seed")}
    of_series = is_of_series(command.run)
    if of_series:
        options["series"], options["time"] = many.series or (), many.time
    elif many.series or many.time:
        raise ConfigError(f"--series and --time: {command.run} was not trained on a series")
    bare = mapper(command.run, verb, **options, **predicting)
    space = bare.loaded.model.space
    if not how.any_range:
        check_range(files[0], space)
    made = mapper(command.run, verb, keep=kept_columns(files, space), **options, **predicting)
    parts = parts_of(files, command.out, series=of_series)
    left = job.start(made, parts, command.out, resume=many.resume)
    before = [part for part in parts if part not in left]
    engine = engine_of(many.engine, many.address, many.jobs) if many.engine else job.on_processes(many.jobs)
    n, outliers = sum(map(job.rows_of, before)), 0
    with progress(f"{verb}: parts", len(parts)) as advance:
        advance(len(before))
        for done in job.run(made, left, engine) if left else ():
            n, outliers = n + done.n, outliers + (done.outliers or 0)
            advance(1)
    numbers = {"parts": len(parts), "n": n, "done_before": len(before)}
    if verb == "score" and not before:
        numbers["outliers"] = outliers
    if how.json:
        print(json.dumps({"out": str(command.out), **numbers}))
    else:
        there = f", {len(before)} of which already existed" if before else ""
        print(f"{command.out}: {n} rows in {len(parts)} parts{there}")
    return 0


def _check(command: ManyCommand, how: Device) -> None:
    many = command.many
    if many.jobs < 1:
        raise ConfigError(f"jobs = {many.jobs}: expected at least 1")
    if many.address is not None and many.engine is None:
        raise ConfigError("--address is the address of an engine: give --engine dask, ray or spark too")
    if how.device == "cuda":
        raise ConfigError(
            "many tables are mapped on CPUs, so that all processes write the same bytes: leave out --device"
        )
    if command.out.suffix:
        raise ConfigError(
            f"{command.out}: many tables are written as a folder of parts; expected a name without a suffix"
        )
