"""`lapae demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from lapae.config import Config, MethodConfig, TrainConfig


@dataclass(frozen=True)
class DemoCommand:
    """Train on scikit-learn's digits (embedded, no download) and show the test error. About a minute on two cores."""

    out: Path | None = None
    """Folder of the run; runs/demo-N where not given."""
    epochs: int = 100
    """Passes over the training data at most."""
    seed: int = 0
    """Of everything random."""
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    """Train, evaluate, print."""
    command = tyro.cli(DemoCommand, args=list(arguments), prog="lapae demo")
    from lapae.cli.train import report, train_in
    from lapae.methods import METHODS
    from lapae.runs import Run

    method = MethodConfig(method="online" if "online" in METHODS else "ae")
    config = Config(method=method, train=TrainConfig(epochs=command.epochs, seed=command.seed))
    run = Run.create(command.out, name="demo")
    return report(train_in(run, config.resolved()), as_json=command.json)
