"""Ten labels for forty attributes of faces (the paper's table 4 and figure 13).

The network is the convolutional one of appendix A, with five 5x5 convolutions and 64 latent dimensions, on CelebA at
64x64. Ten faces are labelled, each embedded 100 times by a stochastic encoder; the predicted attributes of all others
are those of most of their nearest neighbours. Figure 13 shows the mean and the deviation of reconstructions of the
online posterior.

Differences from the authors: the available faces (the code takes the full set, 202,599); at most 30 epochs in batches
of 64 at a learning rate of 3e-4, because fewer faces make fewer steps; the approximate diagonal, with the correct rule
for upsampling; ten draws of the ten labelled faces, because one is mostly luck; validation and test faces are
classified together. The accuracy of always predicting the more frequent value, which needs no image at all, is given as
well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lapae.config import DataConfig, ModelConfig, TrainConfig
from lapae.data import Split
from lapae.model import Model
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, cell, decide, experiment, spread
from lapae_paper.experiments.pictures import reconstruction_figure, reconstructions
from lapae_paper.experiments.trials import LABELS, trial
from lapae_paper.experiments.workspace import Workspace
from lapae_paper.tasks.base import tensor
from lapae_paper.tasks.semi_supervised import SemiSupervisedOptions, evaluate

METHODS = ("ae", "vae", "dropout", "online")
PAPER = {
    "Arched_Eyebrows": (0.50, 0.52, 0.55, 0.60),
    "Attractive": (0.52, 0.50, 0.49, 0.53),
    "Bald": (0.98, 0.98, 0.98, 0.98),
    "Wearing_Lipstick": (0.52, 0.49, 0.50, 0.54),
    "Heavy_Makeup": (0.45, 0.52, 0.49, 0.56),
    "Overall": (0.73, 0.72, 0.73, 0.74),
}
"""Accuracies of table 4, in the order of `METHODS`."""
N_LABELLED = 10


def faces(size: Size) -> DataConfig:
    """Return CelebA, or the pieces of photographs that stand in for it."""
    return DataConfig(source="celeba", image_size=size(None, 16))


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan each method with three seeds; the first is drawn."""
    model = size(
        ModelConfig(network="paper-celeba", latent_dim=64),
        ModelConfig(network="conv", latent_dim=4, channels=(8, 16), hidden=()),
    )
    train = size(
        TrainConfig(epochs=30, batch_size=64, learning_rate=3e-4, precision="tf32"),
        TrainConfig(epochs=12, batch_size=20, learning_rate=3e-3),
    )
    return {
        f"{method}, seed {seed}": trial(faces(size), model, replace(train, seed=seed), method)
        for method in METHODS
        for seed in size.seeds(3)
    }


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, Any]:
    """Measure accuracy by attribute and over all, and for the online posterior what is drawn."""
    data = workspace.data(faces(workspace.size))
    x, y = (np.concatenate([np.asarray(getattr(part, of)) for part in (data.valid, data.test)]) for of in ("x", "y"))
    options = SemiSupervisedOptions(
        (N_LABELLED,), workspace.size(100, 10), repetitions=workspace.size(10, 3), limit=None
    )
    found = evaluate(model, replace(data, valid=Split(x, y)), options)
    assert found.attributes is not None
    measured: dict[str, Any] = {"attributes": found.attributes[0].tolist(), "overall": found.accuracy[0].tolist()}
    if name == "online, seed 0":
        five = tensor(model, data.test, np.arange(5))
        measured["picture"] = reconstructions(model, five, n_samples=workspace.size(100, 20))
    return measured


@experiment(
    "semi-celeba",
    of="table 4, figure 13",
    about="ten labelled faces, forty attributes: AE, VAE, MC-AE, online; mean and deviation of reconstructions",
    needs=("celeba",),
    minutes=(0.4, 3),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Make table 4, and draw reconstructions of five faces."""
    data = workspace.data(faces(workspace.size))
    y = np.concatenate([np.asarray(part.y) for part in (data.valid, data.test)])
    names = tuple(data.label_names or ())
    attributes: dict[str, np.ndarray] = {}  # (A,), means over seeds
    overall: dict[str, list[float]] = {}  # by seed, means over draws of the labelled faces
    figures = {}
    for method in METHODS:
        seeds = [workspace.measured(name) for name in workspace.named(method)]
        if not seeds:
            continue
        attributes[method] = np.mean([found["attributes"] for found in seeds], axis=0)
        overall[method] = [float(np.mean(found["overall"])) for found in seeds]
        if "picture" in seeds[0]:
            figures["semi_celeba_online"] = reconstruction_figure(seeds[0]["picture"])
    draws = len(seeds[0]["overall"])
    share = y.mean(0)
    majority = np.maximum(share, 1 - share)

    columns = (
        "attribute",
        *(text for m in overall for text in (LABELS[m], f"paper {LABELS[m]}")),
        "always the majority",
    )
    rows = []
    for name in [name for name in PAPER if name in names] or names[:5]:
        a, theirs = names.index(name), PAPER.get(name, (None,) * len(METHODS))
        ours = {method: cell(float(values[a])) for method, values in attributes.items()}
        rows.append((name.replace("_", " "), *_beside(ours, theirs), cell(float(majority[a]))))
    ours = {method: spread(values, 3) for method, values in overall.items()}
    rows.append(("Overall", *_beside(ours, PAPER["Overall"]), cell(float(majority.mean()), 3)))
    against = [
        (
            LABELS[method],
            *decide([own - other for own, other in zip(values, overall["ae"], strict=False)], 3),
            f"{int((attributes[method] > attributes['ae']).sum())} of {len(names)}",
        )
        for method, values in overall.items()
        if method != "ae" and "ae" in overall
    ]
    tables = [
        Table(f"Accuracy with {N_LABELLED} labelled faces", columns, rows),
        Table(
            "Overall accuracy minus the AE's, with the same labelled faces",
            ("method", "difference ± standard error over models", "better", "attributes better than the AE's"),
            against,
        ),
    ]
    raw = {
        "names": list(names),
        "attributes": {method: values.tolist() for method, values in attributes.items()},
        "overall": overall,
        "majority": majority.tolist(),
    }
    note = (
        f"{len(data.train.x)} training faces; {len(y)} classified; {draws} draws of the labelled ones; "
        f"{len(overall[next(iter(overall))])} models of each."
    )
    return Outcome(tables, figures, raw, [note])


def _beside(ours: Mapping[str, str], theirs: tuple[float | None, ...]) -> tuple[str, ...]:
    """Interleave our numbers, by method, and the paper's, in the order of `METHODS`."""
    paper: dict[str, float | None] = dict(zip(METHODS, theirs, strict=True))
    return tuple(text for method, own in ours.items() for text in (own, cell(paper[method])))
