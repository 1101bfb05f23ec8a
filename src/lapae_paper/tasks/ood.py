"""Out-of-distribution detection: four scores from one pass over the data (paper, section 5).

| score             | higher means more anomalous                                                    |
|-------------------|--------------------------------------------------------------------------------|
| log_likelihood    | minus the log of the mean density over networks                                |
| typicality        | |mean log-likelihood of the training data - log-likelihood|                    |
| latent_deviation  | standard deviation of the code over networks, summed over latent dimensions    |
| output_deviation  | standard deviation of the reconstruction, summed over pixels                   |
| varying_deviation | output_deviation over the features that vary in training (if some do not)      |

Features that never vary in training, such as the border of an image, have a standard deviation that the data do not
determine, yet they can decide the sum: hence the last score. The standard deviation of the reconstruction is that over
networks, and includes the noise if the method learns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import tyro
from torch import Tensor

from lapae.data import Batches, Data, Split
from lapae.data.progress import progress as progress_bar
from lapae.errors import ConfigError
from lapae.evaluate.ranking import HEADS, Detection, detection
from lapae.model import BOTH, Model
from lapae.predict import Prediction
from lapae.predict.mc import n_distinct
from lapae.predict.prediction import numpy
from lapae.runs.results import Table
from lapae.space import Space, chunks
from lapae_paper.tasks.base import batches, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = ("log_likelihood", "typicality", "latent_deviation", "output_deviation")
VARYING = "varying_deviation"
TITLES = {
    "log_likelihood": "negative log-likelihood",
    "typicality": "typicality",
    "latent_deviation": "latent deviation",
    "output_deviation": "output deviation",
    "varying_deviation": "output deviation, varying features",
}


@dataclass(frozen=True)
class OodResult:
    """Metrics and scores of every out-of-distribution set."""

    detections: dict[str, dict[str, Detection]]
    """Detections by set, then by score."""
    inside: dict[str, np.ndarray]
    """Scores (N,) of the in-distribution data."""
    outside: dict[str, dict[str, np.ndarray]]
    """Scores (M,) of out-of-distribution data, by set."""
    training_log_likelihood: float
    """Mean log-likelihood of training data, from which typicality is measured."""
    name: str
    """Name of the in-distribution data."""

    def to_dict(self) -> dict[str, Any]:
        """Return metrics by set and score."""
        return {
            "in_distribution": self.name,
            "training_log_likelihood": self.training_log_likelihood,
            "n_data": {self.name: _n(self.inside)} | {name: _n(scores) for name, scores in self.outside.items()},
            "sets": {name: {k: d.to_dict() for k, d in found.items()} for name, found in self.detections.items()},
        }

    def table(self) -> Table:
        """Return one row per set and score."""
        rows = [
            (name, score.replace("_", " "), *of_score.cells())
            for name, found in self.detections.items()
            for score, of_score in found.items()
        ]
        return Table(("against", "score", *HEADS), rows)

    def figures(self) -> dict[str, Figure]:
        """Draw ROC curves and histograms, one figure per set."""
        from lapae.evaluate.figures import histograms, roc_curves

        out = {}
        for name, found in self.detections.items():
            titled = {TITLES[score]: d for score, d in found.items()}
            other = name if name != self.name else f"{name}, other"
            both = {TITLES[score]: {self.name: self.inside[score], other: self.outside[name][score]} for score in found}
            out[f"ood_{name}_roc"] = roc_curves(titled, f"{self.name} against {name}")
            out[f"ood_{name}_histograms"] = histograms(both)
        return out


@dataclass(frozen=True)
class OodOptions:
    """Out-of-distribution detection."""

    ood: Annotated[tuple[str, ...], tyro.conf.arg(name="against")] = ()
    """Out-of-distribution sets: names of data sets, files or folders. Required."""
    data_dir: str | None = None
    """Folder of the named data sets; default: $LAPAE_DATA."""
    predictive: str = "mc"
    """How to predict: mc; for online and posthoc also linearized and moments."""
    n_samples: int = 100
    """Number of networks to draw (mc)."""
    limit: int | None = None
    """Number of samples of each set, at most."""
    train_limit: int | None = 10_000
    """Number of training samples to measure typicality from, at most."""
    bootstrap: int = 500
    """Bootstrap resamples for the intervals."""
    seed: int = 0
    """Seed of draws, subsets and resamples."""


def evaluate(model: Model, data: Data, options: OodOptions) -> OodResult:
    from lapae.data import load

    outside: dict[str, Tensor | Batches] = {}
    for name in options.ood:
        other = load(name, data_dir=options.data_dir)
        if other.shape != model.shape:
            raise ConfigError(f"the model takes data of shape {model.shape}, those of {name!r} are {other.shape}")
        # images of any set lie in [0, 1] by their own scaling; columns of a table have the units of the training data
        space = other.space if data.kind == other.kind == "image" else model.space
        outside[name] = batches(model, other.held_out, options.limit, options.seed, space=space)
    return detect(model, data, outside, options)


def detect(model: Model, data: Data, outside: Mapping[str, Tensor | Batches], options: OodOptions) -> OodResult:
    """Tell test samples of `data` from out-of-distribution samples.

    Args:
        model: the trained model.
        data: data of the kind that it was trained on.
        outside: other samples (M, *shape) in the model's space, by name.
        options: how to predict, and how many samples to use.
    """
    if not outside:
        raise ConfigError("the task 'ood' needs at least one out-of-distribution set (--against NAME)")
    inside = batches(model, data.held_out, options.limit, options.seed)
    train = batches(model, data.train, options.train_limit, options.seed)
    varying = varying_features(data.train, data.space)
    passes = n_distinct(model.method, options.n_samples) if options.predictive == "mc" else 1
    with progress_bar("out-of-distribution", sum(map(size, (train, inside, *outside.values()))) * passes) as advance:
        how = replace(model.predictive, kind=options.predictive, n_samples=options.n_samples, seed=options.seed)
        densities = [numpy(block.log_likelihood) for block in model.blocks(train, ("density",), how, advance)]
        typical = float(np.concatenate(densities).mean(dtype=np.float64))

        def scores(x: Tensor | Batches, name: str) -> dict[str, np.ndarray]:
            blocks = [_scores(block, typical, varying) for block in model.blocks(x, (*BOTH, "density"), how, advance)]
            if not blocks:
                raise ConfigError(f"the set {name!r} is empty: there is nothing to detect")
            return {score: np.concatenate([block[score] for block in blocks]) for score in blocks[0]}

        found = scores(inside, data.space.name)
        found_outside = {name: scores(x, name) for name, x in outside.items()}
    bootstrap = {"n_bootstrap": options.bootstrap, "seed": options.seed}
    detections = {
        name: {score: detection(found[score], other[score], **bootstrap) for score in found}
        for name, other in found_outside.items()
    }
    return OodResult(detections, found, found_outside, typical, data.space.name)


def _scores(block: Prediction, typical: float, varying: Tensor | None) -> dict[str, np.ndarray]:
    """Return the scores of a block of samples, (N,) each."""
    log_likelihood, z_var, x_var = map(numpy, (block.log_likelihood, block.z_var, block.x_var))
    if block.x_learned:
        x_var = x_var + numpy(block.x_noise)
    latent, deviation = (np.sqrt(var).reshape(len(var), -1) for var in (z_var, x_var))
    found = {
        "log_likelihood": -log_likelihood,
        "typicality": np.abs(typical - log_likelihood),
        "latent_deviation": latent.sum(1),
        "output_deviation": deviation.sum(1),
    }
    return found if varying is None else found | {VARYING: deviation[:, varying.flatten()].sum(1)}


def varying_features(split: Split, space: Space) -> Tensor | None:
    """Return which features of a sample vary, (*model shape) boolean; None if all do."""
    low, high = np.array(split.x[0]), np.array(split.x[0])
    for _, part in chunks(split.x):
        low, high = np.fmin(low, part.min(0)), np.fmax(high, part.max(0))
    varying = torch.as_tensor(space.arrange((low != high)[None]))[0]
    return None if bool(varying.all()) else varying


def _n(scores: dict[str, np.ndarray]) -> int:
    return len(scores["log_likelihood"])
