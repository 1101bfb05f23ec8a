"""Calibration of a classifier of imputed samples (paper, table 3).

A classifier trained on clean data sees every completion of a sample, with dropout off, and its probabilities are
averaged over completions. Beside it: the same classifier on the truth, and on the samples with the missing part
filled with noise (the paper's row "Classifier").
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lapae.data import Data
from lapae.data.progress import progress as progress_bar
from lapae.errors import ConfigError
from lapae.impute.chains import noise_like
from lapae.model import Model
from lapae.runs.results import Table
from lapae_paper.tasks.base import device, labels, tensor
from lapae_paper.tasks.classifier import class_probabilities, train_classifier
from lapae_paper.tasks.completion import CompletionOptions, CompletionResult, completed, hidden_test_data, judge
from lapae_paper.tasks.reliability import classification, reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ClassificationResult:
    """Accuracy and calibration of the classifier on imputed, hidden and clean samples."""

    metrics: dict[str, dict[str, float]]
    """Accuracy, ece, mce and rmsce by input ("imputed", "hidden", "clean")."""
    bins: dict[str, dict[str, np.ndarray]]
    """Bins of the reliability diagram, by input."""
    imputation: CompletionResult

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics, and the errors of the imputation."""
        return {**self.metrics, "imputation": self.imputation.to_dict()}

    def table(self) -> Table:
        return Table.by_name(self.metrics)

    def figures(self) -> dict[str, Figure]:
        """Draw the reliability diagram and the imputed samples."""
        from lapae_paper.tasks.figures import reliability_diagram

        return {"classification_reliability": reliability_diagram(self.bins)} | self.imputation.figures()


@dataclass(frozen=True)
class ClassificationOptions(CompletionOptions):
    """Calibration of a classifier on imputed samples."""

    keep_observed: bool = True
    """Whether observed values are put back before classifying (False: as the authors' code)."""
    epochs: int = 5
    """Epochs of training the classifier."""
    train_limit: int | None = None
    """Number of training samples for the classifier, at most."""
    cache: str | None = None
    """Folder to keep the trained classifier in; default: the run's own folder."""


def evaluate(model: Model, data: Data, options: ClassificationOptions) -> ClassificationResult:
    y_train, y_test = (labels(split, "the task 'classification'") for split in (data.train, data.held_out))
    if y_train.ndim != 1:
        raise ConfigError(f"the task 'classification' needs one class per sample, got labels of shape {y_train.shape}")
    chosen = data.train.some(options.train_limit, options.seed)
    path = options.cache or model.path
    with progress_bar("classifier", len(chosen) * options.epochs) as advance:
        classifier = train_classifier(
            tensor(model, data.train, chosen),
            torch.as_tensor(y_train[chosen], dtype=torch.long),
            int(max(y_train.max(), y_test.max())) + 1,
            epochs=options.epochs,
            seed=options.seed,
            cache=Path(path) if path else None,
            device=device(model),
            progress=advance,
        )
    index, x, observed = hidden_test_data(model, data, options)
    found = completed(model, x, observed, options)
    inputs = {
        "imputed": found.samples if options.keep_observed else found.reconstructions,
        "hidden": noisy(model, x, observed, options.seed)[None],
        "clean": x[None],
    }
    y = y_test[index]
    probs = {name: class_probabilities(classifier, samples).numpy() for name, samples in inputs.items()}
    return ClassificationResult(
        {name: classification(p, y) for name, p in probs.items()},
        {name: reliability(p, y) for name, p in probs.items()},
        judge(x, observed, found),
    )


def noisy(model: Model, x: Tensor, observed: Tensor, seed: int) -> Tensor:
    """Return x (N, *shape) with noise in place of what is not observed."""
    return torch.where(observed & ~x.isnan(), x, noise_like(x, model.space.value_range, seed))
