"""The paper's tasks: functions from a trained model and data to a result with numbers and figures.

Each module has a `run` on tensors; `run_task` takes a name, a trained model, data and options, for the command line.
"""

from lapae.tasks import calibration, classification, generation, imputation, ood, semi_supervised
from lapae.tasks.base import TASKS, Result, Task, run_task, task

__all__ = [
    "TASKS",
    "Result",
    "Task",
    "calibration",
    "classification",
    "generation",
    "imputation",
    "ood",
    "run_task",
    "semi_supervised",
    "task",
]
