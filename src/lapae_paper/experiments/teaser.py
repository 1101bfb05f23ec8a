"""Where the decoder is uncertain: VAE, post-hoc and online Laplacian autoencoder (the paper's figure 1).

The network is the dense one with two latent dimensions, on MNIST. A map of the latent space shows the summed deviation
of the decoder under the codes of the test images; below it are the mean and the deviation of one reconstruction. The
deviation of the VAE is the one that it learns, plus that of sampled codes in the reconstruction; that of the others
comes from sampled networks.

The paper shows pictures only, and says that the deviation grows for both Laplacian autoencoders but not for the VAE.
The numbers are ours: the decoder's mean deviation away from the codes of the training images, divided by that on them,
and the share of the map away from the codes where it is larger than on them, because a learned variance can explode in
one corner and be small everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from lapae.model import Model
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, experiment, spread
from lapae_paper.experiments.pictures import draw_latent, draw_reconstruction, latent_picture, on_and_away
from lapae_paper.experiments.trials import LABELS, dense, digits
from lapae_paper.experiments.workspace import Workspace

METHODS = ("vae", "posthoc", "online")
PAPER = {"vae": "smallest far away", "posthoc": "grows", "online": "grows"}
"""What section 1 says about each method; it gives no number."""
KEYS = ("away / on", "share")


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan each method with three seeds; the first is drawn."""
    return {f"{method}, seed {seed}": dense(size, method, seed=seed) for method in METHODS for seed in size.seeds(3)}


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, Any]:
    """Measure how the standard deviation grows, and what is drawn."""
    data, n_samples = workspace.data(digits(workspace.size)), workspace.size(100, 20)
    on, away = on_and_away(model, data, n_samples=n_samples)
    measured: dict[str, Any] = {
        "away / on": float(away.mean() / on.mean()),
        "share": float((away > on.mean()).mean()),
    }
    if name.endswith("seed 0"):
        measured["picture"] = latent_picture(model, data, n_samples=n_samples, side=workspace.size(64, 32))
    return measured


@experiment(
    "teaser",
    of="figure 1",
    about="where the decoder is uncertain: latent space and one reconstruction of VAE, post-hoc and online",
    needs=("mnist",),
    minutes=(0.2, 3),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Draw the figure, and tell how the standard deviation grows."""
    figure = Figure(figsize=(8.4, 4.8), layout="constrained")
    grid = figure.add_gridspec(1, len(METHODS))
    found = {method: [workspace.measured(name) for name in workspace.named(method)] for method in METHODS}
    found = {method: numbers for method, numbers in found.items() if numbers}
    pictures = {method: numbers[0]["picture"] for method, numbers in found.items() if "picture" in numbers[0]}
    for i, (method, picture) in enumerate(pictures.items()):
        part = figure.add_subfigure(grid[i])
        part.suptitle(LABELS[method], fontsize=11)
        cells = part.add_gridspec(2, 2, height_ratios=(1.7, 1))
        space = part.add_subplot(cells[0, :])
        draw_latent(space, picture)
        space.set_xlabel("z1", fontsize=8)
        space.set_ylabel("z2", fontsize=8)
        draw_reconstruction(part.add_subplot(cells[1, 0]), part.add_subplot(cells[1, 1]), picture)
    table = Table(
        "Deviation of the decoder away from the training data, as a multiple of that on them",
        ("method", "away / on", "share of the places away where it is larger", "the paper says"),
        [
            (LABELS[method], *(spread([n[key] for n in numbers], 2) for key in KEYS), PAPER[method])
            for method, numbers in found.items()
        ],
    )
    note = "Maps are dark where the decoder's summed deviation is large, each on its own scale; points are test codes."
    raw = {method: {key: [n[key] for n in numbers] for key in KEYS} for method, numbers in found.items()}
    return Outcome([table], {"teaser": figure}, raw, [note])
