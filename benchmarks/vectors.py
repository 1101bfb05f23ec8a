"""How many vectors of a low-rank posterior, which prior precision and coordinates, do the paper's networks need?

    python benchmarks/vectors.py --data FOLDER --network conv --seeds 0 1 --counts 31 64 128 256 --out vectors.jsonl
    python benchmarks/vectors.py --data FOLDER --network dense --seeds 0 --counts 0 --priors 0.01 1 100 --evidence
    python benchmarks/vectors.py --data FOLDER --counts 0 31 --priors 0.001 --coordinates weights own

A post-hoc posterior of a trained autoencoder, linearised, temperature 1: AUROC of its deviations, FashionMNIST in and
MNIST out for the convolutional network, the reverse for the dense one, whose calibration is measured too. The vectors
are those of the first batches of 100; the diagonal is that of all batches, in the coordinates of the weights or in
those that the library gives it.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapae.data import Batches
from lapae.methods.laplace import Laplace, prior_scales
from lapae.methods.step import StepContext
from lapae.methods.vectors import bases
from lapae.posterior import DiagonalPrecision, LowRankPrecision, maximise
from lapae.storage import load_run
from lapae_paper.experiments.base import Size, find
from lapae_paper.experiments.calibration import LOWRANK, output_space
from lapae_paper.experiments.trials import dense
from lapae_paper.experiments.workspace import Workspace
from lapae_paper.tasks.base import batches
from lapae_paper.tasks.ood import OodOptions, detect

BATCH = 100


def vectors(method: Laplace, data: Batches, seed: int) -> tuple[Tensor, Tensor]:
    """Return a vector (P,) of each batch in bfloat16, stacked, and the sum of their squares (P,), in the coordinates
    that the posterior has been fitted in."""
    posterior = method.posterior
    assert isinstance(posterior, LowRankPrecision)
    n, like = -(-data.n_data // BATCH), posterior.prior
    found = torch.empty(n, posterior.n_weights, dtype=torch.bfloat16, device=like.device)
    squares = torch.zeros(posterior.n_weights, device=like.device)
    step = StepContext(generator=torch.Generator(like.device).manual_seed(seed))
    with torch.no_grad():
        for i, x in enumerate(data.every()):
            u = posterior.turn(method.vectors_of(x, step, 1)[0][0]).float()
            found[i], squares = u.bfloat16(), squares.add_(u.square())
    return found, squares


def main() -> None:
    """Parse, train, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--network", choices=("conv", "dense"), default="conv")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[0, 31, 64, 128, 256], help="0: the diagonal alone")
    parser.add_argument("--priors", type=float, nargs="+", default=[1.0])
    parser.add_argument("--evidence", action="store_true", help="and those that the evidence of the diagonal chooses")
    parser.add_argument("--coordinates", nargs="+", choices=("weights", "own"), default=["own"], help="of the diagonal")
    parser.add_argument("--limit", type=int, default=3000, help="images of each set")
    parser.add_argument("--epochs", type=int, help="default: those of the paper's experiments")
    parser.add_argument("--quick", action="store_true", help="small networks on embedded data")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, help="folder of the trained networks")
    parser.add_argument("--out", type=Path, default=Path("vectors.jsonl"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            measure(options, seed, options.work or Path(folder))


def measure(options: argparse.Namespace, seed: int, folder: Path) -> None:
    """Train one network and measure every variant."""
    size = Size(options.quick)
    workspace = Workspace(find("ood"), size, folder, device=options.device, data_dir=options.data)
    inside, outside = size(("fashion_mnist", "mnist"), ("digits", "patches"))
    if options.network == "dense":
        inside, outside = size(("mnist", "fashion_mnist"), ("digits", "patches"))
        trial = dense(size, "posthoc", seed=seed, hessian="lowrank")
    else:
        start = workspace.experiment.plan(size)[f"{size('paper', 'quick')}: LAE (post-hoc), seed {size(seed, 0)}"]
        method = start.config.method
        lowrank = replace(method, options=replace(method.options, hessian="lowrank", vectors=1))
        trial = replace(start, config=replace(start.config, method=lowrank))
    if options.epochs is not None:
        start = trial.start or trial
        start = replace(start, config=replace(start.config, train=replace(start.config.train, epochs=options.epochs)))
        train = replace(trial.config.train, epochs=options.epochs)
        trial = replace(trial, config=replace(trial.config, train=train), start=start)
    began = time.monotonic()
    workspace.fit(trial)
    model = load_run(workspace.folder(trial), device=workspace.torch_device)
    method = model.method.eval()
    assert isinstance(method, Laplace)
    assert isinstance(method.posterior, LowRankPrecision)
    precision, trained = method.posterior, time.monotonic() - began
    data, other = workspace.data(inside), workspace.data(outside)
    batches_of = Batches(data.train.x, model.space, BATCH, device=precision.prior.device)

    def say(**values: Any) -> None:
        with options.out.open("a") as file:
            file.write(json.dumps(values) + "\n")
        print(values, flush=True)

    def score(**values: Any) -> None:
        limit = OodOptions(predictive="linearized", bootstrap=2, limit=options.limit, train_limit=200)
        began = time.monotonic()
        x = batches(model, other.held_out, options.limit, space=other.space)
        found = detect(model, data, {"outside": x}, limit)
        scores = ("latent_deviation", "output_deviation")
        auroc: dict[str, Any] = {name: round(found.detections["outside"][name].auroc.value, 4) for name in scores}
        means = {
            name: [float(f"{part[name].mean():.4g}") for part in (found.inside, found.outside["outside"])]
            for name in scores
        }
        if options.network == "dense":  # on the paper's 2,000 test images
            auroc |= output_space(workspace, LOWRANK, model, data)
        seconds = round(time.monotonic() - began, 1)
        say(network=options.network, seed=seed, **values, **auroc, means=means, seconds=seconds)

    say(network=options.network, seed=seed, weights=precision.n_weights, seconds=round(trained))
    score(prior="as fitted", values=sorted(set(precision.prior.tolist())), vectors=precision.n_vectors)
    # not the seed of the vectors: these would have no part in the directions that bases from few vectors leave out
    step = StepContext(generator=torch.Generator(precision.prior.device).manual_seed(seed + 1000))
    for coordinates in options.coordinates:
        precision.set_bases(None if coordinates == "weights" else bases(method, batches_of.every, step))
        compare(options, method, *vectors(method, batches_of, seed), partial(score, coordinates=coordinates))


def compare(options: argparse.Namespace, method: Laplace, u: Tensor, d: Tensor, score: Callable[..., None]) -> None:
    """Score every prior precision and number of vectors."""
    precision = method.posterior
    assert isinstance(precision, LowRankPrecision)
    priors: dict[str, Any] = {f"{value:g}": [value] * len(precision.shapes) for value in options.priors}
    if options.evidence:
        mean = dict(method.network.named_parameters())
        for kind in ("scalar", "layer"):
            alone = DiagonalPrecision(precision.shapes, 1.0).to(precision.prior)
            alone.h.copy_(d)
            maximise(mean, alone, kind)
            priors[f"evidence, {kind}"] = [float(value) for value in alone.prior]
        priors["fan-in"] = prior_scales(method.network, "fan-in")
    for name, prior in priors.items():
        precision.set_prior(prior)
        for count in options.counts:
            if count > len(u):
                continue
            some = u[: count or 1] * math.sqrt(len(u) / (count or 1))
            precision.set_vectors(some.bfloat16(), d, 0.1 if count else 0.0)
            score(prior=name, values=sorted({round(value, 6) for value in prior})[:8], vectors=count)


if __name__ == "__main__":
    main()
