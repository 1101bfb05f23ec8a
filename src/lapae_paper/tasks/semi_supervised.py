"""Classification with few labels: nearest neighbours among the codes of a few samples (paper, figure 12, table 4).

A stochastic encoder embeds each labelled sample many times, which spreads its label as far as the code is uncertain.
Samples to classify are at their mean code. Labelled samples are drawn from one set, and its rest is classified.

Members of an ensemble have a latent space each, in which codes of other members mean nothing: the code of a sample is
then all of theirs side by side, once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lapae.data import Data
from lapae.data.progress import progress as progress_bar
from lapae.errors import ConfigError
from lapae.model import Model
from lapae.predict.decode import encode_draws
from lapae.predict.prediction import numpy
from lapae.runs.results import Table
from lapae_paper.tasks.base import labels, tensor
from lapae_paper.tasks.knn import Voting, choose_k, together, votes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CANDIDATES = (1, 2, 3, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class SemiSupervisedResult:
    """Accuracy against the number of labels, over repetitions."""

    n_labels: tuple[int, ...]
    """Numbers of labelled samples per class (in total, for attributes)."""
    accuracy: np.ndarray
    """(len(n_labels), repetitions): accuracy of classes, or over all attributes."""
    k: np.ndarray
    """(len(n_labels), repetitions): the chosen number of neighbours."""
    attributes: np.ndarray | None = None
    """(len(n_labels), A): accuracy of each attribute, a mean over repetitions."""
    attribute_names: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return mean and standard deviation over repetitions."""
        out: dict[str, Any] = {
            "n_labels": list(self.n_labels),
            "accuracy": self.accuracy.mean(1).tolist(),
            "accuracy_std": self._std().tolist(),
            "k": self.k.tolist(),
            "repetitions": int(self.accuracy.shape[1]),
        }
        if self.attributes is not None:
            names = self.attribute_names or [str(a) for a in range(self.attributes.shape[1])]
            out["attributes"] = {name: self.attributes[:, a].tolist() for a, name in enumerate(names)}
        return out

    def table(self) -> Table:
        """Return accuracy by number of labels."""
        means = zip(self.n_labels, self.accuracy.mean(1), self._std(), strict=True)
        what = "labels (of each class)" if self.attributes is None else "labels"
        return Table((what, "accuracy"), [(int(n), f"{mean:.3f} ± {std:.3f}") for n, mean, std in means])

    def _std(self) -> np.ndarray:
        return self.accuracy.std(1, ddof=1) if self.accuracy.shape[1] > 1 else np.zeros(len(self.accuracy))

    def figures(self) -> dict[str, Figure]:
        """Draw accuracy against the number of labels."""
        from lapae_paper.tasks.figures import accuracy_curve

        what = "labelled samples" if self.attributes is not None else "labels per class"
        return {"semi_supervised": accuracy_curve(self.n_labels, self.accuracy.mean(1), self._std(), what)}


@dataclass(frozen=True)
class SemiSupervisedOptions:
    """Nearest-neighbour classification with few labels."""

    labels: tuple[int, ...] | None = None
    """Labels per class; default: 1 to 100 (10 labelled samples in all for attributes, as in the paper)."""
    n_embeddings: int = 100
    """Number of times that a stochastic encoder embeds each labelled sample."""
    repetitions: int = 5
    """Number of repetitions with other labelled samples."""
    split: str = "valid"
    """The split that labels are taken from and that is classified: valid (the paper) or test."""
    limit: int | None = 5000
    """Number of samples of that split, at most."""
    standardise: bool = False
    """Divide each dimension of the codes by its standard deviation over that split."""
    balanced: bool = True
    """Draw labels of every class; False: as many in all from the whole split, so that classes may be missing."""
    folds: Literal["samples", "copies"] = "samples"
    """What cross-validation of k divides: labelled samples, or their embeddings (a sample is judged by its own)."""
    seed: int = 0
    """Seed of the choice of labels and of draws."""


