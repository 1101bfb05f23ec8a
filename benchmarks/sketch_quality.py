"""What the curvature is worth: -log p of test data and AUROC against the other set, by Hessian and seed.

    python benchmarks/sketch_quality.py --data DATA --out benchmarks/results/sketch_quality.jsonl

An online posterior on the paper's dense network (MNIST) and on a small convolutional one (FashionMNIST); each set is
told from the other by four scores (`lapae eval ood`). `--networks paper-fashion paper-celeba` are the paper's, for a
GPU; faces are told from FashionMNIST, enlarged. Rows that are in the file already are not run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from lapae.config import DataConfig, ModelConfig, TrainConfig
from lapae.fit import fit
from lapae_paper.experiments.trials import trial
from lapae_paper.tasks.base import batches
from lapae_paper.tasks.ood import OodOptions, detect

NETWORKS = {
    "paper-mnist": ("mnist", "fashion_mnist", ModelConfig(network="paper-mnist")),
    "conv": ("fashion_mnist", "mnist", ModelConfig(network="conv", channels=(8, 16), hidden=(128,))),
    "paper-fashion": ("fashion_mnist", "mnist", ModelConfig(network="paper-fashion")),
    "paper-celeba": ("celeba", "fashion_mnist", ModelConfig(network="paper-celeba")),
}
HESSIANS = ("approx", "mc", "sketch", "bottleneck")
TESTED, NETWORKS_DRAWN = 2000, 50


def enlarged(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Grey images (n, 1, h, w) of at most half that size, twice as large in a black frame: (n, *shape)."""
    x = x.repeat(2, 2).repeat(2, 3)
    border = [
        (0, 0),
        (0, 0),
        *(((a - b) // 2, a - b - (a - b) // 2) for a, b in zip(shape[1:], x.shape[2:], strict=True)),
    ]
    return np.pad(x, border).repeat(shape[0], 1)


def measure(args: argparse.Namespace, network: str, hessian: str, seed: int) -> dict[str, float]:
    from lapae.data import load

    inside, outside, model = NETWORKS[network]
    train = TrainConfig(
        epochs=args.epochs,
        batch_size=100,
        learning_rate=args.learning_rate,
        seed=seed,
        device=args.device,
        verbose=False,
    )
    data = DataConfig(source=inside, data_dir=str(args.data))
    made = fit(trial(data, model, train, "online", hessian=hessian).config)
    own, other = (load(name, data_dir=args.data) for name in (inside, outside))
    if own.shape == other.shape:
        others = batches(made, other.test, TESTED, space=other.space)
    else:
        others = torch.from_numpy(made.space.convert(enlarged(other.test.x[:TESTED], own.shape)))
    options = OodOptions(n_samples=NETWORKS_DRAWN, bootstrap=2, limit=TESTED, train_limit=TESTED)
    found = detect(made, own, {"outside": others}, options)
    scores = {name: detection.auroc.value for name, detection in found.detections["outside"].items()}
    return {"-log p": float(np.mean(found.inside["log_likelihood"])), **scores, "seconds": made.metrics["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=["paper-mnist", "conv"], choices=NETWORKS)
    parser.add_argument("--hessians", nargs="+", default=list(HESSIANS), choices=HESSIANS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    lines = args.out.read_text("utf-8").splitlines() if args.out.exists() else []
    names = ("network", "hessian", "seed", "epochs", "learning_rate")
    done = {tuple(row.get(name, 1e-3) for name in names) for row in map(json.loads, lines)}
    for seed in args.seeds:
        for network in args.networks:
            for hessian in args.hessians:
                key = dict(zip(names, (network, hessian, seed, args.epochs, args.learning_rate), strict=True))
                if tuple(key.values()) in done:
                    continue
                row = {**key, **{name: round(v, 5) for name, v in measure(args, network, hessian, seed).items()}}
                print(row, flush=True)
                with args.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
