"""Out-of-distribution detection: four scores from one pass over the data (paper, section 5).

| score             | higher means more anomalous                                                    |
|-------------------|--------------------------------------------------------------------------------|
| log_likelihood    | minus the log of the mean density over networks                                |
| typicality        | |mean log-likelihood of the training data - log-likelihood|                    |
| latent_deviation  | standard deviation of the code over networks, summed over latent dimensions    |
| output_deviation  | standard deviation of the reconstruction, summed over pixels                   |
| varying_deviation | the same over the features that vary in training (where some do not)           |

What never varies in training, such as the border of an image, has a deviation that the data say nothing about, yet it
can decide the sum: hence the last. The deviation of the reconstruction is that over networks, and of the learned noise
too where the method learns one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import tyro
from torch import Tensor

from lapae.data.progress import progress as progress_bar
from lapae.errors import ConfigError
from lapae.methods.base import Method
from lapae.predict import predict_blocks
from lapae.predict.mc import n_distinct
from lapae.predict.prediction import Inputs, Progress
from lapae.runs.results import Table
from lapae.space import Space, chunks
from lapae.tasks.base import batches, size
from lapae.tasks.metrics import Detection, detection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.data import Data, Split
    from lapae.model import Model

SCORES = ("log_likelihood", "typicality", "latent_deviation", "output_deviation")
VARYING = "varying_deviation"


@dataclass(frozen=True)
class OodResult:
    """Metrics and scores of every out-of-distribution set."""

    detections: dict[str, dict[str, Detection]]
    """By set, then by score."""
    inside: dict[str, np.ndarray]
    """Scores (N,) of the in-distribution data."""
    outside: dict[str, dict[str, np.ndarray]]
    """By set: scores (M,)."""
    training_log_likelihood: float | None
    """What typicality is measured from."""
    name: str = "in-distribution"

    def to_dict(self) -> dict[str, Any]:
        """Metrics by set and score."""
        return {
            "in_distribution": self.name,
            "training_log_likelihood": self.training_log_likelihood,
            "n_data": {self.name: _n(self.inside)} | {name: _n(scores) for name, scores in self.outside.items()},
            "sets": {name: {k: d.to_dict() for k, d in found.items()} for name, found in self.detections.items()},
        }

    def table(self) -> Table:
        """Every set by every score."""
        rows = []
        for name, found in self.detections.items():
            for score, d in found.items():
                interval = f"{d.auroc.value:.3f} ({d.auroc.low:.3f} to {d.auroc.high:.3f})"
                rows.append((name, score.replace("_", " "), interval, round(d.auprc.value, 3), round(d.fpr95.value, 3)))
        return Table(("against", "score", "AUROC (95 % interval)", "AUPRC", "FPR at 95 % TPR"), rows)

    def figures(self) -> dict[str, Figure]:
        """ROC curves and histograms, a figure for each set."""
        from lapae.tasks.figures import histograms, roc_curves

        out = {}
        for name, found in self.detections.items():
            out[f"ood_{name}_roc"] = roc_curves(found, f"{self.name} against {name}")
            out[f"ood_{name}_histograms"] = histograms(self.inside, self.outside[name], self.name, name)
        return out


def scores(
    method: Method,
    x: Inputs,
    *,
    predictive: str = "mc",
    n_samples: int = 100,
    seed: int = 0,
    varying: Tensor | None = None,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """All scores but typicality, (N,) each: what one pass over the data gives.

    Args:
        method: the trained method.
        x: data (N, *shape) in the model's space, or batches of them.
        predictive: as in `predict`.
        n_samples: networks drawn by "mc".
        seed: of the networks.
        varying: boolean (*shape), the features that vary in training (`varying_features`); None where all do.
        progress: as in `predict`.
    """
    names = [*(name for name in SCORES if name != "typicality"), *([] if varying is None else [VARYING])]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    wanted = ("codes", "outputs", "density")
    options: dict[str, Any] = {"predictive": predictive, "n_samples": n_samples, "seed": seed, "progress": progress}
    for block in predict_blocks(method, x, want=wanted, **options):
        assert block.z_var is not None
        assert block.x_var is not None
        assert block.x_noise is not None
        assert block.log_likelihood is not None
        x_var = block.x_var + block.x_noise if block.x_learned else block.x_var
        parts["log_likelihood"].append(-block.log_likelihood.numpy())
        parts["latent_deviation"].append(block.z_var.sqrt().sum(1).numpy())
        deviation = x_var.sqrt().flatten(1)
        parts["output_deviation"].append(deviation.sum(1).numpy())
        if varying is not None:
            parts[VARYING].append(deviation[:, varying.flatten()].sum(1).numpy())
    return {name: np.concatenate(values) if values else np.zeros(0) for name, values in parts.items()}


def run(
    method: Method,
    inside: Inputs,
    outside: Mapping[str, Inputs],
    train: Inputs | None = None,
    *,
    predictive: str = "mc",
    n_samples: int = 100,
    seed: int = 0,
    n_bootstrap: int = 500,
    confidence: float = 0.95,
    name: str = "in-distribution",
    varying: Tensor | None = None,
    progress: Progress | None = None,
) -> OodResult:
    """Tell data inside the distribution from data outside of it.

    Args:
        method: the trained method.
        inside: data of the kind that it was trained on.
        outside: other data, by name.
        train: training data, for typicality; there is none without them.
        predictive: as in `predict`.
        n_samples: networks drawn by "mc".
        seed: of the networks and of the bootstrap.
        n_bootstrap: resamplings for the intervals.
        confidence: of the intervals.
        name: of the data inside, for figures.
        varying: as in `scores`.
        progress: as in `predict`.
    """
    if not outside:
        raise ValueError("expected at least one out-of-distribution set")
    options: dict[str, Any] = {"predictive": predictive, "n_samples": n_samples, "seed": seed, "progress": progress}
    typical = None
    if train is not None:
        blocks = predict_blocks(method, train, want=("density",), **options)
        values = [block.log_likelihood for block in blocks if block.log_likelihood is not None]
        if not values:
            raise ValueError("expected training data to measure typicality from, got none")
        typical = float(torch.cat(values).double().mean())

    def all_scores(x: Inputs, which: str) -> dict[str, np.ndarray]:
        found = scores(method, x, varying=varying, **options)
        if not len(found["log_likelihood"]):
            raise ValueError(f"the set {which!r} is empty: there is nothing to detect")
        if typical is not None:
            found["typicality"] = np.abs(typical + found["log_likelihood"])
        return {score: found[score] for score in (*SCORES, VARYING) if score in found}

    found_inside = all_scores(inside, name)
    found_outside = {which: all_scores(x, which) for which, x in outside.items()}
    bootstrap: dict[str, Any] = {"n_bootstrap": n_bootstrap, "confidence": confidence, "seed": seed}
    detections = {
        which: {score: detection(found_inside[score], found[score], **bootstrap) for score in found}
        for which, found in found_outside.items()
    }
    return OodResult(detections, found_inside, found_outside, typical, name)


def varying_features(split: Split, space: Space) -> Tensor | None:
    """Which features of a datum vary, (*model shape) boolean; None where all do."""
    low, high = np.array(split.x[0]), np.array(split.x[0])
    for _, part in chunks(split.x):
        low, high = np.fmin(low, part.min(0)), np.fmax(high, part.max(0))
    varying = torch.as_tensor(space.arrange((low != high)[None]))[0]
    return None if bool(varying.all()) else varying


@dataclass(frozen=True)
class OodOptions:
    """Out-of-distribution detection."""

    ood: Annotated[tuple[str, ...], tyro.conf.arg(name="against")] = ()
    """Out-of-distribution sets: names of data sets, files or folders. Needed."""
    data_dir: str | None = None
    """Where named data sets lie; $LAPAE_DATA where not given."""
    predictive: str = "mc"
    """How to predict: mc; for online and posthoc also linearized and moments."""
    n_samples: int = 100
    """Networks to draw (mc)."""
    limit: int | None = None
    """At most so many data of each set."""
    train_limit: int | None = 10_000
    """At most so many training data to measure typicality from."""
    bootstrap: int = 500
    """Bootstrap resamples for the intervals."""
    seed: int = 0
    """Seed of draws, subsets and resamples."""


def evaluate(model: Model, data: Data, options: OodOptions) -> OodResult:
    from lapae.data import load

    if not options.ood:
        raise ConfigError("the task 'ood' needs at least one out-of-distribution set (--against NAME)")
    sets = {name: load(name, data_dir=options.data_dir) for name in options.ood}
    for name, other in sets.items():
        if tuple(other.shape) != tuple(model.shape):
            raise ConfigError(
                f"the model takes data of shape {tuple(model.shape)}, those of {name!r} are {other.shape}"
            )
    inside = batches(model, data.held_out, options.limit, options.seed)
    # images of any set lie in [0, 1] by their own scaling; columns of a table have the units of the training data
    spaces = {name: other.space if data.kind == other.kind == "image" else model.space for name, other in sets.items()}
    outside = {
        name: batches(model, other.held_out, options.limit, options.seed, space=spaces[name])
        for name, other in sets.items()
    }
    train = batches(model, data.train, options.train_limit, options.seed)
    passes = n_distinct(model.method, options.n_samples) if options.predictive == "mc" else 1
    total = sum(size(x) for x in (inside, train, *outside.values())) * passes
    with progress_bar("out-of-distribution", total) as advance:
        return run(
            model.method,
            inside,
            outside,
            train,
            predictive=options.predictive,
            n_samples=options.n_samples,
            seed=options.seed,
            n_bootstrap=options.bootstrap,
            name=data.space.name,
            varying=varying_features(data.train, data.space),
            progress=advance,
        )


def _n(scores: dict[str, np.ndarray]) -> int:
    return len(scores["log_likelihood"])
