"""Missing data (the paper's figure 11 and table 3): the upper half of an MNIST image is hidden, the lower observed.

The paper has two stages (appendix A): five networks complete an image filled with noise, and five more are averaged
within each of these modes. A classifier of clean images sees every completed image, and its probabilities are averaged;
the row "Classifier" is the same classifier on the image with noise in the hidden half. With nothing observed, the
procedure generates images.

Differences from the authors: errors are measured against the whole true image and not the masked one; the classifier's
dropout is off; test images are used and not the validation set; each mode has noise of its own, so that modes can
differ by their start as well as by their network. The text puts the observed pixels back before the image is used, but
the authors' code classifies the network's output for the whole image: table 3 is given both ways. A third way is ours:
twenty single networks, nothing averaged within a mode, because an average of networks is sharper than any of them and
makes the classifier too confident.

A classifier's calibration depends on its training as much as on its input, so there are five of them, and every number
is a mean over these. The paper claims that imputation improves calibration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from lapae.data import Data
from lapae.model import Model
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, cell, decide, experiment, spread
from lapae_paper.experiments.pictures import draw_mosaic
from lapae_paper.experiments.trials import EXACT, NAMES, WEIGHTED, WIDE, dense, digits
from lapae_paper.experiments.workspace import Workspace
from lapae_paper.tasks.base import device, tensor
from lapae_paper.tasks.classification import noisy
from lapae_paper.tasks.classifier import class_probabilities, train_classifier
from lapae_paper.tasks.completion import CompletionOptions, completed, judge, mask
from lapae_paper.tasks.generation import describe
from lapae_paper.tasks.noise import from_noise
from lapae_paper.tasks.reliability import classification

CLASSIFIER = "Classifier"
METHODS = ("vae", WEIGHTED, "dropout", "ensemble", "posthoc", "online", WIDE, EXACT)
CLAIMED = ("posthoc", "online", WIDE, EXACT)
"""Methods that the claim is about."""
WAYS = {"": "the paper's procedure", "said ": "the authors' code", "single ": "single networks (ours)"}
"""Ways to classify, by what their numbers begin with."""
DRAWN = ("vae", "posthoc", "online")
STEPS = (1, 10)
"""Numbers of encodings and decodings if nothing is observed: of the paper's appendix, and of its text."""
CALIBRATION = ("accuracy", "ece", "mce", "rmsce")
PAPER: dict[str, tuple[float | None, ...]] = {
    CLASSIFIER: (None, None, 0.53, 0.16, 0.25, 0.18),
    "vae": (104.73, -104.75, 0.22, 0.18, 0.34, 0.19),
    "dropout": (106.05, -106.05, 0.45, 0.28, 0.38, 0.29),
    "ensemble": (96.23, -100.94, 0.53, 0.12, 0.2, 0.13),
    "posthoc": (101.62, -107.25, 0.51, 0.16, 0.27, 0.18),
    "online": (99.59, -106.29, 0.53, 0.12, 0.16, 0.13),
}
"""Table 3: MSE, log p(x), accuracy, ECE, MCE, RMSCE."""


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan every method with three seeds; those that the claim is about with five."""
    return {
        f"{method}, seed {seed}": dense(size, method, seed=seed)
        for method in METHODS
        for seed in size.seeds(5 if method in CLAIMED else 3)
    }


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, Any]:
    """Measure errors and calibration with the upper half imputed, and those of the classifiers alone ("hidden").

    Of the first seed of some methods, what is drawn too.
    """
    method, _, text = name.rpartition(", seed ")
    seed = int(text)
    data = workspace.data(digits(workspace.size))
    index = data.test.some(workspace.size(None, 200))
    classifiers = [clean_classifier(workspace, model, data, each) for each in range(n_classifiers(workspace))]
    x = tensor(model, data.test, index)
    y = np.asarray(data.test.y)[index]
    observed = mask("upper", tuple(x.shape[1:]))
    modes = completed(model, x, observed, CompletionOptions(seed=seed))
    single = completed(model, x, observed, CompletionOptions(modes=20, average=0, seed=seed))
    imputed = judge(x, observed, modes)
    samples = {"": modes.samples, "said ": modes.reconstructions, "single ": single.samples}
    votes = [
        torch.stack([class_probabilities(classifier, mode[None]).argmax(1) for mode in modes.samples]).sort(0)[0]
        for classifier in classifiers
    ]
    return {
        "imputed": {
            "MSE": imputed.error_whole,
            "log p": -imputed.error_whole_samples,
            **{way + key: value for way in WAYS for key, value in calibration(classifiers, samples[way], y).items()},
            "mode_distance": imputed.mode_distance,
            "classes": 1.0 + float((torch.stack(votes).diff(dim=1) != 0).sum(1).float().mean()),
        },
        "hidden": calibration(classifiers, noisy(model, x, observed, seed)[None], y),
        "test images": len(index),
        **(pictures(model, data) if seed == 0 and method in DRAWN else {}),
    }


def pictures(model: Model, data: Data) -> dict[str, Any]:
    """Return images completed and from noise, and how different the latter are, as plain JSON."""
    generated = [from_nothing(model, steps) for steps in STEPS]
    test = tensor(model, data.test, data.test.some(64))
    drawn = {
        "shown": shown(model, data).tolist(),
        "halves": half_samples(model, data).tolist(),
        "generated": [images[:18].tolist() for images in generated],
    }
    return {
        "drawn": drawn,
        "variety": variety_of(model, data, generated),
        "variety of test images": variety_of(model, data, [test] * len(STEPS)),
    }


@experiment(
    "imputation",
    of="figure 11, table 3",
    about="the upper half of a digit is missing: error, accuracy and calibration of a classifier, samples",
    needs=("mnist",),
    minutes=(0.3, 12),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Make table 3, both ways, and a table of how different the samples are; draw the two pictures."""
    found: dict[str, dict[str, list[float]]] = {}
    bare: dict[str, dict[str, float]] = {}  # by seed
    drawn: dict[str, dict[str, Any]] = {}
    variety, of_test = [], []
    n_images = 0
    for name in workspace.plan:
        method, _, seed = name.rpartition(", seed ")
        numbers = workspace.measured(name)
        n_images = numbers["test images"]
        bare[seed] = numbers["hidden"]
        for key, value in (numbers["imputed"] | {"bare ece": numbers["hidden"]["ece"]}).items():
            found.setdefault(method, {}).setdefault(key, []).append(value)
        if "drawn" in numbers:  # of the first seed of the methods that are drawn
            drawn[method] = numbers["drawn"]
        if "variety" in numbers:
            variety.append((NAMES[method], *(cell(number) for number in numbers["variety"])))
            of_test = numbers["variety of test images"]
    found[CLASSIFIER] = {key: [bare[seed][key] for seed in sorted(bare)] for key in CALIBRATION}
    if variety:
        variety.append(("test images", *(cell(number) for number in of_test)))
    tables = [
        Table("Upper half missing; observed pixels put back before classifying (as the text says)", *table3(found)),
        Table(
            "The same; what the network says of the whole image is classified (the authors' code)",
            *others(found, "said "),
        ),
        Table(
            "The same; twenty single networks, none averaged, observed pixels put back (ours)",
            *others(found, "single "),
        ),
        claim(found),
        Table(
            "How different the completed images of one half image are",
            ("method", "root mean square distance of two modes", "classes among five modes"),
            [
                (NAMES[row], *(spread(found[row][key], 3) for key in ("mode_distance", "classes")))
                for row in METHODS
                if row in found
            ],
        ),
        Table(
            "Nothing observed, images from noise: mean distance of two, and to the nearest training image",
            (
                "method",
                *(f"{what}, {n} step{'s'[: n - 1]}" for n in STEPS for what in ("distance of two", "to training data")),
            ),
            variety,
        ),
    ]
    figures = {"imputation_half": half_figure(drawn), "imputation_nothing": nothing_figure(drawn)} if drawn else {}
    notes = [
        "MSE is the squared error, summed over all pixels, of the mean over modes of what the networks say, and log p "
        "minus that of single modes, both against the true image (the authors': against the masked one).",
        f"{n_classifiers(workspace)} classifiers, trained on clean training images and evaluated without dropout; "
        "accuracy and calibration are means over these. ± is over seeds of the model and of the noise in the hidden "
        "half.",
    ]
    return Outcome(tables, figures, {"rows": found, "test images": n_images}, notes)


