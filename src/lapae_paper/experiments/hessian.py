"""Hessian approximations, post-hoc and online (the paper's table 2 and figure 8).

The network is the dense one, on MNIST. "-log p" is the squared error of single sampled networks, "MSE" that of the mean
over 100 of them, both summed over the pixels of an image. With online training every sampled network reconstructs well,
with post-hoc fitting only their mean; the approximate diagonal is as good as the exact one.

The paper's numbers are for the validation set, the images held out of the training set that also decide early stopping;
ours are given for it ("valid"), for the test images, and for training images, also for the plain autoencoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lapae.model import Model
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, cell, experiment, spread
from lapae_paper.experiments.pictures import latent_picture, latent_row, squared_errors
from lapae_paper.experiments.trials import dense, digits
from lapae_paper.experiments.workspace import Workspace

PAPER = {
    "post-hoc KFAC": ("9683.9 ± 2455.0", "121.6 ± 24.5"),
    "post-hoc exact": ("283.3 ± 88.6", "27.1 ± 0.9"),
    "post-hoc approx": ("232.0 ± 65.5", "26.6 ± 0.6"),
    "online exact": ("25.8 ± 0.2", "25.7 ± 0.2"),
    "online approx": ("25.9 ± 0.4", "25.8 ± 0.4"),
}
"""Table 2: -log p and MSE."""

AUTOENCODER = "autoencoder"
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "post-hoc KFAC": ("posthoc", {"hessian": "kfac"}),
    "post-hoc exact": ("posthoc", {"hessian": "exact"}),
    "post-hoc approx": ("posthoc", {"hessian": "approx"}),
    "online exact": ("online", {"hessian": "exact"}),
    "online approx": ("online", {"hessian": "approx"}),
    AUTOENCODER: ("ae", {}),
    "online exact, α = 1e-4": ("online", {"hessian": "exact", "forgetting": 1e-4}),
    "online exact, α = 1e-4, H₀ = 0": (
        "online",
        {"hessian": "exact", "forgetting": 1e-4, "initial_precision": "prior"},
    ),
    "online mixed": ("online", {"hessian": "mixed"}),
    "online sketch": ("online", {"hessian": "sketch"}),
    "online mc": ("online", {"hessian": "mc"}),
    "online bottleneck": ("online", {"hessian": "bottleneck"}),
    "online lowrank": ("online", {"hessian": "lowrank"}),
    "post-hoc sketch": ("posthoc", {"hessian": "sketch"}),
    "post-hoc lowrank": ("posthoc", {"hessian": "lowrank"}),
}
"""The methods that are measured: those with α = 1e-4 are the paper's text, H₀ = 0 included; the others after the
autoencoder are ours."""
QUICK = ("post-hoc KFAC", "post-hoc approx", "online exact", "online approx", AUTOENCODER, "online lowrank")
"""Rows of the quick size."""


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan the paper's rows with five seeds, others with three; the post-hoc rows of a seed share an autoencoder."""
    return {
        f"{name}, seed {seed}": dense(size, method, seed=seed, **options)
        for name, (method, options) in ROWS.items()
        if not size.quick or name in QUICK
        for seed in size.seeds(5 if name in (*PAPER, AUTOENCODER) else 3)
    }


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, Any]:
    """Measure errors on the splits, and of the first seed what is drawn."""
    data = workspace.data(digits(workspace.size))
    n_samples = workspace.size(100, 20)
    errors = {
        f"{split} {key}": value
        for split, part in (("train", data.train), ("valid", data.valid), ("test", data.test))
        for key, value in squared_errors(model, part, n_samples=n_samples, limit=workspace.size(10_000, None)).items()
    }
    drawn = {"picture": latent_picture(model, data)} if name.endswith("seed 0") and AUTOENCODER not in name else {}
    return {"errors": errors, **drawn}


@experiment(
    "hessian",
    of="table 2, figure 8",
    about="KFAC, exact and approximate Hessians, post-hoc and online: likelihood and error",
    needs=("mnist",),
    minutes=(1, 10),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Make the table, and draw the latent space of each row."""
    measured = workspace.rows()
    figures = {
        f"hessian_{row.replace(' ', '_')}": latent_row(of_row["picture"][0], title=row)
        for row, of_row in measured.items()
        if "picture" in of_row
    }
    errors = {row: of_row["errors"] for row, of_row in measured.items()}  # by seed
    found = {row: {key: [one[key] for one in seeds] for key in seeds[0]} for row, seeds in errors.items()}
    keys = ("valid -log p", "valid MSE", "test -log p", "test MSE", "train MSE")
    rows = [
        (row, *(spread(values[key]) for key in keys), *(cell(text) for text in PAPER.get(row, (None, None))))
        for row, values in found.items()
    ]
    columns = ("Hessian", *keys, "paper -log p", "paper MSE")
    table = Table("Squared error of sampled networks and of their mean", columns, rows)
    seeds = ", ".join(f"{row} {len(values['test MSE'])}" for row, values in found.items())
    note = f"Seeds: {seeds}. Errors are sums over the pixels of an image; the autoencoder is a single network."
    return Outcome([table], figures, {"rows": found}, [note])
