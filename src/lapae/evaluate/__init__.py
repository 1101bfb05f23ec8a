"""Tasks of `lapae eval`: each evaluates a trained model on data, and returns numbers, a table and figures.

A task is a module with `evaluate(model, data, options) -> Result` and a frozen dataclass of its options. The tasks here
evaluate a model's own anomaly score, prediction intervals and imputed values. `TASKS` is the only list; another package
adds a task through the entry point `lapae.tasks`, which leads to a `Task`. Nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lapae.errors import ConfigError
from lapae.registry import Entry, Registry

if TYPE_CHECKING:
    from lapae.data import Data
    from lapae.model import Model
    from lapae.runs.results import Result


@dataclass(frozen=True)
class Task(Entry):
    """A task: `target` is its function `evaluate`, `options` the dataclass of its options."""

    note: str = ""
    """Text that the report shows above its numbers."""


def _own(name: str, title: str, note: str) -> tuple[str, Task]:
    """Return the task of the module `name`, whose options are `NameOptions`."""
    place = f"lapae.evaluate.{name}"
    return name, Task(title, f"{place}:evaluate", f"{place}:{name.title()}Options", note)


TASKS: Registry[Task] = Registry(
    "task",
    dict(
        [
            _own(
                "coverage",
                "Coverage of intervals and p-values",
                "A 90 % interval should contain 90 % of the values of new samples, and 5 % of new normal samples "
                "should have a p-value of at most 0.05.",
            ),
            _own(
                "detection",
                "Detection of unusual samples",
                "How well the anomaly score tells unusual samples from normal ones. AUROC 1 is perfect, 0.5 is chance.",
            ),
            _own(
                "imputation",
                "Imputation of missing values",
                "Known values are hidden at random and imputed: how far off are they, and do their intervals hold?",
            ),
        ]
    ),
    group="lapae.tasks",
)


def run_task(name: str, model: Model, data: Data, options: Any = None) -> Result:
    """Evaluate a trained model.

    Args:
        name: name of the task.
        model: the trained model.
        data: data of the kind that it was trained on.
        options: the task's dataclass, a mapping of its fields, or None for the defaults.
    """
    task = TASKS.find(name)
    kind = task.load_options()
    if options is None or isinstance(options, Mapping):
        options = kind(**(options or {}))
    if not isinstance(options, kind):
        raise TypeError(f"task {name!r} takes {kind.__name__}, got {type(options).__name__}")
    if data.shape != model.shape:
        raise ConfigError(f"the model was trained on data of shape {model.shape}, got {data.shape}")
    return task.load()(model, data, options)
