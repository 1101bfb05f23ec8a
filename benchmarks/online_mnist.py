"""The paper's effect on MNIST (table 2): online against post-hoc, dense network, several seeds, both splits.

    python benchmarks/online_mnist.py --seeds 5 --out results.jsonl        # on a GPU: about half a minute a model

"-log p": squared error per image averaged over 100 sampled networks; "MSE": that of their mean reconstruction. Both
are sums over pixels, means over images. "valid" are the 5,000 images that steer early stopping (the paper's split).
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from pathlib import Path

import torch

from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.data import Batches, Data
from lapae.fit import fit, load_data
from lapae.methods import Method, build
from lapae.methods.step import StepContext
from lapae.predict import predict
from lapae_paper.choices import as_in_the_paper

POSTHOC = ("approx", "exact", "kfac")


def errors(method: Method, data: Data) -> dict[str, dict[str, float]]:
    device = next(method.parameters()).device
    found = {}
    for name, split in (("valid", data.valid), ("test", data.test)):
        batches = Batches(split.x, data.space, 5000, device=device)
        p = predict(method, batches, n_samples=100, want=("outputs", "error"))
        found[name] = {
            "-log p": float(p.squared_error.mean()),
            "MSE": float(p.squared_error_of_mean.mean()),
        }
    return found


def models(seed: int, args: argparse.Namespace, data: Data):
    """The online model, then the post-hoc ones on a plain autoencoder: (name, method, epochs)."""
    train = TrainConfig(epochs=args.epochs, seed=seed, batch_size=args.batch_size, device=args.device, verbose=False)
    parts = {"data": DataConfig(source="mnist"), "model": ModelConfig(network="paper-mnist"), "train": train}
    for hessian in args.online:
        options = MethodConfig(
            method="online",
            hessian=hessian,
            forgetting=args.forgetting,
            initial_precision=args.initial_precision,
        )
        model = fit(as_in_the_paper(Config(method=options, **parts)), data)
        yield f"online {hessian}", model.method, model.metrics["epochs"]
    plain = fit(as_in_the_paper(Config(method=MethodConfig(method="ae"), **parts)), data)
    device = next(plain.method.parameters()).device
    batches = Batches(data.train.x, data.space, 500, device=device)
    for hessian in POSTHOC:
        options = MethodConfig(method="posthoc", hessian=hessian)
        method = build(options, lambda: copy.deepcopy(plain.method.network), Gaussian(), batches.n_data)
        method.to(device).finish(lambda: batches.epoch(0), batches.n_data, StepContext())
        yield f"post-hoc {hessian}", method, plain.metrics["epochs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--forgetting", type=float, default=1e-3)
    parser.add_argument("--initial-precision", default="data")
    parser.add_argument("--online", nargs="*", default=["approx"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("online_mnist.jsonl"))
    args = parser.parse_args()
    data = load_data(DataConfig(source="mnist"))
    found: dict[str, list[dict]] = {}
    for seed in range(args.seeds):
        for name, method, epochs in models(seed, args, data):
            row = {"name": name, "seed": seed, "epochs": epochs, **errors(method, data)}
            found.setdefault(name, []).append(row)
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            torch.cuda.empty_cache()
    for name, rows in found.items():
        cells = []
        for split in ("valid", "test"):
            for key in ("-log p", "MSE"):
                values = [row[split][key] for row in rows]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                cells.append(f"{split} {key} {statistics.mean(values):.2f} ± {spread:.2f}")
        print(f"{name:<16}", "  ".join(cells))


if __name__ == "__main__":
    main()
