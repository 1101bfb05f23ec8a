"""A job: all parts of an input, on this machine's processes or on an engine; a job that was killed is resumed.

The output folder has a file `_job.json` that describes the job, so that only the same job can be resumed. A part is
written whole or not at all: those that exist are done.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread

import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]

from lapae.arrow.mapper import Mapper
from lapae.arrow.parts import Part, Written, write_part
from lapae.errors import ConfigError, RunError
from lapae.runs.files import abandon, make_folder, sweep, write_whole

JOB = "_job.json"
"""Programs that read folders of Parquet files skip names that begin with "_"."""
LOST = 3
"""Number of times that processes may be killed before the job gives up."""
Work = Callable[[Part], Written]
Engine = Callable[[Work, Sequence[Part]], Iterable[Written]]


def start(mapper: Mapper, parts: Sequence[Part], out: Path, *, resume: bool) -> list[Part]:
    """Prepare the output folder, and return the parts that are to be done.

    With `resume`, those that exist are kept; otherwise the folder must be new or empty.
    """
    make_folder(out)
    about = json.dumps(_about(mapper, parts), indent=1).encode()
    if resume and (out / JOB).exists():
        if (out / JOB).read_bytes() != about:
            raise ConfigError(
                f"{out} holds the output of another job (another run, other options or other input): choose another "
                f"--out, or remove it. {out / JOB} describes that job"
            )
    elif any(out.iterdir()):
        hint = "choose another" if resume else "choose another, or go on with --resume"
        raise ConfigError(f"{out} exists and is not an empty folder: {hint}")
    else:
        write_whole(out / JOB, about)
    for folder in {Path(part.target).parent for part in parts}:
        sweep(folder)
    return [part for part in parts if not Path(part.target).exists()]


def _about(mapper: Mapper, parts: Sequence[Part]) -> dict[str, object]:
    """Return a description of a job, with the names, sizes and modification times of its input."""
    files = {part.source: os.stat(part.source) for part in parts}
    return {
        "model": mapper.digest,
        "verb": repr(mapper.verb),
        **({} if mapper.series is None else {"series": repr(mapper.series)}),
        "predicting": dict(mapper.predicting),
        "columns": [f"{each.name}: {each.type}" for each in mapper.schema],
        "input": {name: [found.st_size, found.st_mtime_ns] for name, found in files.items()},
        "parts": [Path(part.target).name for part in parts],
    }


def run(mapper: Mapper, parts: Sequence[Part], engine: Engine) -> Iterator[Written]:
    """Process the parts, in any order."""
    yield from engine(partial(write_part, mapper), parts)


def rows_of(part: Part) -> int:
    """Return the number of rows of a part that is done."""
    return parquet.read_metadata(part.target).num_rows


def on_processes(jobs: int) -> Engine:
    """Return the engine of this machine: `jobs` processes, or only this one if `jobs` is 1."""

    def engine(work: Work, parts: Sequence[Part]) -> Iterator[Written]:
        if jobs == 1 or len(parts) == 1:
            yield from map(work, parts)
            return
        left, lost = list(parts), 0
        while left:
            try:
                for done in _pooled(work, left, min(jobs, len(left))):
                    left.remove(done.part)
                    yield done
            except BrokenProcessPool:
                lost += 1
                if lost > LOST:
                    raise RunError(
                        f"processes of this job were killed {lost} times, perhaps for their memory: try fewer --jobs; "
                        "--resume does the parts that are missing"
                    ) from None

    return engine


def _pooled(work: Work, parts: Sequence[Part], jobs: int) -> Iterator[Written]:
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_prepare)
    try:
        waiting = [pool.submit(work, part) for part in parts]
        for done in as_completed(waiting):
            yield done.result()
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """Make this process end when it is told to, without half-written files, or when the one that started it is gone: a
    killed job leaves no processes behind."""
    parent = parent_process()
    assert parent is not None

    def end(*_: object) -> None:
        abandon()
        os._exit(1)

    def watch() -> None:
        wait([parent.sentinel])
        end()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the first process tells this one to end
    Thread(target=watch, daemon=True).start()
