"""How linear a network is over its own posterior (the paper's figure 3).

The figure draws the joint density of a weight and a reconstruction for one sample: each column is the Gaussian
likelihood around the network's output at that weight, and the weights are Gaussian. With a linear network the joint is
Gaussian; with the network as it is, the density follows a curve.

The paper's is a sketch; ours is of trained networks. The weights move along one posterior draw d, θ(s) = θ* + s d with
s ~ N(0, 1), and the reconstruction is measured along the tangent J d, normalised. The table has a number for the whole
output, over many samples and directions: |f(s) - f_lin(s)| / |f_lin(s) - f(0)|, 0 for a linear network.

The noise of the likelihood has standard deviation 1, far more than the differences between networks of an online
posterior: the panels use less noise, which their titles say, so that the curve can be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure, SubFigure
from torch import Tensor
from torch.func import jvp

from lapae.curvature.stateless import functional_call
from lapae.methods.laplace import Laplace
from lapae.methods.weights import WeightDraws
from lapae.model import Model
from lapae.posterior.noise import fill_normal
from lapae.predict.mc import evaluating
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, cell, experiment, spread
from lapae_paper.experiments.trials import LABELS, dense, digits
from lapae_paper.experiments.workspace import Workspace
from lapae_paper.tasks.base import tensor

METHODS = ("posthoc", "online")
GRID = np.linspace(-3, 3, 24)
"""Values of s; 0, where a relative error means nothing, is not among them."""
WEIGHTS = np.exp(-0.5 * GRID**2) / np.exp(-0.5 * GRID**2).sum()
"""Normal density on the grid, normalised."""


@dataclass(frozen=True)
class Along:
    """The network along one direction d of its weights, for B samples."""

    here: Tensor
    """f(0): (B, D)."""
    moved: Tensor
    """f(s) on the grid: (S, B, D)."""
    tangent: Tensor
    """J d: (B, D)."""

    @property
    def linear(self) -> Tensor:
        """f_lin(s) on the grid: (S, B, D)."""
        s = torch.as_tensor(GRID, dtype=self.here.dtype)
        return self.here + s[:, None, None] * self.tangent

    def relative_error(self) -> Tensor:
        """Return the expectation over s of |f(s) - f_lin(s)| / |f_lin(s) - f(0)|: (B,)."""
        gap = (self.moved - self.linear).norm(dim=2) / (self.linear - self.here).norm(dim=2)
        return torch.as_tensor(WEIGHTS, dtype=gap.dtype) @ gap


def along(method: Laplace, x: Tensor, seed: int) -> Along:
    """Move the weights along the posterior draw of a seed; x is (B, *shape)."""
    mean = dict(method.network.named_parameters())
    x = x.to(next(iter(mean.values())).device)
    with evaluating(method):
        eps = fill_normal(torch.empty(1, method.posterior.n_weights, device=x.device), [seed])
        d = method.posterior.scale_noise(eps)
        forward = lambda weights: functional_call(method.network, weights, (x,))  # noqa: E731
        here, tangent = jvp(forward, (mean,), (method.posterior.split(d[0]),))[:2]
        s = torch.as_tensor(GRID, dtype=d.dtype, device=d.device)
        draws = WeightDraws(method.network, method.params_at(s[:, None] * d))
        moved = draws.decode(draws.encode(x[None])).loc
    return Along(here.flatten(1).cpu(), moved.flatten(2).cpu(), tangent.flatten(1).cpu())


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan the two posteriors with three seeds; the first is drawn."""
    return {f"{method}, seed {seed}": dense(size, method, seed=seed) for method in METHODS for seed in size.seeds(3)}


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, Any]:
    """Measure relative errors and |J d|, (directions, samples), and the curves of the first that are drawn."""
    data = workspace.data(digits(workspace.size))
    assert isinstance(model.method, Laplace)
    x = tensor(model, data.test, data.test.some(workspace.size(64, 16)))
    found = [along(model.method, x, seed) for seed in range(workspace.size(16, 4))]
    first = found[0]
    direction = first.tangent[0] / first.tangent[0].norm()
    return {
        "relative_error": [each.relative_error().tolist() for each in found],
        "tangent": [each.tangent.norm(dim=1).tolist() for each in found],
        "curves": [((values[:, 0] - first.here[0]) @ direction).tolist() for values in (first.moved, first.linear)],
    }


