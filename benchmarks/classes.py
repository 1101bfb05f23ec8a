"""Outliers that are other classes: one class of a labelled table is normal, the others are to be found.

    python benchmarks/classes.py --data FOLDER [--seeds 0] [--rows 500] [--out results.json]

Labelled tables: scikit-learn's, those of FOLDER/imputation that have a column of classes, the anomalies of
FOLDER/adbench as the normal class, principal components of FOLDER/mnist and FOLDER/fashion_mnist, and mixtures of
`make_classification`. Of rows that occur several times one is kept: a copy of a training row says nothing about a
detector. Half of the rows of a class, at most --rows, train; of its other rows and of those of the other classes at
most --rows each test. The detectors are those of `adbench.py`. What is in the file of results already is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from adbench import detectors

LABELLED = {
    "letter": ("0", (0, 8, 15, 23)),
    "yeast": ("8", (0, 1, 2)),
    "obesity": ("NObeyesdad", (0, 1, 3, 4, 5)),
    "raisin": ("Class", (0, 1)),
    "spam": ("1", (0, 1)),
    "blood": ("whether he/she donated blood in March 2007", (0, 1)),
    "wine_white": ("quality", (1, 2, 3)),
    "drug": ("18", (0, 6)),
}
"""Column of classes, and the classes that are normal in turn."""
DRUGS = [str(column) for column in range(13, 32) if column != 18]
"""Columns of `drug` that are classes as well."""
SWAPPED = ("breastw", "cardio", "magic.gamma", "pendigits", "satellite", "shuttle", "waveform")
MIXTURES = ((5, 4, 2, 1.0), (10, 6, 2, 1.0), (20, 10, 1, 1.0), (20, 5, 3, 0.5), (40, 20, 2, 1.0), (8, 8, 4, 1.5))
"""Columns, informative ones, clusters of a class, and how far apart these are."""
FEWEST = 20
"""Training rows of a class."""

Table = tuple[str, np.ndarray, np.ndarray, tuple[int, ...]]


def tables(folder: Path) -> Iterator[Table]:
    """Yield a name, rows (n, F), classes (n,) and which of them are normal in turn."""
    import pandas as pd
    from sklearn import datasets
    from sklearn.decomposition import PCA

    from lapae.data import load

    for name in ("iris", "wine", "breast_cancer", "digits"):
        found = getattr(datasets, f"load_{name}")()
        classes = tuple(range(len(found.target_names)))
        yield name, found.data.astype(float), found.target, classes[:5]
    for name, (label, classes) in LABELLED.items():
        table = pd.read_csv(folder / "imputation" / f"{name}.csv", index_col=0)
        x = table.drop(columns=[label, *(DRUGS if name == "drug" else [])])
        yield name, x.to_numpy(float), table[label].to_numpy(), classes
    for name in SWAPPED:
        with np.load(folder / "adbench" / f"{name}.npz") as file:
            yield f"{name}, swapped", file["X"].astype(float), file["y"].astype(int), (1,)
    for name in ("mnist", "fashion_mnist"):
        images = load(name, data_dir=str(folder)).test
        x = np.asarray(images.x).reshape(len(images.x), -1) / 255.0
        yield f"{name}, components", PCA(20, random_state=0).fit_transform(x), np.asarray(images.y), (0, 3, 8)
    for i, (n_features, informative, clusters, apart) in enumerate(MIXTURES):
        x, y = datasets.make_classification(
            3000,
            n_features,
            n_informative=informative,
            n_redundant=min(3, n_features - informative),
            n_clusters_per_class=clusters,
            n_classes=3,
            class_sep=apart,
            random_state=i,
        )
        yield f"mixture {i}", x, y, (0, 1)


def split(x: np.ndarray, y: np.ndarray, normal: int, seed: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return training rows, test rows and test labels (1: of another class)."""
    rng = np.random.default_rng(seed)
    own, others = (rng.permutation(np.flatnonzero(of)) for of in (y == normal, y != normal))
    n = min(len(own) // 2, most)
    test = own[n : n + most], others[:most]
    return x[own[:n]], x[np.concatenate(test)], np.repeat([0, 1], [len(part) for part in test])


def main() -> None:
    import torch
    from sklearn.metrics import roc_auc_score

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(args.out.read_text("utf-8")) if args.out and args.out.exists() else []
    done = {(row["table"], row["class"], row["seed"]) for row in rows}
    for name, x, y, classes in tables(args.data):
        first = np.sort(np.unique(x, axis=0, return_index=True)[1])
        for normal, seed in ((normal, seed) for normal in classes for seed in args.seeds):
            train, test, label = split(x[first], y[first], normal, seed, args.rows)
            if len(train) < FEWEST or (name, normal, seed) in done:
                continue
            row = {"table": name, "class": normal, "seed": seed, "rows": len(train), "features": x.shape[1]}
            scale = np.where((deviation := train.std(0)) > 0, deviation, 1)
            scaled = (train - train.mean(0)) / scale, (test - train.mean(0)) / scale
            for detector, detect in detectors(seed).items():
                score = detect(*((train, test) if detector == "lapae" else scaled), "one-class")
                row[detector] = 100 * roc_auc_score(label, np.nan_to_num(score, nan=np.inf))
            rows.append(row)
            print(json.dumps(row), flush=True)
            if args.out:
                args.out.write_text(json.dumps(rows, indent=1) + "\n")
    names = list(detectors(0))
    print("\n| " + " | ".join(["normal class of", "pairs", "rows", "columns", *names]) + " |\n" + "|---" * 8 + "|")
    for name in [*dict.fromkeys(row["table"] for row in rows), "mean"]:
        own = [row for row in rows if name in (row["table"], "mean")]
        cells = [f"{np.mean([row[detector] for row in own]):.1f}" for detector in names]
        about = [str(len(own)), *(f"{np.mean([row[of] for row in own]):.0f}" for of in ("rows", "features"))]
        print(f"| {name} | " + " | ".join(about + cells) + " |")


if __name__ == "__main__":
    main()
