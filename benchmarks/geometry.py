"""Which distance between samples does another training reproduce?

The latent space of one training is another's stretched and bent, so that distances between codes scatter when a model
is trained again. Here models are trained with several seeds, the same pairs of test images are encoded by each, and
their distances compared: Euclidean between codes, along the straight line as the decoder measures it, and the geodesic;
the last two by decoders drawn from the posterior and by the network at its mean alone. Each training's distances are
divided by their mean, because a unit means nothing; told is the coefficient of variation over trainings, a mean over
pairs.

    python benchmarks/geometry.py                 # digits, five trainings
    python benchmarks/geometry.py --data DATA     # and 5,000 images of MNIST, from DATA/mnist
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from lapae import LaplacianAutoencoder
from lapae.generate.geometry import Geometry

N_PAIRS = 12
"""Pairs of test images."""
DRAWS = 5
"""Decoders drawn: with 20, lengths of a model of digits differed by 2e-4."""
SEGMENTS = 24
"""Segments of a path: with 96, lengths of a model of digits differed by 2e-4 at most."""


def mnist(folder: Path, n: int) -> np.ndarray:
    """Return the first n training images, (n, 28, 28) from 0 to 1."""
    path = next(path for path in sorted(folder.iterdir()) if path.name.startswith("train-images"))
    content = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    return np.frombuffer(content, np.uint8, 28 * 28 * n, 16).reshape(n, 28, 28) / np.float32(255)


def scatter(distances: np.ndarray) -> tuple[float, float]:
    """Return the coefficient of variation over trainings of distances (trainings, pairs), and its standard error."""
    relative = distances / distances.mean(1, keepdims=True)
    each = relative.std(0, ddof=1) / relative.mean(0)
    return float(each.mean()), float(each.std(ddof=1) / len(each) ** 0.5)


def distances(model: LaplacianAutoencoder, train: np.ndarray, pairs: np.ndarray) -> dict[str, np.ndarray]:
    """Return the distances (n,) between pairs of samples (n, 2, *shape), by every measure."""
    a, b = (torch.from_numpy(model.transform(pairs[:, end])).double() for end in (0, 1))
    found = {"Euclidean": (a - b).norm(dim=1).numpy()}
    known = torch.from_numpy(np.asarray(model.transform(train)))
    for name, draws in (("posterior", DRAWS), ("mean network", 0)):
        space = replace(Geometry.of(model.model_.method, known, n_draws=draws), segments=SEGMENTS)
        found[f"straight line, {name}"] = space.straight(a, b).numpy()
        found[f"geodesic, {name}"] = space.distance(a, b).numpy()
    return found


def network(n: int, latent_dim: int) -> tuple[nn.Module, nn.Module]:
    """Return an encoder and a decoder of random weights; the networks of lapae start from principal components."""
    encoder = nn.Sequential(nn.Linear(n, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, latent_dim))
    decoder = nn.Sequential(nn.Linear(latent_dim, 64), nn.Tanh(), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, n))
    return encoder, decoder


def measure(name: str, x: np.ndarray, latent_dim: int, epochs: int, seeds: int) -> dict[str, object]:
    """Train with several seeds and compare; rows are trained on a network of random weights."""
    order = np.random.default_rng(0).permutation(len(x))
    pairs = x[order[: 2 * N_PAIRS]].reshape(N_PAIRS, 2, *x.shape[1:])
    train = x[order[2 * N_PAIRS :]]
    began = time.process_time()
    every: dict[str, list[np.ndarray]] = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        own = x.ndim == 2
        options: dict[str, Any] = {"network": network(x.shape[1], latent_dim)} if own else {"latent_dim": latent_dim}
        model = LaplacianAutoencoder(**options, epochs=epochs, random_state=seed, verbose=False).fit(train)
        for measure, found in distances(model, train, pairs).items():
            every.setdefault(measure, []).append(found)
    result = {measure: scatter(np.stack(found)) for measure, found in every.items()}
    seconds = time.process_time() - began
    print(f"{name}, {latent_dim} latent dimensions, {seeds} trainings of {epochs} epochs, {seconds:.0f} s", flush=True)
    for measure, (value, error) in result.items():
        print(f"  {measure:30} {value:.3f} ± {error:.3f}", flush=True)
    return {"data": name, "latent_dim": latent_dim, "epochs": epochs, "seeds": seeds, "pairs": N_PAIRS, **result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with mnist/; default: digits alone")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", help="one setting, as in mnist:2; default: all")
    parser.add_argument("--out", type=Path, help="file to append results to, as JSON lines")
    args = parser.parse_args()
    torch.set_num_threads(1)
    digits = np.asarray(load_digits(return_X_y=True)[0], np.float32).reshape(-1, 8, 8) / 16
    settings = [("digits", digits, 2, 15), ("digits", digits, 16, 15)]
    settings.append(("digits-own-network", digits.reshape(len(digits), -1), 2, 60))
    if args.data is not None:
        images = mnist(args.data / "mnist", 5000)
        settings += [("mnist", images, 2, 10), ("mnist", images, 16, 10)]
    for name, x, latent_dim, epochs in settings:
        if args.only not in (None, f"{name}:{latent_dim}"):
            continue
        result = measure(name, x, latent_dim, epochs, args.seeds)
        if args.out is not None:
            with args.out.open("a") as file:
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
