"""The paper's tables and figures, one file each, beside the paper's own numbers: `lapae reproduce NAME`."""

from lapae.experiments import hessian
from lapae.experiments.base import EXPERIMENTS, Experiment, Outcome, Size, Table, Trial, experiment, find
from lapae.experiments.lab import Lab

__all__ = ["EXPERIMENTS", "Experiment", "Lab", "Outcome", "Size", "Table", "Trial", "experiment", "find", "hessian"]
