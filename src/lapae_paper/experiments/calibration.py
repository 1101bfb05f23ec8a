"""Calibration of the paper's models in latent and in output space, its abstract's main claim.

The paper shows pictures; the numbers are ours. They are measured with the dense network on test images of MNIST, with
100 sampled networks.

In output space, they are the share of pixels in the interval mean ± 1.645 deviations, which is 90 % for a calibrated
deviation; the root mean square error as a multiple of the deviation, which is 1; and the rank correlation of an image's
error with its deviation, which does not depend on the scale. The deviation is that over networks, as in the paper's
figures, and includes the noise if a method learns it; the second coverage adds the noise of the paper's likelihood,
σ = 1. Pixels that never vary in training are left out.

In latent space, codes have no true value, but predictions from them have. Classes are predicted by the nearest
neighbours of an image's sampled codes among training codes, and the mean over samples is a probability, whose expected
calibration error is compared with that of the mean code. The area under the ROC curve says whether the deviation of the
code is larger where the predicted class is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lapae.data import Data
from lapae.evaluate.ranking import detection
from lapae.model import Model
from lapae.predict import Predictive
from lapae.predict.decode import encode_draws
from lapae.predict.prediction import numpy
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, cell, experiment, spread
from lapae_paper.experiments.trials import EXACT, NAMES, WEIGHTED, WIDE, dense, digits
from lapae_paper.experiments.workspace import Workspace
from lapae_paper.tasks.base import tensor
from lapae_paper.tasks.knn import Voting, votes
from lapae_paper.tasks.ood import varying_features
from lapae_paper.tasks.reliability import classification

LOWRANK = "posthoc-lowrank"
TITLES = {
    "ae": NAMES["ae"],
    **{name: NAMES[name] for name in ("ae-var", "vae", WEIGHTED, "dropout", "ensemble", "posthoc", "online")},
    WIDE: NAMES[WIDE],
    EXACT: NAMES[EXACT],
    LOWRANK: "LAE (post-hoc), lowrank, linearized",
}
QUICK = ("ae", "vae", "dropout", "posthoc", "online", LOWRANK)
"""Methods of the quick size."""
QUANTILE = 1.6448536
"""Half of the width of the 90 % interval of a normal distribution, in deviations."""
NEIGHBOURS = 20
OUTPUT = {
    "coverage": "90 % interval holds",
    "coverage with noise": "with noise σ = 1",
    "error / deviation": "error / deviation",
    "output correlation": "rank correlation of error and deviation",
}
LATENT = {
    "accuracy": "accuracy",
    "ece": "ECE of sampled codes",
    "ece of mean": "ECE of the mean code",
    "latent auroc": "AUROC of the deviation for wrong classes",
}


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan every method with three seeds, the Laplacian autoencoders and the deterministic one with five."""
    found = {}
    for name in size(tuple(TITLES), QUICK):
        for seed in size.seeds(3 if name in ("ae-var", "vae", WEIGHTED, "dropout", "ensemble", LOWRANK) else 5):
            options = {"hessian": "lowrank"} if name == LOWRANK else {}
            method = "posthoc" if name == LOWRANK else name
            found[f"{name}, seed {seed}"] = dense(size, method, seed=seed, **options)
    return found


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, float | None]:
    """Measure calibration in both spaces; None for what a method does not have."""
    data = workspace.data(digits(workspace.size))
    return output_space(workspace, name, model, data) | latent_space(workspace, name, model, data)


def output_space(workspace: Workspace, name: str, model: Model, data: Data) -> dict[str, float | None]:
    """Compare errors of pixels with their deviations."""
    x = tensor(model, data.test, data.test.some(workspace.size(2_000, 100)))
    found = model.predict(x, ("outputs",), predictive(workspace, name, model))
    variance = found.x_var + (found.x_noise if found.x_learned else 0.0)
    varying = varying_features(data.train, data.space)
    keep = torch.ones(x.shape[1:], dtype=torch.bool) if varying is None else varying
    error, variance = (numpy(t)[:, numpy(keep)] for t in (x - found.x_mean.cpu(), variance.cpu() + torch.zeros_like(x)))
    if not variance.max() > 0:
        return dict.fromkeys(OUTPUT)
    noise = 0.0 if found.x_learned else 1.0
    return {
        "coverage": covered(error, variance),
        "coverage with noise": covered(error, variance + noise),
        "error / deviation": float(np.sqrt((error**2).mean() / variance.mean())),
        "output correlation": rank_correlation((error**2).sum(1), np.sqrt(variance).sum(1)),
    }


