"""Train the models of several experiments: each model once, in `jobs` processes at a time.

Small networks leave most of a GPU, and of a processor, idle.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from lapae.errors import LapaeError
from lapae.runs import Run
from lapae_paper.experiments.base import Size, find
from lapae_paper.experiments.workspace import Workspace, key

Say = Callable[[str], object]
"""Function that prints one line of progress."""


def fit_all(workspaces: Sequence[Workspace], jobs: int, say: Say = print) -> dict[str, str]:
    """Train all models of the plans that are not trained yet, `jobs` at a time; return failures by experiment.

    Models that others start from come first, and a model of several plans is trained once.
    """
    tasks: dict[str, tuple[int, Workspace, str, bool]] = {}
    for workspace in workspaces:
        for name, trial in workspace.plan.items():
            if trial.start is not None and not Run(workspace.folder(trial.start)).finished:
                tasks.setdefault(key(trial.start), (0, workspace, name, True))
            if not Run(workspace.folder(trial)).finished:
                tasks.setdefault(key(trial), (0 if trial.start is None else 1, workspace, name, False))
    failed: dict[str, str] = {}
    for stage in (0, 1):
        todo = [(workspace, name, start) for when, workspace, name, start in tasks.values() if when == stage]
        if not todo:
            continue
        say(f"{len(todo)} model{'s'[: len(todo) - 1]} to train{' from those' if stage else ''}")
        for workspace, name, reason, seconds in (_here if jobs == 1 or len(todo) == 1 else _in_processes)(todo, jobs):
            say(f"  {workspace.experiment.name}: {name}: " + (f"failed: {reason}" if reason else f"{seconds:.0f} s"))
            if reason:
                failed[workspace.experiment.name] = f"{name}: {reason}"
    return failed


Todo = Sequence[tuple["Workspace", str, bool]]
Done = Iterator[tuple["Workspace", str, str | None, float]]


def _here(todo: Todo, jobs: int) -> Done:
    """Train one model after another in this process."""
    for workspace, name, start in todo:
        reason, seconds = _train(workspace, name, start)
        yield workspace, name, reason, seconds


def _in_processes(todo: Todo, jobs: int) -> Done:
    """Train in parallel. A process that dies ends the others of its pool; what they had trained is kept."""
    import torch

    jobs = min(jobs, len(todo))
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _start, (threads,)) as pool:
        running = {
            pool.submit(_train_there, workspace.as_task(), name, start): (workspace, name)
            for workspace, name, start in todo
        }
        try:
            for future in as_completed(running):
                workspace, name = running[future]
                try:
                    yield workspace, name, *future.result()
                except BrokenProcessPool:
                    yield workspace, name, "its process, or one beside it, was killed", 0.0
        except BaseException:
            for process in list(pool._processes.values()):
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start(threads: int) -> None:
    """Set up a training process.

    It gets its share of the threads, as more threads than processors mostly wait for each other. It ends when the
    process that started it ends, even by a kill: otherwise it would wait for work forever.
    """
    import torch

    torch.set_num_threads(threads)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _train(workspace: Workspace, name: str, start: bool) -> tuple[str | None, float]:
    """Train a model; return why it failed, or None, and the seconds it took."""
    began = time.monotonic()
    trial = workspace.plan[name]
    try:
        workspace.fit(trial.start if start and trial.start is not None else trial)
    except (LapaeError, ValueError, RuntimeError, MemoryError) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    return None, time.monotonic() - began


def _train_there(task: dict[str, Any], name: str, start: bool) -> tuple[str | None, float]:
    """Train a model in a training process, which looks the trial up by its name."""
    import lapae_paper.experiments  # noqa: F401  fills the table

    warnings.simplefilter("ignore")
    places = {"device": task["device"], "data_dir": task["data_dir"]}
    size = Size(task["quick"], task["most_seeds"])
    return _train(Workspace(find(task["experiment"]), size, Path(task["root"]), **places), name, start)
