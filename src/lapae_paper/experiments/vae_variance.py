"""Where the variance of a VAE should grow (the paper's appendix F).

A Gaussian VAE is an infinite mixture of Gaussians whose weights the latent prior fixes. The illustration is a finite
one: components with means fixed on a grid and equal weights, and data in one region; only the variances are learned, by
maximising the likelihood of the data. A component that cannot move explains the data best by reaching them, so distant
ones become wide and near ones narrow. The learned variance of the VAE of figure 1 is given for comparison.

The paper gives snapshots without settings; grid, data and optimiser (damped expectation-maximisation) are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from torch import Tensor

from lapae.model import Model
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, cell, experiment, spread
from lapae_paper.experiments.pictures import growth
from lapae_paper.experiments.trials import dense, digits
from lapae_paper.experiments.workspace import Workspace

SIDE, REACH = 6, 4.0
"""Number of components along a side of the grid, which goes from -REACH to REACH."""
CENTRE, SPREAD, N_DATA = (-1.5, -1.0), 0.6, 500
"""Centre, width and number of the data."""
START = 0.5
"""Initial standard deviation of every component."""
SNAPSHOTS = (0, 5, 20, 500)
"""Steps after which a picture is taken; the last one has converged."""
PART = 0.1
"""Share of a full step of expectation-maximisation that is taken, so that snapshots show intermediate states."""
RINGS = (0.0, 1.0, 2.0, 3.0, 4.0, 8.0)
"""Limits of the distances from the centre of the data in the table."""


def component_log_densities(x: Tensor, means: Tensor, log_deviation: Tensor) -> Tensor:
    """Return log of weight times density (N, M) of samples x (N, 2) under M equally weighted round Gaussians."""
    squares = (x[:, None] - means).square().sum(2)
    normaliser = 2 * log_deviation + np.log(2 * np.pi * len(means))
    return -0.5 * squares * (-2 * log_deviation).exp() - normaliser


def learn_variances(x: Tensor, means: Tensor, steps: tuple[int, ...]) -> tuple[list[Tensor], list[float]]:
    """Maximise the likelihood over the standard deviations; return them (M,) and the mean log density after `steps`.

    Expectation-maximisation sets a variance to half the mean square distance of the component's share of the data; each
    step goes a part of that way. Shares are normalised as logarithms, as a far component's are of any smallness.
    """
    squares = (x[:, None] - means).square().sum(2)
    log_deviation = torch.full((len(means),), float(np.log(START)), dtype=x.dtype)
    deviations, densities = [], []
    for step in range(steps[-1] + 1):
        each = component_log_densities(x, means, log_deviation)
        total = torch.logsumexp(each, 1, keepdim=True)
        if step in steps:
            deviations.append(log_deviation.exp())
            densities.append(float(total.mean()))
        shares = torch.softmax(each - total, 0)
        best = 0.5 * (0.5 * (shares * squares).sum(0)).log()
        log_deviation = log_deviation + PART * (best - log_deviation)
    return deviations, densities


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan the VAE of figure 1 with three seeds."""
    return {f"vae, seed {seed}": dense(size, "vae", seed=seed) for seed in size.seeds(3)}


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, float]:
    """Measure how the VAE's standard deviation grows away from the data."""
    data = workspace.data(digits(workspace.size))
    return {"away / on": growth(model, data, n_samples=workspace.size(100, 20))}


@experiment(
    "vae-variance",
    of="appendix F",
    about="a mixture of Gaussians with fixed means: variances far from the data grow; those of a VAE need not",
    needs=("mnist",),
    minutes=(0.1, 1),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Measure the mixture, ring by ring, and the VAE."""
    generator = torch.Generator().manual_seed(0)
    centre = torch.tensor(CENTRE, dtype=torch.float64)
    x = centre + SPREAD * torch.randn(N_DATA, 2, generator=generator, dtype=torch.float64)
    line = torch.linspace(-REACH, REACH, SIDE, dtype=torch.float64)
    means = torch.cartesian_prod(line, line)
    deviations, densities = learn_variances(x, means, SNAPSHOTS)

    distance = (means - centre).square().sum(1).sqrt()
    rings = [(distance >= low) & (distance < high) for low, high in pairwise(RINGS)]
    by_ring = [[float(sigma[ring].square().mean()) for sigma in deviations] for ring in rings]
    rows = [
        (f"{low:g} to {high:g}", str(int(ring.sum())), *(cell(value) for value in values))
        for (low, high), ring, values in zip(pairwise(RINGS), rings, by_ring, strict=True)
    ]
    rows.append(("log likelihood per sample", "-", *(cell(value) for value in densities)))
    columns = ("distance from the data", "components", *(f"variance, step {step}" for step in SNAPSHOTS))
    mixture = Table("Mean variance of the components of the mixture, by distance from the data", columns, rows)

    on, away = distance < RINGS[1], distance >= RINGS[3]
    ratios = [float(sigma[away].mean() / sigma[on].mean()) for sigma in deviations]
    vae = [workspace.measured(name)["away / on"] for name in workspace.plan]
    compared = Table(
        "Deviation away from the data, as a multiple of that on them",
        ("model", "away / on", "the paper says"),
        [
            ("mixture, at first", cell(ratios[0]), "-"),
            ("mixture, learned", cell(ratios[-1]), "grows"),
            ("VAE of figure 1", spread(vae, 2), "does not grow"),
        ],
    )
    raw = {"variance_by_ring": by_ring, "log_likelihood": densities, "away_on": ratios, "away_on_vae": vae}
    return Outcome([mixture, compared], {"vae_variance": snapshots(x, means, deviations)}, raw)


def snapshots(x: Tensor, means: Tensor, deviations: list[Tensor]) -> Figure:
    """Draw components as dots with circles of one standard deviation, one panel per snapshot; darker is wider."""
    figure = Figure(figsize=(8.6, 2.6), layout="constrained")
    top = max(float(sigma.max()) for sigma in deviations)
    panels: list[Axes] = list(figure.subplots(1, len(deviations), sharex=True, sharey=True))
    for axes, sigma, step in zip(panels, deviations, SNAPSHOTS, strict=True):
        width = 2 * sigma.numpy()
        circles = EllipseCollection(
            width, width, 0 * width, units="xy", offsets=means.numpy(), offset_transform=axes.transData,
            facecolor="none", array=sigma.numpy(), cmap="viridis_r", clim=(0, top), linewidth=0.8,
        )  # fmt: skip
        axes.add_collection(circles)
        axes.scatter(*means.T, s=9, c=sigma, cmap="viridis_r", vmin=0, vmax=top, linewidths=0)
        axes.scatter(*x[:150].T, s=2, color="C3", linewidths=0, zorder=3)
        axes.set(xlim=(-1.6 * REACH, 1.6 * REACH), ylim=(-1.6 * REACH, 1.6 * REACH), aspect="equal")
        axes.set_title("start" if step == 0 else f"step {step}", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.set_xlabel("x1", fontsize=8)
    panels[0].set_ylabel("x2", fontsize=8)
    figure.colorbar(circles, ax=panels, label="deviation of a component", shrink=0.9)
    return figure
