"""Does `explain` name the feature that was disturbed? Beside ECOD's scores per feature and leaving features out.

    python benchmarks/explain.py --data FOLDER [--sets wine glass …] [--rows 100] [--out results.json]

FOLDER holds the sets of ADBench, NAME.npz with X (rows, features) and y (1: anomaly). Half of the normal rows train. Of
other normal rows one feature each, chosen at random, is disturbed, in two ways:

- far: moved by four deviations of the feature, up or down. Its own distribution gives it away.
- other: given the value of another row, at least one deviation away. Only its relation to the others can give it away.

Printed is the share of rows in which the disturbed feature has the largest contribution. Chance is one by the number of
features. The baselines:

- ECOD (Li et al. 2022): -log of the tail probability of a value, in the tail that the skewness of the feature chooses.
- leave out: how much smaller the mean distance to the five nearest training rows is without the feature, over what is
  usual for it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

MOST_TRAIN = 1000
WAYS = ("far", "other")


def disturbed(x: np.ndarray, deviation: np.ndarray, way: str, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """x (n, D) with one feature of each row disturbed, and which: rows where it could not be are left out."""
    x, n, usable = x.copy(), len(x), np.flatnonzero(deviation > 0)
    which = rng.choice(usable, n)
    rows = np.arange(n)
    if way == "far":
        x[rows, which] += rng.choice([-4, 4], n) * deviation[which]
        return x, which
    done = np.zeros(n, bool)
    before = x.copy()
    for i in rows:
        values = before[:, which[i]]
        far = np.flatnonzero(np.abs(values - values[i]) >= deviation[which[i]])
        if len(far):
            x[i, which[i]], done[i] = before[rng.choice(far), which[i]], True
    return x[done], which[done]


def ecod(train: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(n, D): ECOD's outlier score of every value."""
    n = len(train)
    ordered = np.sort(train, 0)
    left = np.stack([np.searchsorted(ordered[:, d], x[:, d], "right") for d in range(x.shape[1])], 1)
    right = n - np.stack([np.searchsorted(ordered[:, d], x[:, d], "left") for d in range(x.shape[1])], 1)
    low, high = (-np.log(np.maximum(count, 1) / (n + 1)) for count in (left + 1, right + 1))
    centred = train - train.mean(0)
    skew = (centred**3).mean(0) / np.maximum((centred**2).mean(0), 1e-12) ** 1.5
    return np.maximum(np.where(skew < 0, low, high), (low + high) / 2)


def leave_out(train: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(n, D): how much nearer the nearest training rows are without the feature."""
    from sklearn.neighbors import NearestNeighbors

    def near(features: np.ndarray, rows: np.ndarray, own: int) -> np.ndarray:
        found = NearestNeighbors(n_neighbors=5 + own).fit(train[:, features]).kneighbors(rows[:, features])[0]
        return found[:, own:].mean(1)

    every = np.arange(x.shape[1])
    whole, usual = near(every, x, 0), near(every, train, 1)
    found = []
    for d in every:
        rest = np.delete(every, d)
        drop, typical = whole - near(rest, x, 0), usual - near(rest, train, 1)
        found.append((drop - typical.mean()) / (typical.std() + 1e-9))
    return np.stack(found, 1)


def ours(train: np.ndarray, xs: list[np.ndarray], seed: int) -> list[np.ndarray]:
    from lapae import LaplacianAutoencoder

    model = LaplacianAutoencoder(random_state=seed, device="cpu").fit(train)
    return [model.explain(x) for x in xs]


def run(path: Path, n_rows: int, seed: int) -> dict:
    with np.load(path) as file:
        x = file["X"][file["y"] == 0].astype(float)
    rng = np.random.default_rng(seed)
    x = x[rng.permutation(len(x))]
    half = len(x) // 2
    train, test = x[: min(half, MOST_TRAIN)], x[half : half + n_rows]
    mean, deviation = train.mean(0), train.std(0)
    cases = {way: disturbed(test, deviation, way, rng) for way in WAYS}
    scale = np.where(deviation > 0, deviation, 1)
    scaled = {way: (case - mean) / scale for way, (case, _) in cases.items()}
    standard = (train - mean) / scale
    began = time.perf_counter()
    mine = dict(zip(WAYS, ours(train, [case for case, _ in cases.values()], seed), strict=True))
    found: dict = {"set": path.stem, "rows": len(train), "features": x.shape[1]}
    found["seconds"] = time.perf_counter() - began
    for way, (_, which) in cases.items():
        named = {
            "lapae": mine[way],
            "ECOD": ecod(standard, scaled[way]),
            "leave out": leave_out(standard, scaled[way]),
        }
        found[way] = {name: float((score.argmax(1) == which).mean()) for name, score in named.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    names = args.sets or sorted(path.stem for path in args.data.glob("*.npz"))
    rows = []
    for name in names:
        rows.append(run(args.data / f"{name}.npz", args.rows, args.seed))
        print(json.dumps(rows[-1]), flush=True)
    for way in WAYS:
        print(f"\n{way}: share of rows whose disturbed feature comes first, in %")
        for name in ("lapae", "ECOD", "leave out"):
            print(f"  {name:<10} {100 * np.mean([row[way][name] for row in rows]):.1f}")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
