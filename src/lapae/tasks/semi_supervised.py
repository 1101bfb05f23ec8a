"""Classification with few labels: nearest neighbours among the codes of a few data (paper, figure 12 and table 4).

A stochastic encoder embeds each labelled datum many times, which spreads its label as far as the code is uncertain. The
data to classify are at their mean code. Labelled data are drawn from one set, and the rest of that set is classified.

Members of an ensemble have a latent space each, in which codes of other members mean nothing: the code of a datum is
then all of theirs side by side, once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lapae.data.progress import progress as progress_bar
from lapae.methods.base import Method
from lapae.predict import predict
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.prediction import Progress
from lapae.runs.results import Table
from lapae.tasks.base import labels, subset, tensor
from lapae.tasks.knn import Voting, choose_k, together, votes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.data import Data
    from lapae.model import Model

CANDIDATES = (1, 2, 3, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class SemiSupervisedResult:
    """Accuracy against the number of labels, over repetitions."""

    n_labels: tuple[int, ...]
    """Labelled data per class (in all, for attributes)."""
    accuracy: np.ndarray
    """(len(n_labels), repetitions): of classes, or over all attributes."""
    k: np.ndarray
    """(len(n_labels), repetitions): the chosen number of neighbours."""
    attributes: np.ndarray | None = None
    """(len(n_labels), A): accuracy of each attribute, a mean over repetitions."""
    attribute_names: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Mean and standard deviation over repetitions."""
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
        """Accuracy by number of labels."""
        means = zip(self.n_labels, self.accuracy.mean(1), self._std(), strict=True)
        what = "labels (of each class)" if self.attributes is None else "labels"
        return Table((what, "accuracy"), [(int(n), f"{mean:.3f} ± {std:.3f}") for n, mean, std in means])

    def _std(self) -> np.ndarray:
        return self.accuracy.std(1, ddof=1) if self.accuracy.shape[1] > 1 else np.zeros(len(self.accuracy))

    def figures(self) -> dict[str, Figure]:
        """Accuracy against the number of labels."""
        from lapae.tasks.figures import curve

        what = "labelled data" if self.attributes is not None else "labels per class"
        mean = self.accuracy.mean(1)
        return {"semi_supervised": curve(self.n_labels, mean, self._std(), what, "accuracy", log_x=True)}


def embed(method: Method, x: Tensor, *, n_embeddings: int = 100, seed: int = 0, batch_size: int = 512) -> np.ndarray:
    """Codes of x (n, *shape) under single networks: (n, copies, K); one copy where the method is deterministic."""
    weight = next(method.parameters())
    parts = []
    with evaluating(method):
        seeds = draw_seeds(seed, n_distinct(method, n_embeddings))
        for start in range(0, len(seeds), 10):
            draws = method.draw(seeds[start : start + 10])
            codes = [draws.encode(part.to(weight.device, weight.dtype)[None]).cpu() for part in x.split(batch_size)]
            parts.append(torch.cat(codes, 1))
    return torch.cat(parts).transpose(0, 1).numpy()