def n_classifiers(workspace: Workspace) -> int:
    """Return the number of classifiers that every number is a mean over."""
    return workspace.size(5, 1)


def clean_classifier(workspace: Workspace, model: Model, data: Data, seed: int) -> nn.Module:
    """Train a classifier of clean images, or load it from the folder next to the runs."""
    chosen = data.train.some(None)
    return train_classifier(
        tensor(model, data.train, chosen),
        torch.as_tensor(np.asarray(data.train.y), dtype=torch.long),
        int(np.max(np.asarray(data.train.y))) + 1,
        epochs=workspace.size(5, 10),
        seed=seed,
        cache=workspace.root / "classifier",
        device=device(model),
    )


def calibration(classifiers: Sequence[nn.Module], samples: Tensor, y: np.ndarray) -> dict[str, float]:
    """Measure accuracy and calibration on samples (M, N, *shape), averaged over classifiers."""
    each = [classification(class_probabilities(classifier, samples).numpy(), y) for classifier in classifiers]
    return {key: float(np.mean([numbers[key] for numbers in each])) for key in CALIBRATION}


Columns = tuple[tuple[str, ...], list[tuple[str, ...]]]
HEADS = {"MSE": "MSE", "log p": "log p", "accuracy": "Acc.", "ece": "ECE", "mce": "MCE", "rmsce": "RMSCE"}