def evaluate(model: Model, data: Data, options: SemiSupervisedOptions) -> SemiSupervisedResult:
    """Classify with each number of labels. In a repetition, smaller sets of labels are subsets of larger ones."""
    if options.split not in ("train", "valid", "test"):
        raise ConfigError(f"unknown split {options.split!r}: expected valid, test or train")
    split, seed, repetitions = getattr(data, options.split), options.seed, options.repetitions
    chosen = split.some(options.limit, seed)
    y = labels(split, "the task 'semi-supervised'")[chosen]
    voting = Voting(y)
    many = voting.multi_label
    groups = [np.arange(len(y))] if many else [np.flatnonzero(column) for column in voting.indicators.T]
    n_labels = tuple(sorted(set(options.labels or ((10,) if many else _up_to(groups)))))
    _check(n_labels, repetitions, groups, voting)
    per_label = 1  # samples drawn for each number of labels
    if not options.balanced and not many:
        groups, per_label = [np.arange(len(y))], len(groups)
    x = tensor(model, split, chosen)
    if model.method.shared_codes:
        queries = numpy(
            model.predict(
                x, ("codes",), replace(model.predictive, kind="mc", n_samples=options.n_embeddings, seed=seed)
            ).z_mean
        )
    else:
        queries = numpy(encode_draws(model.method, x, options.n_embeddings, seed=seed))
    queries = queries.reshape(len(x), -1)
    scale = np.ones(queries.shape[1], queries.dtype)
    if options.standardise:
        scale = np.maximum(queries.std(0), np.finfo(queries.dtype).tiny)
    queries = queries / scale
    repeated = []
    for r in range(repetitions):
        rng = np.random.default_rng([seed, r])
        order = [rng.permutation(group)[: per_label * n_labels[-1]] for group in groups]
        picked = np.concatenate(order)
        if model.method.shared_codes:
            embedded = numpy(encode_draws(model.method, x[picked], options.n_embeddings, seed=seed + r + 1)) / scale
        else:
            embedded = queries[picked][:, None]
        repeated.append((order, dict(zip(picked.tolist(), embedded, strict=True)), seed + r))

    def classify(order: list[np.ndarray], codes: dict[int, np.ndarray], seed: int) -> list[tuple[np.ndarray, int]]:
        """Return accuracy (one number, or one per attribute) and k for each number of labels."""
        rows = []
        for n in n_labels:
            index = np.concatenate([group[: per_label * n] for group in order])
            points = np.stack([codes[j] for j in index.tolist()])
            indicators = voting.indicators[index]
            k = choose_k(points, indicators, voting, CANDIDATES, seed, of_copies=options.folds == "copies")
            rest = np.setdiff1d(np.arange(len(y)), index)
            votes_of_k = votes(*together(points, indicators), queries[rest], [k])[0]
            rows.append((voting.accuracy(votes_of_k, voting.indicators[rest]), k))
            advance(1)
        return rows

    workers = min(repetitions, os.cpu_count() or 1)
    with progress_bar("semi-supervised", len(n_labels) * repetitions) as advance, ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(lambda task: classify(*task), repeated))
    each = [[row[i][0] for row in found] for i in range(len(n_labels))]
    k = np.array([[row[i][1] for row in found] for i in range(len(n_labels))])
    accuracy = np.array([[one.mean() for one in row] for row in each])
    attributes = np.array([np.mean(row, axis=0) for row in each]) if many else None
    return SemiSupervisedResult(n_labels, accuracy, k, attributes, data.label_names if many else None)


def _check(n_labels: tuple[int, ...], repetitions: int, groups: list[np.ndarray], voting: Voting) -> None:
    if n_labels[0] < 1 or repetitions < 1:
        raise ConfigError(f"expected numbers of labels from 1 on and repetitions, got {n_labels} and {repetitions}")
    if not voting.multi_label and len(groups) < 2:
        raise ConfigError(f"expected at least two classes to tell apart, got {voting.classes.tolist()}")
    smallest = min(map(len, groups))
    if n_labels[-1] >= smallest:
        what = "samples" if voting.multi_label else "samples in the smallest class"
        raise ConfigError(f"{n_labels[-1]} labels leave nothing to classify: there are {smallest} {what}")


def _up_to(groups: list[np.ndarray]) -> tuple[int, ...]:
    """Return the numbers of labels that leave some samples of every class to classify."""
    return tuple(n for n in (1, 2, 5, 10, 20, 50, 100) if n < min(map(len, groups))) or (1,)
