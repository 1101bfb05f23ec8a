"""New images, and completions of half images: of which class they are, and how different.

    python benchmarks/samples.py --write               # digits and MNIST; benchmarks/samples.md

A 3-nearest-neighbours classifier of the training images says of which class an image is. 5,000 training images (1,400
of the digits), 15 epochs (the default number for digits), all else as the data choose. Class ratio: the least and the
greatest share of a class among 2,000 samples, over its share among the data. Completions: one half of 200 test images
is hidden, five completions each; the share that is of the right class, whether any of five is, the squared error of
their mean on the hidden half, and the mean distance between two. "Paper" is the paper's procedure from noise (five
chains of five steps, and five networks averaged); "nearest" pastes the five training images with the nearest seen half.

With --beside-vae: 2,000 samples with a code of 16 numbers beside those of a VAE of the same network, from its prior and
from the density of its codes. A small classifier (one hidden layer of 128) counts classes and gives the features in
which Fréchet distance, precision (the share of samples within the third neighbour of a real image) and recall (the
share of real images within that of a sample) are taken.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.neural_network import MLPClassifier

from lapae import LaplacianAutoencoder
from lapae.data import load
from lapae.impute.chains import impute
from lapae.storage import load_run
from lapae_paper.tasks.noise import from_prior

HERE = Path(__file__).parent
N_TEST, N_SAMPLES, EACH, EPOCHS = 200, 2000, 5, 15
Images = tuple[np.ndarray, np.ndarray]


def images(name: str) -> tuple[Images, Images]:
    """Training images (n, 1, H, W) from 0 to 1 with their classes, and test images."""
    if name == "digits":
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.images))
        x, y = (digits.images[order, None] / 16).astype(np.float32), digits.target[order]
        return (x[:1400], y[:1400]), (x[1400 : 1400 + N_TEST], y[1400 : 1400 + N_TEST])
    data = load(name)
    assert data.train.y is not None
    assert data.test.y is not None
    parts = ((data.train, 5000), (data.test, N_TEST))
    first, second = ((np.asarray(p.x[:n], np.float32) / 255, np.asarray(p.y)[:n]) for p, n in parts)
    return first, second


def measure(name: str, run: Path | None) -> tuple[str, list[str]]:
    (x, y), (test, truth) = images(name)
    if run is None:
        epochs = None if name == "digits" else EPOCHS
        model = LaplacianAutoencoder(epochs=epochs, random_state=0).fit(x).model_
    else:
        model = load_run(run)
    knows = KNeighborsClassifier(3).fit(x.reshape(len(x), -1), y)

    def classes(some: np.ndarray) -> np.ndarray:
        return knows.predict(some.reshape(len(some), -1))

    ratio = np.bincount(classes(model.sample(N_SAMPLES)), minlength=10) / N_SAMPLES * len(y) / np.bincount(y)
    right = (classes(test) == truth).mean()
    head = f"| {name} | {len(x):,} | {100 * right:.0f} % | {ratio.min():.2f} to {ratio.max():.2f} |"
    lines = []
    height = test.shape[2] // 2
    for seen, rows in (("upper", slice(height, None)), ("lower", slice(None, height))):
        holes = test.copy()
        holes[:, :, rows] = np.nan
        hidden = np.isnan(holes[0])
        z = model.tensor(holes)
        paper = impute(model.method, z, modes=EACH, average=EACH, steps=EACH).samples.numpy()
        near = NearestNeighbors(n_neighbors=EACH).fit(x[:, ~hidden]).kneighbors(test[:, ~hidden])[1]
        pasted = x[near].swapaxes(0, 1)
        ways = {"paper": paper, "nearest": pasted, "ours": model.impute(holes, n_samples=EACH)}
        for way, made in ways.items():
            made = np.where(hidden, made, test)
            found = np.stack([classes(part) for part in made]) == truth
            error = np.square(made.mean(0) - test).sum((1, 2, 3)).mean()
            apart = [np.sqrt(np.square(a - b).sum((1, 2, 3))).mean() for a, b in combinations(made, 2)]
            lines.append(
                f"| {name}, {seen} seen | {way} | {100 * found.mean():.0f} % | {100 * found.any(0).mean():.0f} % "
                f"| {error:.3g} | {np.mean(apart):.2f} |"
            )
    return head, lines


def beside_vae(name: str) -> list[str]:
    """Rows of Markdown: how good samples are."""
    (x, y), _ = images(name)
    knows = MLPClassifier(128, max_iter=30, random_state=0).fit(x.reshape(len(x), -1), y)

    def features(some: np.ndarray) -> np.ndarray:
        return np.maximum(some.reshape(len(some), -1) @ knows.coefs_[0] + knows.intercepts_[0], 0)

    share, real, lines = np.bincount(y) / len(y), features(x[:N_SAMPLES]), []
    ours, vae = (
        LaplacianAutoencoder(method=method, latent_dim=16, epochs=EPOCHS, random_state=0).fit(x).model_
        for method in ("online", "vae")
    )
    ways = {
        "other images": x[N_SAMPLES : 2 * N_SAMPLES],
        "ours": ours.sample(N_SAMPLES),
        "VAE, density of codes": vae.sample(N_SAMPLES),
        "VAE, prior": vae.space.to_user(from_prior(vae.method, 16, N_SAMPLES).numpy()),
    }
    for way, made in ways.items():
        found = features(made)
        ratio = np.bincount(knows.predict(made.reshape(len(made), -1)), minlength=10) / len(made) / share
        lines.append(
            f"| {name} | {way} | {ratio.min():.2f} to {ratio.max():.2f} | {frechet(real, found):.3g} "
            f"| {within(real, found):.2f} | {within(found, real):.2f} |"
        )
    return lines


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """Fréchet distance of Gaussians fitted to features a and b (n, d)."""
    of_a, of_b = np.cov(a.T), np.cov(b.T)
    roots = np.linalg.eigvals(of_a @ of_b).real.clip(0)
    return float(np.square(a.mean(0) - b.mean(0)).sum() + np.trace(of_a + of_b) - 2 * np.sqrt(roots).sum())


def within(a: np.ndarray, b: np.ndarray) -> float:
    """The share of b that is nearer to one of a than this one's third neighbour."""
    near = NearestNeighbors(n_neighbors=4).fit(a)
    reach = near.kneighbors(a)[0][:, -1]
    return float((cdist(b, a) <= reach).any(1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["digits", "mnist"], help="fashion_mnist too")
    parser.add_argument("--runs", type=Path, nargs="+", help="trained runs, one for each set, instead of training")
    parser.add_argument("--beside-vae", action="store_true", help="samples beside those of a VAE, and nothing else")
    parser.add_argument("--write", action="store_true", help="write benchmarks/samples.md")
    options = parser.parse_args()
    if options.beside_vae:
        print("| data | samples | class ratio | Fréchet distance | precision | recall |\n|---|---|---|---|---|---|")
        for name in options.sets:
            print("\n".join(beside_vae(name)), flush=True)
        return
    top = ["| data | images | classifier right | class ratio of samples |", "|---|---|---|---|"]
    below = ["| data | completions | right | any of five | error | distance |", "|---|---|---|---|---|---|"]
    for name, run in zip(options.sets, options.runs or [None] * len(options.sets), strict=True):
        head, lines = measure(name, run)
        print("\n".join([head, *lines]), flush=True)
        top.append(head)
        below += lines
    if options.write:
        about = (__doc__ or "").split("\n\n")[2].strip()
        made = ["# Samples and completions", "", "Made by `python benchmarks/samples.py --write`.", "", about, ""]
        (HERE / "samples.md").write_text("\n".join([*made, *top, "", *below]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
