"""Train and measure the models of several experiments: each model once, in `jobs` processes at a time.

Small networks leave most of a GPU, and of a processor, idle. A model is measured for every experiment that asks for it
as soon as it is trained; those whose measurements are kept are not trained.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from lapae.curvature.chunking import OutOfMemory
from lapae.errors import LapaeError
from lapae.runs import Run
from lapae_paper.experiments.base import Size, find
from lapae_paper.experiments.workspace import Workspace, key

Say = Callable[[str], object]
"""Function that prints one line of progress."""
FAILURES = (LapaeError, OutOfMemory, ValueError, RuntimeError, MemoryError)
"""What may go wrong with one model; the others go on."""


@dataclass
class Task:
    """A model to train, and the experiments that measure it."""

    workspace: Workspace
    name: str
    """Name in the plan of `workspace`."""
    is_start: bool
    """Whether the model is the one that this trial starts from."""
    trained: bool
    measured_by: list[tuple[Workspace, str]] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, bool]:
        """Place among the tasks, by seed; those of a seed that start from another model come last."""
        trial = self.workspace.plan[self.name]
        return trial.config.train.seed, trial.start is not None and not self.is_start


def fit_all(workspaces: Sequence[Workspace], jobs: int, say: Say = print) -> dict[str, str]:
    """Train and measure all models of the plans that are not done yet; return failures by experiment.

    The first seed of every model comes before the second of any, so that an interrupted run has complete tables of few
    seeds; autoencoders that others start from come first. A model of several plans is trained once.

    Args:
        workspaces: the experiments.
        jobs: number of models at a time.
        say: prints progress.
    """
    todo = sorted(_tasks(workspaces).values(), key=lambda task: task.order)
    failed: dict[str, str] = {}
    if not todo:
        return failed
    n_trained = sum(task.trained for task in todo)
    counts = {"train": len(todo) - n_trained, "measure": n_trained}
    say(", ".join(f"{n} model{'s'[: n - 1]} to {what}" for what, n in counts.items() if n))
    for task, reasons, seconds in (_here if jobs == 1 or len(todo) == 1 else _in_processes)(todo, jobs):
        reason = next(iter(reasons.values()), None)
        whose = f"  {task.workspace.experiment.name}: {task.name}: "
        say(whose + (f"failed: {reason}" if reason else f"{seconds:.0f} s"))
        failed |= {name: f"{task.name}: {reason}" for name, reason in reasons.items()}
    return failed


def _tasks(workspaces: Sequence[Workspace]) -> dict[str, Task]:
    """Return what is left to do, by key of the model."""
    tasks: dict[str, Task] = {}
    for workspace in workspaces:
        for name, trial in workspace.plan.items():
            if workspace.done(name):
                continue
            trained = Run(workspace.folder(trial)).finished
            if not trained and trial.start is not None and not Run(workspace.folder(trial.start)).finished:
                tasks.setdefault(key(trial.start), Task(workspace, name, True, False))
            task = tasks.setdefault(key(trial), Task(workspace, name, False, trained))
            task.measured_by.append((workspace, name))
    return tasks


Done = Iterator[tuple[Task, dict[str, str], float]]
"""Tasks that are done, with the reasons of failures by experiment and the seconds."""


def _here(todo: Sequence[Task], jobs: int) -> Done:
    """Train one model after another in this process."""
    for task in todo:
        yield task, *_work(task)


def _in_processes(todo: Sequence[Task], jobs: int) -> Done:
    """Train in parallel. A process that dies ends the others of its pool; what they had done is kept."""
    import torch

    jobs = min(jobs, len(todo))
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _start, (threads,)) as pool:
        running = {pool.submit(_work_there, *_as_message(task)): task for task in todo}
        try:
            for future in as_completed(running):
                task = running[future]
                try:
                    yield task, *future.result()
                except BrokenProcessPool:
                    yield task, dict.fromkeys(_asking(task), "its process, or one beside it, was killed"), 0.0
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


def _work(task: Task) -> tuple[dict[str, str], float]:
    """Train a model and measure it; return why an experiment has failed, by its name, and the seconds it took."""
    began = time.monotonic()
    trial = task.workspace.plan[task.name]
    failed: dict[str, str] = {}
    try:
        task.workspace.fit(trial.start if task.is_start and trial.start is not None else trial)
    except FAILURES as error:
        return dict.fromkeys(_asking(task), f"{type(error).__name__}: {error}"), time.monotonic() - began
    for workspace, name in task.measured_by:
        if workspace.experiment.measure is None:
            continue
        try:
            workspace.measured(name)
        except FAILURES as error:
            failed[workspace.experiment.name] = f"{type(error).__name__}: {error}"
    return failed, time.monotonic() - began


def _asking(task: Task) -> list[str]:
    """Return the names of the experiments that ask for a model."""
    return [workspace.experiment.name for workspace, _ in task.measured_by] or [task.workspace.experiment.name]


def _as_message(task: Task) -> tuple[dict[str, Any], str, bool, list[tuple[dict[str, Any], str]]]:
    """Return a task as another process is told it."""
    others = [(workspace.as_task(), name) for workspace, name in task.measured_by]
    return task.workspace.as_task(), task.name, task.is_start, others


def _work_there(
    place: dict[str, Any], name: str, is_start: bool, others: list[tuple[dict[str, Any], str]]
) -> tuple[dict[str, str], float]:
    """Train and measure a model in a process of its own, which looks trials up by their names."""
    import lapae_paper.experiments  # noqa: F401  fills the table

    warnings.simplefilter("ignore")
    measured_by = [(_workspace(other), other_name) for other, other_name in others]
    return _work(Task(_workspace(place), name, is_start, False, measured_by))


def _workspace(task: dict[str, Any]) -> Workspace:
    places = {"device": task["device"], "data_dir": task["data_dir"]}
    size = Size(task["quick"], task["most_seeds"])
    return Workspace(find(task["experiment"]), size, Path(task["root"]), **places)
