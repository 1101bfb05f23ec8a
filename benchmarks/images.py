"""Unusual images: the default score beside its own log-likelihood and the nearest training images.

    python benchmarks/images.py --data DATA
    python benchmarks/images.py --sets digits --splits 10

One configuration for all sets: digits 0 to 7 of scikit-learn, digits 0 to 7 of MNIST, seven classes of FashionMNIST
and, where DATA has CelebA, gray faces of 32x32 pixels. The AUROC is that of 600 new normal images (of scikit-learn's
digits: a third of all) against 300 unusual ones of each kind: classes that were left out, another set, and new normal
images that were spoilt. `kNN` is the distance to the fifth nearest training image. Below each table: how many of the
new normal images are flagged at 5 %, and the median score of training images and of new ones.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

TRAIN, NEW, UNUSUAL = 3000, 600, 300
SCORES = ("score", "log-likelihood", "kNN")
Spoil = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def flat_patch(x: np.ndarray, rows: slice, columns: slice, value: float | np.ndarray) -> np.ndarray:
    """Images with one value in a rectangle."""
    out = x.copy()
    out[:, rows, columns] = value
    return out


def mask(x: np.ndarray, rng: np.random.Generator, value: float | None = None) -> np.ndarray:
    """A flat patch over the middle of the lower half, as bright as the image on average by default."""
    side = x.shape[1]
    place = slice(side // 2, side - side // 8), slice(side // 4, side - side // 4)
    return flat_patch(x, *place, mean(x) if value is None else value)


def small_patch(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A flat square of a quarter of the side, anywhere."""
    out, side = x.copy(), x.shape[1]
    for image, (i, j) in zip(out, rng.integers(0, side - side // 4 + 1, (len(x), 2)), strict=True):
        image[i : i + side // 4, j : j + side // 4] = rng.uniform()
    return out


def smooth_patch(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A square of a quarter of the side, anywhere, with its mean in place of what it shows."""
    out, side = x.copy(), x.shape[1]
    for image, (i, j) in zip(out, rng.integers(0, side - side // 4 + 1, (len(x), 2)), strict=True):
        image[i : i + side // 4, j : j + side // 4] = image[i : i + side // 4, j : j + side // 4].mean()
    return out


def line(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One row of pixels as bright as can be."""
    out = x.copy()
    out[np.arange(len(x)), rng.integers(0, x.shape[1], len(x))] = 1
    return out


def tiles(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The four quarters changed over crosswise."""
    return np.roll(x, (x.shape[1] // 2, x.shape[2] // 2), (1, 2))


def pixels(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All pixels in one new order."""
    flat = x.reshape(len(x), -1)
    return flat[:, rng.permutation(flat.shape[1])].reshape(x.shape)


def specks(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One pixel in twenty black or white."""
    return np.where(rng.uniform(size=x.shape) < 0.05, rng.integers(0, 2, x.shape), x)


def mean(x: np.ndarray) -> np.ndarray:
    return x.mean((1, 2), keepdims=True)


KINDS: dict[str, Spoil] = {
    "upside down": lambda x, rng: x[:, ::-1],
    "quarter turn": lambda x, rng: np.rot90(x, axes=(1, 2)),
    "inverted": lambda x, rng: 1 - x,
    "faint": lambda x, rng: 0.3 * x,
    "blurred": lambda x, rng: gaussian_filter(x, (0, x.shape[1] / 14, x.shape[1] / 14)),
    "blank": lambda x, rng: np.zeros_like(x),
    "even gray": lambda x, rng: np.broadcast_to(mean(x), x.shape).copy(),
    "noisy": lambda x, rng: (x + rng.normal(0, 0.15, x.shape)).clip(0, 1),
    "specks": specks,
    "noise alone": lambda x, rng: rng.uniform(size=x.shape),
    "upper half black": lambda x, rng: flat_patch(x, slice(0, x.shape[1] // 2), slice(None), 0),
    "masked": mask,
    "light mask": lambda x, rng: mask(x, rng, 0.8),
    "small patch": small_patch,
    "smooth patch": smooth_patch,
    "line": line,
    "quarters swapped": tiles,
    "pixels shuffled": pixels,
    "shifted": lambda x, rng: np.roll(x, x.shape[1] // 5, 2),
    "two in one": lambda x, rng: np.maximum(x, x[::-1]),
}


def sets(data: Path, seed: int) -> dict[str, Callable[[], tuple[np.ndarray, dict[str, np.ndarray]]]]:
    """By name: how to read normal images (n, H, W) in [0, 1], shuffled, and others by kind."""
    rng = np.random.default_rng(seed)

    def classes(x: np.ndarray, y: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        normal, other = rng.permutation(np.flatnonzero(y < most)), rng.permutation(np.flatnonzero(y >= most))
        return x[normal], x[other]

    def digits() -> tuple[np.ndarray, dict[str, np.ndarray]]:
        found: Any = load_digits()
        normal, other = classes(found.images / 16, found.target, 8)
        return normal, {"8 and 9": other}

    def gray(name: str, other_name: str, most: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        normal, other = classes(*read_gray(data, name), most)
        outside = read_gray(data, other_name)[0]
        return normal, {"other classes": other, other_name: outside[rng.permutation(len(outside))[:UNUSUAL]]}

    def faces() -> tuple[np.ndarray, dict[str, np.ndarray]]:
        x = read_faces(data, TRAIN + NEW)
        return x[rng.permutation(len(x))], {}

    found: dict[str, Any] = {
        "digits": digits,
        "mnist": lambda: gray("mnist", "fashion_mnist", 8),
        "fashion_mnist": lambda: gray("fashion_mnist", "mnist", 7),
        "faces": faces,
    }
    return {name: read for name, read in found.items() if name == "digits" or (data / folder(name)).is_dir()}


def folder(name: str) -> str:
    return "celeba" if name == "faces" else name


def read_gray(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """10,000 images and their classes."""
    from lapae_paper.datasets.mnist import read_mnist

    records = read_mnist(data / name, name)
    x, y = np.asarray(records.x[:10_000]), np.asarray(records.y)[:10_000]
    return x.reshape(-1, 28, 28).astype(np.float32) / 255, y


def read_faces(data: Path, n: int) -> np.ndarray:
    """The middle of the first n faces, gray, 32x32."""
    from PIL import Image

    out = []
    for path in sorted((data / "celeba" / "img_align_celeba").glob("*.jpg"))[:n]:
        image = Image.open(path).convert("L")
        left, top = (image.width - 74) // 2, (image.height - 74) // 2 + 4
        out.append(np.asarray(image.crop((left, top, left + 74, top + 74)).resize((32, 32), Image.Resampling.BILINEAR)))
    return np.stack(out).astype(np.float32) / 255


def divided(normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images to train on, and new ones; a third is new where there are few."""
    n_new = min(NEW, len(normal) // 3)
    return normal[n_new : n_new + TRAIN], normal[:n_new]


def unusual(new: np.ndarray, others: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Images by kind."""
    rng = np.random.default_rng(seed)
    spoilt = {name: spoil(new[:UNUSUAL], rng) for name, spoil in KINDS.items()}
    return {name: x[:UNUSUAL] for name, x in others.items()} | spoilt


def make(seed: int) -> Any:
    """The model: defaults, and fewer epochs."""
    from lapae import LaplacianAutoencoder

    return LaplacianAutoencoder(network="mlp", epochs=20, random_state=seed, device="cpu")


def measure(read: Callable[[], tuple[np.ndarray, dict[str, np.ndarray]]], seed: int) -> tuple[dict, dict]:
    """AUROC by kind and score; and what else is measured."""
    normal, others = read()
    train, new = divided(normal)
    began = time.perf_counter()
    model = make(seed).fit(train)
    seconds = time.perf_counter() - began
    near = NearestNeighbors(n_neighbors=5).fit(train.reshape(len(train), -1))

    def scores(x: np.ndarray) -> list[np.ndarray]:
        distance = near.kneighbors(x.reshape(len(x), -1))[0][:, -1]
        return [-model.score_samples(x), model.score_parts(x)["negative_log_likelihood"], distance]

    inside = scores(new)
    auroc = {}
    for kind, x in unusual(new, others, seed).items():
        outside = scores(np.ascontiguousarray(x))
        auroc[kind] = [auroc_of(a, b) for a, b in zip(inside, outside, strict=True)]
    more = {
        "flagged": 100 * float((model.p_value(new) <= 0.05).mean()),
        "training": float(np.median(-model.score_samples(train[:1000]))),
        "new": float(np.median(inside[0])),
        "seconds": seconds,
    }
    return auroc, more


def auroc_of(inside: np.ndarray, outside: np.ndarray) -> float:
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    return float(roc_auc_score(truth, np.r_[inside, outside]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with mnist, fashion_mnist and celeba")
    parser.add_argument("--sets", nargs="*", help="digits, mnist, fashion_mnist, faces; all that are there by default")
    parser.add_argument("--splits", type=int, default=1, help="random splits (and seeds) to average over")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.sets or list(sets(options.data, 0)):
        found = [measure(sets(options.data, seed)[name], seed) for seed in range(options.splits)]
        kinds = list(found[0][0])
        auroc = np.array([[one[0][kind] for kind in kinds] for one in found]).mean(0)
        print(f"\n| {name} | " + " | ".join(SCORES) + " |\n|" + "---|" * (len(SCORES) + 1))
        for kind, row in zip([*kinds, "**mean**", "**worst**"], [*auroc, auroc.mean(0), auroc.min(0)], strict=True):
            print(f"| {kind} | " + " | ".join(f"{value:.3f}" for value in row) + " |")
        flagged, training, new, seconds = (np.array([one[1][key] for one in found]) for key in found[0][1])
        print(f"\n{flagged.mean():.1f} % of new normal images flagged at 5 %", end="")
        print(f" ({flagged.min():.1f} to {flagged.max():.1f} %)" if len(found) > 1 else "", end="")
        print(f"; median score {training.mean():.2f} of training images, {new.mean():.2f} of new ones;", end="")
        print(f" training took {seconds.mean():.0f} s", flush=True)


if __name__ == "__main__":
    main()
