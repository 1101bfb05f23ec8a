"""Whether the gains are larger for overparameterised networks (the paper's limitations).

The dense network on MNIST is made narrower and wider: hidden layers of 64 and 32 units (0.1 million weights), of 512
and 256 (the paper's, 1.1 million), and of 2,048 and 1,024 (7.4 million). The paper gives no number. Gains are those of
its table 2: how much lower the error of sampled networks is with online training than post-hoc, and how much lower the
error of the mean reconstruction is than that of the plain autoencoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lapae.config import DataConfig, ModelConfig
from lapae.model import Model
from lapae_paper.experiments.base import Outcome, Size, Table, Trial, decide, experiment, spread
from lapae_paper.experiments.pictures import squared_errors
from lapae_paper.experiments.trials import dense, digits, training, trial
from lapae_paper.experiments.workspace import Workspace

PAPERS = "512, 256"
WIDTHS = {"64, 32": (64, 32), PAPERS: (512, 256), "2048, 1024": (2048, 1024)}
QUICK = {"8": (8,), "32": (32,)}
METHODS = ("ae", "posthoc", "online")


def plan(size: Size) -> Mapping[str, Trial]:
    """Plan each width and method with three seeds."""
    found = {}
    for width, hidden in size(WIDTHS, QUICK).items():
        model = replace(ModelConfig(network="mlp"), hidden=hidden)
        for method in METHODS:
            for seed in size.seeds(3):
                found[f"{width}: {method}, seed {seed}"] = (
                    dense(size, method, seed=seed)  # shared with the other experiments
                    if width == PAPERS
                    else trial(DataConfig(source=digits(size)), model, training(size, seed), method)
                )
    return found


def measure(workspace: Workspace, name: str, model: Model) -> dict[str, float]:
    """Measure errors of sampled networks and of their mean on the test images."""
    data = workspace.data(digits(workspace.size))
    return squared_errors(model, data.test, n_samples=workspace.size(100, 20))


@experiment(
    "width",
    of="section 4, limitations",
    about="whether the gains of the online posterior grow with the width of the network",
    needs=("mnist",),
    minutes=(0.3, 4),
    plan=plan,
    measure=measure,
)
def run(workspace: Workspace) -> Outcome:
    """Make a table of errors, and one of the gains."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name in workspace.plan:
        width, _, rest = name.partition(": ")
        found.setdefault(width, {}).setdefault(rest.rpartition(", seed ")[0], []).append(workspace.measured(name))
    rows = [
        (width, method, *(spread([numbers[key] for numbers in seeds]) for key in ("-log p", "MSE")))
        for width, methods in found.items()
        for method, seeds in methods.items()
    ]
    gains = {width: gains_of(methods) for width, methods in found.items()}
    compared = [(width, *(decide(gain)[0] if gain else "-" for gain in both.values())) for width, both in gains.items()]
    tables = [
        Table("Errors on the test images by width", ("hidden layers", "method", "-log p", "MSE"), rows),
        Table(
            "Gains of the online posterior",
            ("hidden layers", "-log p below post-hoc ± standard error", "MSE below the AE's ± standard error"),
            compared,
        ),
    ]
    return Outcome(tables, raw={"gains": gains})


def gains_of(methods: Mapping[str, list[dict[str, float]]]) -> dict[str, list[float]]:
    """Return the gains of the online posterior, by seed."""
    posthoc, ae, online = (methods.get(name, []) for name in ("posthoc", "ae", "online"))
    return {
        "-log p": [a["-log p"] - b["-log p"] for a, b in zip(posthoc, online, strict=False)],
        "MSE": [a["MSE"] - b["MSE"] for a, b in zip(ae, online, strict=False)],
    }
