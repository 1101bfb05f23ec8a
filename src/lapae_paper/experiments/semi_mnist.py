"""Few labels (the paper's figure 12): nearest neighbours among the codes of MNIST, with 1 to 100 labels per class.

Labels come from the held-out training images, and the others of these are classified at their mean codes (appendix A).
A stochastic encoder embeds each labelled image 100 times; k is chosen by two-fold cross-validation. The paper claims
that the Laplacian autoencoder beats all others, including the deterministic one, with 1 to 20 labels per class, and
that the deterministic one catches up at about 100. Its numbers are only in a figure.

Differences from the authors: the folds of the cross-validation contain images and not their copies, so that no image is
judged by copies of itself. There are several seeds of every model instead of one, and errors are over these and not
over draws of the labels, which share a model. The codes of an ensemble's members, which have a latent space each, are
concatenated. Bayes by Backprop and the wider posterior are ours. A second table has the paper's k (folds and candidates
are of all embeddings alike), codes divided by their standard deviations, and labels drawn without regard to the class,
so that classes may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lapae.methods.laplace import Laplace
from lapae.model import Model
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, decide, experiment, spread
from lapae_paper.experiments.trials import EXACT, NAMES, WIDE, dense, digits
from lapae_paper.experiments.workspace import Workspace
from lapae_paper.tasks.semi_supervised import SemiSupervisedOptions, evaluate

METHODS = {**NAMES, "bbb": "Bayes by Backprop"}
TEMPERATURES = (10.0, 100.0)
"""Factors by which the covariance of the online posterior is widened after training."""
WIDENED = {f"online, temperature {t:g}": f"LAE (online), temperature {t:g}" for t in TEMPERATURES}
TITLES = METHODS | WIDENED
FEW = 20
"""Maximum number of labels per class that the claim is about."""
REPETITIONS = 5
CLAIMED = ("online", WIDE, EXACT, "posthoc")
COMPARED = (*CLAIMED, *WIDENED)
"""Methods that are compared with the deterministic autoencoder."""


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan every method with three seeds; those that the claim is about with five."""
    return {
        f"{method}, seed {seed}": dense(size, method, seed=seed)
        for method in METHODS
        for seed in size.seeds(5 if method in ("ae", *CLAIMED) else 3)
    }


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, Any]:
    """Measure accuracy (labels, repetitions); for the online posterior also widened by two temperatures."""
    data = workspace.data(digits(workspace.size))
    options = SemiSupervisedOptions(n_embeddings=workspace.size(100, 20), repetitions=REPETITIONS)
    result = evaluate(model, data, options)  # the same labels for all methods
    theirs = evaluate(model, data, replace(options, standardise=True, balanced=False, folds="copies"))
    widened = {}
    if name.startswith("online, ") and isinstance(model.method, Laplace):
        before = model.method.temperature
        for temperature in TEMPERATURES:
            model.method.temperature = before * temperature
            widened[f"{temperature:g}"] = evaluate(model, data, options).accuracy.tolist()
        model.method.temperature = before
    return {
        "n_labels": result.n_labels,
        "accuracy": result.accuracy.tolist(),
        "paper's k": theirs.accuracy.tolist(),
        "widened": widened,
    }


@experiment(
    "semi-mnist",
    of="figure 12",
    about="accuracy of nearest neighbours against labels per class, all methods",
    needs=("mnist",),
    minutes=(0.4, 12),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Measure accuracy by method and number of labels, over seeds and repetitions."""
    data = workspace.data(digits(workspace.size))
    found: dict[str, list[np.ndarray]] = {}
    theirs: dict[str, list[np.ndarray]] = {}
    measured: dict[str, Any] = {}
    for name in workspace.plan:
        method = name.rpartition(", seed ")[0]
        measured = workspace.measured(name)
        found.setdefault(method, []).append(np.array(measured["accuracy"]))
        theirs.setdefault(method, []).append(np.array(measured["paper's k"]))
        for temperature, accuracy in measured["widened"].items():
            found.setdefault(f"{method}, temperature {temperature}", []).append(np.array(accuracy))
    n_labels = tuple(measured["n_labels"])
    accuracy = {method: np.stack(seeds, 1) for method, seeds in found.items()}  # (labels, seeds, repetitions)
    papers = {method: np.stack(seeds, 1) for method, seeds in theirs.items()}
    tables = [
        Table("Accuracy in percent, mean ± deviation over repetitions and seeds", *rows_of(accuracy, n_labels)),
        claim(accuracy, n_labels),
        Table("The same with the paper's k, standardised codes, and classes missing", *rows_of(papers, n_labels)),
    ]
    raw = {
        "n_labels": list(n_labels),
        "accuracy": {method: values.tolist() for method, values in accuracy.items()},
        "paper's k": {method: values.tolist() for method, values in papers.items()},
    }
    note = (
        f"{min(len(data.valid), 5000)} held-out training images; {REPETITIONS} draws of the labels, the same for every "
        "method, times "
        f"{' or '.join(map(str, sorted({values.shape[1] for values in accuracy.values()})))} trained models each."
    )
    return Outcome(tables, {"semi_mnist": curves(accuracy, n_labels)}, raw, [note])


def rows_of(
    accuracy: Mapping[str, np.ndarray], n_labels: tuple[int, ...]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return columns and rows of a table of accuracies (labels, seeds, repetitions) by method."""
    columns = ("method", *(f"{n} label{'s'[: n - 1]}" for n in n_labels))
    rows = [
        (TITLES[method], *(spread((100 * row).ravel().tolist()) for row in values))
        for method, values in accuracy.items()
    ]
    return columns, rows


def claim(accuracy: Mapping[str, np.ndarray], n_labels: tuple[int, ...]) -> Table:
    """Compare LAE with AE for few labels: differences of models of equal seed, each a mean over equal labels."""
    rows = []
    for i, n in enumerate(n_labels):
        for method in (name for name in COMPARED if name in accuracy and "ae" in accuracy):
            seeds = min(accuracy[name].shape[1] for name in (method, "ae"))
            gap = 100 * (accuracy[method][i, :seeds] - accuracy["ae"][i, :seeds]).mean(1)
            theirs = "yes" if method == "online" and n <= FEW else "-"
            rows.append((f"{n}", TITLES[method], *decide(gap.tolist()), theirs))
    columns = ("labels per class", "method", "accuracy minus the AE's ± standard error", "better", "the paper says")
    return Table("Does the Laplacian autoencoder beat the deterministic one? (in percent of the images)", columns, rows)


def curves(accuracy: Mapping[str, np.ndarray], n_labels: tuple[int, ...]) -> Figure:
    """Draw accuracy against the number of labels, with bars of one standard error over seeds."""
    figure = Figure(figsize=(7.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for c, (method, values) in enumerate(accuracy.items()):
        laplacian = method in COMPARED
        seeds = values.mean(2)
        axes.errorbar(
            [n * 1.015 ** (c - len(accuracy) / 2) for n in n_labels],  # side by side, so that bars can be told apart
            100 * seeds.mean(1),
            100 * seeds.std(1, ddof=1) / np.sqrt(seeds.shape[1]) if seeds.shape[1] > 1 else None,
            label=TITLES[method],
            color=f"C{c}",
            linewidth=2.2 if laplacian else 1.1,
            linestyle="-" if laplacian else "--",
            marker="o",
            markersize=3,
        )
    axes.set(xscale="log", xlabel="labels per class", ylabel="accuracy, %", xticks=n_labels)
    axes.set_xticks(n_labels, [str(n) for n in n_labels])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure
