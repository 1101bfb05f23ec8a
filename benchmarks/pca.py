"""Reconstruction of new samples, compared with principal components that have as many numbers per sample.

    python benchmarks/pca.py --write                   # all sets, one seed; benchmarks/pca.md
    python benchmarks/pca.py --only digits --seeds 3

All options are defaults except the size of the code of some sets, and the 15 epochs of MNIST and faces, so that it ends
in minutes. PCA is fitted to all rows that `fit` gets, of which `fit` itself holds some out to stop training and to
calibrate. Errors are squared, summed over the values of a sample (tables and windows are standardised by the fitted
rows), and averaged over new samples. If training finds nothing significantly better, its start is kept: a PCA of all
rows if there are at most 1,000, else of four fifths of them.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.decomposition import PCA

HERE = Path(__file__).parent
DATA = Path(os.environ.get("LAPAE_DATA", HERE.parents[1] / "shared" / "data"))
EPOCHS = 15
"""Of images of more than 500 values."""
Split = tuple[np.ndarray, np.ndarray]


def digits(n: int) -> Split:
    x = np.random.default_rng(0).permutation(datasets.load_digits().images) / 16
    return x[:n], x[1400:]


def mnist(name: str, n: int) -> Split:
    from lapae.data import load

    data = load(name, data_dir=DATA)
    return np.asarray(data.train.x[:n]) / 255, np.asarray(data.test.x[:2000]) / 255


def faces(n: int) -> Split:
    from lapae.data import load

    data = load(DATA / "celeba" / "img_align_celeba", image_size=64, limit=n + 500, validation=0, calibration=0)
    x = np.random.default_rng(0).permutation(np.asarray(data.train.x[: n + 500]))
    return x[:n] / 255, x[n:] / 255


def windows(n: int) -> Split:
    """Windows of 32 steps of four channels: two rhythms of changing speed and what is driven by them."""
    rng = np.random.default_rng(0)
    time = np.cumsum(1 + 0.3 * np.sin(np.arange(40_000) / 900)) / 12
    slow = np.sin(time / 7 + rng.standard_normal(40_000).cumsum() / 200)
    series = np.stack([np.sin(time), np.sin(time) * slow, np.tanh(2 * slow), np.cos(time / 2) ** 3], 1)
    series += 0.1 * rng.standard_normal(series.shape)
    cut = np.stack([series[start : start + 32] for start in range(0, 39_000, 32)])
    return cut[:n], cut[-400:]


def table(name: str, n: int | None = None) -> Split:
    rows = getattr(datasets, f"load_{name}")().data
    rows = np.random.default_rng(0).permutation(rows)
    n = n or round(0.75 * len(rows))
    return rows[:n], rows[n:]


SETS: dict[str, tuple[Callable[[], Split], int | None]] = {
    "digits 8x8, 200": (lambda: digits(200), None),
    "digits 8x8, 1,400": (lambda: digits(1400), None),
    "digits 8x8, 1,400, K = 2": (lambda: digits(1400), 2),
    "windows 32x4, 120": (lambda: windows(120), None),
    "windows 32x4, 500": (lambda: windows(500), None),
    "wine": (lambda: table("wine"), 4),
    "breast cancer, 100": (lambda: table("breast_cancer", 100), None),
    "breast cancer": (lambda: table("breast_cancer"), None),
    "diabetes": (lambda: table("diabetes"), 4),
    "faces 64x64, 100": (lambda: faces(100), 16),
    "faces 64x64, 300": (lambda: faces(300), 16),
    "MNIST, 5,000": (lambda: mnist("mnist", 5000), None),
    "FashionMNIST, 5,000": (lambda: mnist("fashion_mnist", 5000), None),
}


def measure(name: str, seed: int) -> dict[str, float | int | bool]:
    from lapae import LaplacianAutoencoder

    make, k = SETS[name]
    train, test = make()
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        epochs = EPOCHS if train[0].size > 500 else None
        model = LaplacianAutoencoder(latent_dim=k, epochs=epochs, random_state=seed).fit(train.astype(np.float32))
    seconds = time.monotonic() - began
    k = int(model.latent_dim_)
    space = model.model_.space
    axes = tuple(range(train.ndim - 1)) if space.kind == "series" else 0
    scale = 1.0 if space.kind == "image" else train.std(axes) + 1e-12
    flat, unseen = ((part / scale).reshape(len(part), -1) for part in (train, test))
    pca = PCA(k).fit(flat)
    linear = np.square(unseen - pca.inverse_transform(pca.transform(unseen))).sum(1).mean()
    ours = np.square(unseen - (model.reconstruct(test.astype(np.float32)) / scale).reshape(len(test), -1)).sum(1).mean()
    mean = np.square(unseen - flat.mean(0)).sum(1).mean()
    return {
        "n": len(train),
        "values": flat.shape[1],
        "k": k,
        "mean": mean,
        "pca": linear,
        "ours": ours,
        "seconds": seconds,
        "kept": model.model_.metrics["best_epoch"] == 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="sets whose name has one of these in it")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write benchmarks/pca.md")
    options = parser.parse_args()
    head = ["| data, fitted | values | K | the mean | PCA | ours | ours / PCA | |", "|---|---|---|---|---|---|---|---|"]
    print("\n".join(head), flush=True)
    lines = []
    for name in SETS:
        if not any(part in name for part in options.only):
            continue
        for seed in range(options.seeds):
            found = measure(name, seed)
            mean, pca, ours = (float(found[key]) for key in ("mean", "pca", "ours"))
            note = "kept the start, " if found["kept"] else ""
            lines.append(
                f"| {name} | {found['values']} | {found['k']} | {mean:.3g} | {pca:.4g} | {ours:.4g} | {ours / pca:.3f} "
                f"| {note}{found['seconds']:.0f} s |"
            )
            print(lines[-1], flush=True)
    if options.write:
        about = (__doc__ or "").split("\n\n")[2].strip()
        title = "# Beside principal components"
        head = [title, "", "Made by `python benchmarks/pca.py --write`.", "", about, "", *head]
        (HERE / "pca.md").write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
