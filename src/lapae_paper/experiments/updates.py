"""Updates of the precision (the paper's appendix C): its own, three others, and two relatives, on the same network.

The network is the dense one, on MNIST. The four rules differ in how much of the old precision they keep and how much of
the new curvature they add (`lapae.posterior.update`); Noisy Adam uses squared gradients instead of the GGN, Bayes by
Backprop learns the standard deviations by gradient descent. The paper compares them in words only.

What to expect: laplacian is nng with a precision 1/α times larger, so its networks are close to the mean; redux knows
one batch; van's precision grows forever.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional as F

from lapae.methods.bbb import BBB
from lapae.methods.laplace import Laplace
from lapae.model import Model
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, experiment, spread
from lapae_paper.experiments.pictures import squared_errors
from lapae_paper.experiments.trials import dense, digits
from lapae_paper.experiments.workspace import Workspace

ROWS = {
    "laplacian: (1-α) H + GGN (the paper's)": ("online", {}),
    "redux: prior + GGN": ("online", {"update": "redux"}),
    "van: H + α GGN": ("online", {"update": "van"}),
    "nng: (1-α) H + α GGN": ("online", {"update": "nng"}),
    "Noisy Adam: (1-α) H + α N g²": ("noisy-adam", {}),
    "Bayes by Backprop": ("bbb", {}),
}


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan every rule with α = 1e-3."""
    return {
        f"{name}, seed {seed}": dense(size, method, seed=seed, **options)
        for name, (method, options) in ROWS.items()
        for seed in size.seeds(3)
    }


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, float]:
    """Measure errors of sampled networks and of their mean, the width of the posterior, and the epochs."""
    data = workspace.data(digits(workspace.size))
    errors = squared_errors(model, data.test, n_samples=workspace.size(100, 20))
    return errors | {"deviation": deviation(model), "epochs": float(model.metrics["epochs"])}


@experiment(
    "updates",
    of="appendix C",
    about="the four updates of the precision, Noisy Adam and Bayes by Backprop on the same network",
    needs=("mnist",),
    minutes=(0.5, 4),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Make the table."""
    found = workspace.rows()
    rows = [
        (
            name,
            spread(row["-log p"]),
            spread(row["MSE"]),
            f"{sum(row['deviation']) / len(row['deviation']):.2g}",
            spread(row["epochs"], 0),
        )
        for name, row in found.items()
    ]
    columns = ("update", "test -log p", "test MSE", "median deviation of a weight", "epochs")
    return Outcome([Table("Updates of the precision", columns, rows)], raw={"rows": found})


@torch.no_grad()
def deviation(model: Model) -> float:
    """Return the median posterior standard deviation of the weights."""
    method = model.method
    if isinstance(method, BBB):
        return float(torch.cat([F.softplus(rho).flatten() for rho in method.rho.parameters()]).median())
    assert isinstance(method, Laplace)
    eps = torch.ones(method.posterior.n_weights, device=method.posterior.prior.device)
    return float(method.posterior.scale_noise(eps).median())
