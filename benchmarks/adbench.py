"""Outliers in tables: the estimator's defaults beside kNN, isolation forests and LOF on ADBench's sets, in one run.

    python benchmarks/adbench.py --data FOLDER [--seeds 0 1 2] [--rows 10000] [--jobs 2] [--out results.json]

FOLDER holds NAME.npz with X (rows, features) and y (1: anomaly). Two settings: one-class (half of the normal rows
train, the rest and the anomalies test) and unsupervised (all train, all test); at most --rows rows; one configuration
for all. What is in the file of results already is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np


def load(path: Path, setting: str, seed: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training rows, test rows and test labels."""
    with np.load(path) as file:
        x, y = file["X"].astype(float), file["y"].astype(int)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))[:most]
    x, y = x[order], y[order]
    if setting == "unsupervised":
        return x, x, y
    normal = np.flatnonzero(y == 0)
    train = normal[: len(normal) // 2]
    test = np.setdiff1d(np.arange(len(x)), train)
    return x[train], x[test], y[test]


def detectors(seed: int) -> dict:
    from sklearn.ensemble import IsolationForest
    from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

    from lapae import LaplacianAutoencoder

    def ours(train, test, setting):
        model = LaplacianAutoencoder(random_state=seed, device="cpu").fit(train)
        return -model.score_samples(test)

    def knn(train, test, setting):
        own = setting == "unsupervised"
        found = NearestNeighbors(n_neighbors=5 + own).fit(train).kneighbors(test)[0]
        return found[:, own:].mean(1)

    def forest(train, test, setting):
        return -IsolationForest(random_state=seed).fit(train).score_samples(test)

    def lof(train, test, setting):
        if setting == "unsupervised":
            return -LocalOutlierFactor(20).fit(train).negative_outlier_factor_
        return -LocalOutlierFactor(20, novelty=True).fit(train).score_samples(test)

    return {"lapae": ours, "knn": knn, "isolation forest": forest, "lof": lof}


def run(task: tuple[str, str, int, int]) -> dict:
    import torch
    from sklearn.metrics import roc_auc_score

    torch.set_num_threads(1)
    path, setting, seed, most = task
    train, test, y = load(Path(path), setting, seed, most)
    mean, deviation = train.mean(0), train.std(0)
    deviation[deviation == 0] = 1
    scaled = (train - mean) / deviation, (test - mean) / deviation
    found = {"set": Path(path).stem, "setting": setting, "seed": seed, "rows": len(train), "features": train.shape[1]}
    for name, detect in detectors(seed).items():
        began = time.perf_counter()
        score = detect(*((train, test) if name == "lapae" else scaled), setting)
        found[name] = 100 * roc_auc_score(y, np.nan_to_num(score, nan=np.inf))
        found[f"{name} seconds"] = time.perf_counter() - began
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sets = sorted(args.data.glob("*.npz"), key=lambda path: path.stat().st_size)
    rows = json.loads(args.out.read_text("utf-8")) if args.out and args.out.exists() else []
    done = {(row["set"], row["setting"], row["seed"]) for row in rows}
    order = [(path, setting, seed) for seed in args.seeds for path in sets for setting in ("one-class", "unsupervised")]
    tasks = [(str(path), *rest, args.rows) for path, *rest in order if (path.stem, *rest) not in done]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for row in pool.map(run, tasks):
            rows.append(row)
            if args.out:
                args.out.write_text(json.dumps(rows, indent=1) + "\n")
    names = ["lapae", "knn", "isolation forest", "lof"]
    for setting in ("one-class", "unsupervised"):
        print(f"\n{setting}: AUROC, mean over seeds\n{'set':<14}" + "".join(f"{name:>18}" for name in names))
        for one in sorted({row["set"] for row in rows}):
            own = [row for row in rows if row["set"] == one and row["setting"] == setting]
            print(f"{one:<14}" + "".join(f"{np.mean([row[name] for row in own]):18.1f}" for name in names))
        own = [row for row in rows if row["setting"] == setting]
        print(f"{'mean':<14}" + "".join(f"{np.mean([row[name] for row in own]):18.2f}" for name in names))
        seconds = [np.median([row[f"{name} seconds"] for row in own]) for name in names]
        print(f"{'median s':<14}" + "".join(f"{value:18.2f}" for value in seconds))


if __name__ == "__main__":
    main()
