"""Calibration downstream: does a classifier of imputed data know when it does not know? (paper, table 3)

A classifier trained on clean data sees every imputed sample of a datum, with dropout off, and its probabilities are
averaged over samples. Beside it: the same classifier on the truth, and on the data as they are with the missing part
filled with noise (the paper's row "Classifier").
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lapae.data.progress import progress as progress_bar
from lapae.errors import ConfigError
from lapae.methods.base import Method
from lapae.predict.complete import noise_like
from lapae.runs.results import Table
from lapae.tasks.base import device, labels, subset, tensor
from lapae.tasks.classifier import class_probabilities, train_classifier
from lapae.tasks.imputation import ImputationOptions, ImputationResult, hidden_test_data, value_range
from lapae.tasks.imputation import run as run_imputation
from lapae.tasks.metrics import classification, reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.data import Data
    from lapae.model import Model


@dataclass(frozen=True)
class ClassificationResult:
    """Accuracy and calibration of the classifier on imputed, hidden and clean data."""

    metrics: dict[str, dict[str, float]]
    """By input ("imputed", "hidden", "clean"): accuracy, ece, mce, rmsce."""
    bins: dict[str, dict[str, np.ndarray]]
    """By input: the bins of the reliability diagram."""
    imputation: ImputationResult

    def to_dict(self) -> dict[str, Any]:
        """Metrics, and the errors of the imputation."""
        return {**self.metrics, "imputation": self.imputation.to_dict()}

    def table(self) -> Table:
        return Table.by_name(self.metrics)

    def figures(self) -> dict[str, Figure]:
        """The reliability diagram, and the imputed data."""
        from lapae.tasks.figures import reliability_diagram

        return {"classification_reliability": reliability_diagram(self.bins)} | self.imputation.figures()


def run(
    method: Method,
    x: Tensor,
    y: Tensor,
    observed: Tensor,
    classifier: nn.Module,
    *,
    n_bins: int = 15,
    keep_observed: bool = True,
    **options: Any,
) -> ClassificationResult:
    """Impute what is not observed, and classify the samples.

    Args:
        method: the trained method.
        x: data (N, *shape) in the model's space, complete.
        y: their classes (N,).
        observed: boolean (N, *shape).
        classifier: of clean data, in evaluation mode.
        n_bins: of the calibration errors.
        keep_observed: put the observed values back before classifying; the authors classify what the network says of
            the whole image.
        options: those of `impute`.
    """
    imputed = run_imputation(method, x, observed, **options)
    found = imputed.imputation
    inputs = {
        "imputed": found.samples if keep_observed else found.reconstructions,
        "hidden": hidden(imputed, **options)[None],
        "clean": x[None],
    }
    classes = y.cpu().numpy()
    probs = {name: class_probabilities(classifier, samples).numpy() for name, samples in inputs.items()}
    return ClassificationResult(
        {name: classification(p, classes, n_bins=n_bins) for name, p in probs.items()},
        {name: reliability(p, classes, n_bins=n_bins) for name, p in probs.items()},
        imputed,
    )


def hidden(
    imputed: ImputationResult, *, value_range: tuple[float, float] = (0.0, 1.0), seed: int = 0, **options: Any
) -> Tensor:
    """The data (N, *shape) of an imputation, made with the same options, with noise where they were not observed."""
    return torch.where(imputed.observed, imputed.x, noise_like(imputed.x, value_range, seed))


@dataclass(frozen=True)
class ClassificationOptions(ImputationOptions):
    """Calibration of a classifier on imputed data."""

    keep_observed: bool = True
    """Whether observed values are put back before classifying (False: as the authors' code)."""
    epochs: int = 5
    """Epochs of training the classifier."""
    train_limit: int | None = None
    """At most so many training data for the classifier."""
    cache: str | None = None
    """Folder to keep the trained classifier in; the run's own folder where not given."""


def evaluate(model: Model, data: Data, options: ClassificationOptions) -> ClassificationResult:
    y_train, y_test = (labels(split, "the task 'classification'") for split in (data.train, data.held_out))
    if y_train.ndim != 1:
        raise ConfigError(f"the task 'classification' needs one class per datum, got labels of shape {y_train.shape}")
    chosen = subset(data.train, options.train_limit, options.seed)
    index, x, observed = hidden_test_data(model, data, options)
    path = options.cache or getattr(model, "path", None)
    total = len(chosen) * options.epochs + len(x) * options.average
    with progress_bar("classification", total) as advance:
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
        return run(
            model.method,
            x,
            torch.as_tensor(y_test[index]),
            observed,
            classifier,
            keep_observed=options.keep_observed,
            value_range=value_range(model, data),
            progress=advance,
            **options.of_completion(),
        )
