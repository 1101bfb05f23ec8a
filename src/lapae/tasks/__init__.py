"""Tasks judge a trained model: each makes a result with numbers, a table and figures of a model and its data.

A task is a module with `evaluate(model, data, options) -> Result`, whose options are a frozen dataclass beside it.
`TASKS` is the only list; another package adds a task through the entry point `lapae.tasks`, which leads to a `Task`.
Nothing heavy is imported here.
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
    """A task: `target` is its `evaluate`, `options` the dataclass of its options."""

    note: str = ""
    """What the report says above its numbers."""


def _own(name: str, title: str, note: str) -> tuple[str, Task]:
    """few-labels is in few_labels.py, with FewLabelsOptions."""
    place = f"lapae.tasks.{name.replace('-', '_')}"
    return name, Task(title, f"{place}:evaluate", f"{place}:{name.title().replace('-', '')}Options", note)


TASKS: Registry[Task] = Registry(
    "task",
    dict(
        [
            _own(
                "ood",
                "Out-of-distribution detection",
                "How well scores tell test data from data of another kind. AUROC 1 is perfect, 0.5 is chance.",
            ),
            _own(
                "imputation",
                "Missing data",
                "A part of each test datum is hidden and filled in by sampled networks; errors are against the truth.",
            ),
            _own(
                "classification",
                "Classification of imputed data",
                "A classifier of clean data sees data with a part filled in: how often it is right, and whether it "
                "knows.",
            ),
            _own(
                "generation",
                "Generation",
                "New data from noise. Diversity and distance to the training data stand beside those of held-out data.",
            ),
            _own(
                "semi-supervised",
                "Few labels",
                "Nearest neighbours among the codes of a few labelled data, each embedded many times.",
            ),
            _own(
                "calibration",
                "Calibration of the deviation",
                "Are errors larger where the model is less certain? A 90 % interval should contain 90 % of the values.",
            ),
        ]
    ),
    group="lapae.tasks",
)


def run_task(name: str, model: Model, data: Data, options: Any = None) -> Result:
    """Judge a trained model.

    Args:
        name: of the task.
        model: the trained model.
        data: of the kind that it was trained on.
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
