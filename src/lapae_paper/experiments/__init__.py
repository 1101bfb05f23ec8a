"""The paper's tables and figures, one file each, next to the paper's own numbers: `lapae reproduce NAME`."""

# In the paper's order, which is that of the page.
from lapae_paper.experiments import teaser  # isort: skip
from lapae_paper.experiments import hessian  # isort: skip
from lapae_paper.experiments import compute  # isort: skip
from lapae_paper.experiments import ood  # isort: skip
from lapae_paper.experiments import imputation  # isort: skip
from lapae_paper.experiments import semi_mnist  # isort: skip
from lapae_paper.experiments import semi_celeba  # isort: skip
from lapae_paper.experiments import updates  # isort: skip
from lapae_paper.experiments import calibration  # isort: skip
from lapae_paper.experiments import width  # isort: skip
from lapae_paper.experiments import vae_variance  # isort: skip
from lapae_paper.experiments import linearization  # isort: skip
from lapae_paper.experiments.base import EXPERIMENTS, Experiment, Outcome, Size, Table, Trial, experiment, find
from lapae_paper.experiments.workspace import Workspace

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Outcome",
    "Size",
    "Table",
    "Trial",
    "Workspace",
    "calibration",
    "compute",
    "experiment",
    "find",
    "hessian",
    "imputation",
    "linearization",
    "ood",
    "semi_celeba",
    "semi_mnist",
    "teaser",
    "updates",
    "vae_variance",
    "width",
]