def run(
    method: Method,
    x: Tensor,
    y: np.ndarray,
    *,
    n_labels: Sequence[int] = (1, 2, 5, 10, 20, 50, 100),
    n_embeddings: int = 100,
    repetitions: int = 5,
    seed: int = 0,
    attribute_names: tuple[str, ...] | None = None,
    candidates: Sequence[int] = CANDIDATES,
    progress: Progress | None = None,
) -> SemiSupervisedResult:
    """Accuracy of nearest neighbours among the codes of a few labelled data.

    In each repetition the fewer labels are a part of the more. Repetitions are classified in threads.

    Args:
        method: the trained method.
        x: data (N, *shape) in the model's space.
        y: classes (N,), or attributes (N, A).
        n_labels: labelled data per class (in all, for attributes).
        n_embeddings: copies of each labelled datum, each embedded by a network of its own.
        repetitions: draws of the labelled data.
        seed: of these draws and of the networks.
        attribute_names: of the columns of y.
        candidates: for the number of neighbours.
        progress: called from the threads with 1 after each classifier.
    """
    n_labels = tuple(sorted(set(n_labels)))
    voting = Voting(y)
    if not n_labels or n_labels[0] < 1 or repetitions < 1:
        raise ValueError(f"expected numbers of labels from 1 on and repetitions, got {n_labels} and {repetitions}")
    if len(y) != len(x):
        raise ValueError(f"expected a label for each of {len(x)} data, got {len(y)}")
    if not voting.multi_label and len(voting.classes) < 2:
        raise ValueError(f"expected at least two classes to tell apart, got {voting.classes.tolist()}")
    groups = [np.arange(len(x))] if voting.multi_label else [np.flatnonzero(column) for column in voting.indicators.T]
    smallest = min(len(group) for group in groups)
    if n_labels[-1] >= smallest:
        what = "data" if voting.multi_label else "data in the smallest class"
        raise ValueError(f"{n_labels[-1]} labels leave nothing to classify: there are {smallest} {what}")
    side_by_side = not method.shared_codes
    if side_by_side:
        queries = embed(method, x, n_embeddings=n_embeddings, seed=seed).reshape(len(x), -1)
    else:
        mean = predict(method, x, n_samples=n_embeddings, seed=seed, want=("codes",)).z_mean
        assert mean is not None
        queries = mean.numpy()
    repeated = []
    for r in range(repetitions):
        rng = np.random.default_rng([seed, r])
        order = [rng.permutation(group)[: n_labels[-1]] for group in groups]
        picked = np.concatenate(order)
        if side_by_side:
            embedded = queries[picked][:, None]
        else:
            embedded = embed(method, x[picked], n_embeddings=n_embeddings, seed=seed + r + 1)
        repeated.append((order, dict(zip(picked.tolist(), embedded, strict=True)), seed + r))

    def classify(order: list[np.ndarray], codes: dict[int, np.ndarray], seed: int) -> list[tuple[np.ndarray, int]]:
        """Accuracy (a number, or one an attribute) and k for each number of labels."""
        rows = []
        for n in n_labels:
            index = np.concatenate([group[:n] for group in order])
            points = np.stack([codes[j] for j in index.tolist()])
            indicators = voting.indicators[index]
            k = choose_k(points, indicators, voting, candidates, seed)
            rest = np.setdiff1d(np.arange(len(x)), index)
            votes_of_k = votes(*together(points, indicators), queries[rest], [k])[0]
            found = voting.accuracy(votes_of_k, voting.indicators[rest])
            rows.append((found, k))
            if progress:
                progress(1)
        return rows

    with ThreadPoolExecutor(min(repetitions, os.cpu_count() or 1)) as pool:
        found = list(pool.map(lambda task: classify(*task), repeated))
    accuracy = np.array([[row[i][0].mean() for row in found] for i in range(len(n_labels))])
    chosen = np.array([[row[i][1] for row in found] for i in range(len(n_labels))])
    attributes = np.array([np.mean([row[i][0] for row in found], axis=0) for i in range(len(n_labels))])
    return SemiSupervisedResult(n_labels, accuracy, chosen, attributes if voting.multi_label else None, attribute_names)


@dataclass(frozen=True)
class SemiSupervisedOptions:
    """Nearest-neighbour classification with few labels."""

    labels: tuple[int, ...] | None = None
    """Labels per class; 1 to 100 where not given (10 labelled data in all for attributes, as the paper has)."""
    n_embeddings: int = 100
    """How often a stochastic encoder embeds each labelled datum."""
    repetitions: int = 5
    """Repetitions with other labelled data."""
    split: str = "valid"
    """The split that labels are taken from and that is classified: valid (the paper) or test."""
    limit: int | None = 5000
    """At most so many data of that split."""
    seed: int = 0
    """Seed of the choice of labels and of draws."""


def evaluate(model: Model, data: Data, options: SemiSupervisedOptions) -> SemiSupervisedResult:
    from lapae.errors import ConfigError

    if options.split not in ("train", "valid", "test"):
        raise ConfigError(f"unknown split {options.split!r}: expected valid, test or train")
    split = getattr(data, options.split)
    index = subset(split, options.limit, options.seed)
    y = labels(split, "the task 'semi-supervised'")[index]
    n_labels = options.labels or ((10,) if y.ndim == 2 else _up_to(y, (1, 2, 5, 10, 20, 50, 100)))
    with progress_bar("semi-supervised", len(n_labels) * options.repetitions) as advance:
        return run(
            model.method,
            tensor(model, split, index),
            y,
            n_labels=n_labels,
            n_embeddings=options.n_embeddings,
            repetitions=options.repetitions,
            seed=options.seed,
            attribute_names=data.label_names if y.ndim == 2 else None,
            progress=advance,
        )


def _up_to(y: np.ndarray, n_labels: tuple[int, ...]) -> tuple[int, ...]:
    """Those numbers of labels that leave something of every class to classify."""
    smallest = int(np.unique(y, return_counts=True)[1].min())
    return tuple(n for n in n_labels if n < smallest) or n_labels[:1]