def predictive(workspace: Workspace, name: str, model: Model) -> Predictive:
    """Return how a model predicts here: by sampled networks or, with covariances, linearised."""
    kind = "linearized" if name.startswith(LOWRANK) else "mc"
    return replace(model.predictive, kind=kind, n_samples=workspace.size(100, 20), seed=0)


def covered(error: np.ndarray, variance: np.ndarray) -> float:
    """Return the share of errors within 1.645 deviations."""
    return float((np.abs(error) <= QUANTILE * np.sqrt(variance)).mean())


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's correlation of a (N,) and b (N,)."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def latent_space(workspace: Workspace, name: str, model: Model, data: Data) -> dict[str, float | None]:
    """Classify by the neighbours of sampled codes, and compare with the truth."""
    if not model.method.shared_codes:  # those of an ensemble's members mean nothing to each other
        return dict.fromkeys(LATENT)
    index = data.test.some(workspace.size(2_000, 100))
    places = data.train.some(workspace.size(20_000, 400))
    codes, points = (
        draws(model, tensor(model, split, some), n, predictive(workspace, name, model))
        for split, some, n in ((data.test, index, workspace.size(50, 10)), (data.train, places, 20))
    )
    points = numpy(points.mean(1))
    voting = Voting(np.asarray(data.train.y)[places])
    y = np.searchsorted(voting.classes, np.asarray(data.test.y)[index])

    def probabilities(queries: np.ndarray) -> np.ndarray:
        return votes(points, voting.indicators, queries, [NEIGHBOURS])[0]

    of_mean = probabilities(numpy(codes.mean(1)))
    each = probabilities(numpy(codes.flatten(0, 1))).reshape(*codes.shape[:2], -1)
    numbers = classification(each.mean(1), y)
    deviation = numpy(codes.std(1).sum(1)) if codes.shape[1] > 1 else np.zeros(len(y))
    wrong = of_mean.argmax(1) != y
    ranked = deviation.max() > 0 and wrong.any() and not wrong.all()
    return {
        "accuracy": numbers["accuracy"],
        "ece": numbers["ece"],
        "ece of mean": classification(of_mean, y)["ece"],
        "latent auroc": detection(deviation[~wrong], deviation[wrong], n_bootstrap=2).auroc.value if ranked else None,
    }


def draws(model: Model, x: Tensor, n: int, how: Predictive) -> Tensor:
    """Draw n codes (N, n, K) of samples x (N, *shape); one of a deterministic method."""
    if how.kind == "mc":
        return encode_draws(model.method, x, n)
    found = model.predict(x, ("codes",), how)
    mean, deviation = found.z_mean.cpu()[:, None], found.z_var.cpu().sqrt()[:, None]
    eps = torch.randn(len(x), n, mean.shape[2], generator=torch.Generator().manual_seed(0))
    return mean + deviation * eps.to(mean.dtype)


@experiment(
    "calibration",
    of="abstract, section 4",
    about="coverage and error against deviation, in latent and output space, all methods",
    needs=("mnist",),
    minutes=(0.5, 4),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Make a table for each space."""
    found = workspace.rows()
    tables = []
    for title, keys in (("Output space", OUTPUT), ("Latent space", LATENT)):
        rows = []
        for name, row in found.items():
            cells = [spread(row[key], 3 if key.startswith("ece") else 2) if key in row else cell(None) for key in keys]
            if any(key in row for key in keys):
                rows.append((TITLES[name], *cells))
        tables.append(Table(title, ("method", *keys.values()), rows))
    seeds = sorted({len(values) for row in found.values() for values in row.values()})
    note = (
        f"{' or '.join(map(str, seeds))} models each. A calibrated deviation has 0.90, an error of 1 deviation, and a "
        f"small ECE; classes by the {NEIGHBOURS} nearest training codes."
    )
    return Outcome(tables, raw={"rows": found}, notes=[note])