@experiment(
    "linearization",
    of="figure 3",
    about="the joint of weight and reconstruction, nonlinear and linearised: how linear a network is",
    needs=("mnist",),
    minutes=(0.1, 1),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Draw panels for one sample, and measure errors over many."""
    figure = Figure(figsize=(8.0, 6.2), layout="constrained")
    grid = figure.add_gridspec(len(METHODS), 1)
    rows: list[tuple[str, ...]] = []
    raw: dict[str, Any] = {}
    for i, method in enumerate(METHODS):
        seeds = [workspace.measured(name) for name in workspace.named(method)]
        if not seeds:
            continue
        part = figure.add_subfigure(grid[i])
        found = {key: [measured[key] for measured in seeds] for key in ("relative_error", "tangent")}
        errors, lengths = (torch.tensor(numbers) for numbers in found.values())  # (seeds, directions, samples)
        for key, numbers in found.items():
            raw.setdefault(key, {})[method] = numbers
        rows.append(
            (
                LABELS[method],
                spread(errors.mean((1, 2)).tolist(), 3),
                cell(float(errors[0].mean(1).std()), 3),
                cell(float(errors[0].mean(0).std()), 3),
                cell(float(lengths.mean()), 2),
            )
        )
        curves = [np.array(curve) for curve in seeds[0]["curves"]]
        draw_joint(part, curves, float(lengths[0, 0, 0]), LABELS[method])
    columns = ("posterior", "relative error", "± over directions, seed 0", "± over data, seed 0", "length of J d")
    table = Table("Error of the linearised network over its posterior, relative to how far it moves", columns, rows)
    note = (
        f"{errors.shape[2]} test data, {errors.shape[1]} posterior draws as directions, s ~ N(0, 1). 0 is a linear "
        "network; at 1 the linearisation is as wrong as no prediction of the change at all."
    )
    return Outcome([table], {"linearization": figure}, raw, [note])


def draw_joint(part: SubFigure, curves: Sequence[np.ndarray], length: float, title: str) -> None:
    """Draw p(s, y) with both marginals, for the network and linearised.

    `curves` are the reconstruction along J d on the grid of s, (S,) each: of the network, and linearised; `length` is
    |J d|.
    """
    noise = min(1.0, 0.4 * length)
    s = np.linspace(GRID[0], GRID[-1], 121)
    low, high = min(map(np.min, curves)) - 2.5 * noise, max(map(np.max, curves)) + 2.5 * noise
    y = np.linspace(low, high, 161)
    part.suptitle(f"{title}: noise of deviation {noise:.2g}", fontsize=10)
    grid = part.add_gridspec(2, 5, width_ratios=(4, 1, 0.3, 4, 1), height_ratios=(1, 3.5))
    for column, (curve, name) in enumerate(zip(curves, ("network", "linearised"), strict=True)):
        at = 3 * column
        line = np.interp(s, GRID, curve)
        prior = np.exp(-0.5 * s**2) / np.sqrt(2 * np.pi)
        joint = prior * np.exp(-0.5 * ((y[:, None] - line) / noise) ** 2) / (np.sqrt(2 * np.pi) * noise)
        main = part.add_subplot(grid[1, at])
        main.imshow(joint, extent=(s[0], s[-1], low, high), origin="lower", aspect="auto", cmap="Blues")
        main.plot(s, line, color="C3", linewidth=1)
        main.set_xlabel("position s along a posterior draw", fontsize=8)
        main.set_ylabel("reconstruction along J d", fontsize=8)
        main.tick_params(labelsize=7)
        above = part.add_subplot(grid[0, at], sharex=main)
        above.fill_between(s, prior, color="C0", alpha=0.4)
        above.set_title(name, fontsize=9)
        beside = part.add_subplot(grid[1, at + 1], sharey=main)
        beside.fill_betweenx(y, joint.sum(1) * (s[1] - s[0]), color="C0", alpha=0.4)
        for axes in (above, beside):
            axes.set_axis_off()