def table3(found: Mapping[str, Mapping[str, list[float]]]) -> Columns:
    """Return columns and rows of table 3, each number next to the paper's."""
    columns = ("method", *(text for head in HEADS.values() for text in (head, f"paper {head}")))
    rows = []
    for method in (CLASSIFIER, *(method for method in METHODS if method in found)):
        paper = PAPER.get(method, (None,) * 6)
        cells = [NAMES.get(method, method)]
        for key, theirs in zip(HEADS, paper, strict=True):
            cells += [spread(found[method].get(key, []), 2), cell(theirs)]
        rows.append(tuple(cells))
    return columns, rows


def others(found: Mapping[str, Mapping[str, list[float]]], way: str) -> Columns:
    """Return the calibration columns of table 3 for another way to classify."""
    columns = ("method", *(text for key in CALIBRATION for text in (HEADS[key], f"paper {HEADS[key]}")))
    rows = []
    for method in (method for method in METHODS if method in found):
        cells = [NAMES[method]]
        for key, theirs in zip(CALIBRATION, PAPER.get(method, (None,) * 6)[2:], strict=True):
            cells += [spread(found[method][way + key], 2), cell(theirs)]
        rows.append(tuple(cells))
    return columns, rows


def claim(found: Mapping[str, Mapping[str, list[float]]]) -> Table:
    """Compare imputation with none, with equal classifiers and noise: the fall of the expected calibration error."""
    rows = []
    for way, about in WAYS.items():
        for method in (method for method in CLAIMED if method in found):
            pairs = zip(found[method]["bare ece"], found[method][f"{way}ece"], strict=True)
            theirs = [PAPER.get(row, (None,) * 6)[3] for row in (CLASSIFIER, method)]
            gain = None if theirs[0] is None or theirs[1] is None else f"{theirs[0] - theirs[1]:+.2f}"
            rows.append((about, NAMES[method], *decide([bare - own for bare, own in pairs], 3), cell(gain)))
    columns = ("classified", "method", "ECE of the bare classifier minus this ± standard error", "better", "paper")
    return Table("Does imputation improve calibration over the bare classifier?", columns, rows)


def shown(model: Model, data: Data) -> Tensor:
    """Return the first test images of four classes with ambiguous lower halves: 5, 3, 7, 9."""
    y = np.asarray(data.test.y)
    return tensor(model, data.test, np.array([np.flatnonzero(y == digit)[0] for digit in (5, 3, 7, 9)]))


def half_samples(model: Model, data: Data) -> Tensor:
    """Complete four half images: (4, modes, *shape)."""
    x = shown(model, data)
    observed = mask("upper", tuple(x.shape[1:]))
    return completed(model, x, observed, CompletionOptions()).samples.transpose(0, 1)


def from_nothing(model: Model, steps: int) -> Tensor:
    """Generate 64 images (64, *shape) with nothing observed, after `steps` encodings and decodings."""
    return from_noise(model.method, model.shape, 64, steps=steps, value_range=model.space.value_range)


def variety_of(model: Model, data: Data, sets: Iterable[Tensor]) -> list[float]:
    """Measure how far the images of each set (n, *shape) are from each other and from the training data."""
    train = tensor(model, data.train, data.train.some(20_000))
    about = [describe(samples, train) for samples in sets]
    return [float(number) for each in about for number in (each.diversity, each.nearest_distance)]


def half_figure(drawn: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw four half images and their completions by each method: one column per mode."""
    x = torch.tensor(next(iter(drawn.values()))["shown"])
    samples = {method: torch.tensor(found["halves"]) for method, found in drawn.items()}
    seen = x.masked_fill(~mask("upper", tuple(x.shape[1:])), 0.5)
    figure = Figure(figsize=(9.0, 2.5), layout="constrained")
    n_modes = next(iter(samples.values())).shape[1]
    first, *others = figure.subplots(1, 1 + len(samples), width_ratios=(2, *(n_modes for _ in samples)))
    draw_mosaic(first, torch.stack([x, seen], 1), title="truth, seen")
    for axes, (method, images) in zip(others, samples.items(), strict=True):
        draw_mosaic(axes, images, title=NAMES[method])
    return figure


def nothing_figure(drawn: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw images generated from noise: one column per method, one row per number of steps."""
    samples = {
        method: {steps: torch.tensor(images) for steps, images in zip(STEPS, found["generated"], strict=True)}
        for method, found in drawn.items()
    }
    figure = Figure(figsize=(6.8, 2.8), layout="constrained")
    grid = figure.subplots(len(STEPS), len(samples), squeeze=False)
    for column, (method, sets) in enumerate(samples.items()):
        for row, (steps, images) in enumerate(sets.items()):
            title = f"{NAMES[method]}, {steps} step{'s'[: steps - 1]}"
            draw_mosaic(grid[row, column], images.unflatten(0, (3, 6)), title=title)
    return figure
