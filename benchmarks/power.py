"""Discoveries at a false discovery rate of 10 %: how many outliers are found, and how many of those found are normal?

    python benchmarks/power.py --data FOLDER [--sets NAME …] [--seeds 0 1] [--rows 1500] [--out FILE]

FOLDER holds NAME.npz with X (rows, features) and y (1: anomaly). 60 % of the normal rows, at most --rows, train; of the
others at most 1,000 are tested in 20 batches of half of them, a tenth of a batch anomalies, as in `calibration.py`.
`split` is `discoveries(X, 0.1)`, `cross` has calibration="cross". Found is the share of the anomalies of a batch that
are chosen, false the share of normal rows among those chosen (0 if none is), means over batches. `p <= 0.1` is the
share of normal test rows with a p-value of at most 0.1. Ceiling is the share of the anomalies above the lowest
threshold on the score, chosen by the labels of all test rows, at which at most a tenth of what lies above it is normal
where a tenth are anomalies: what any calibration of this score could find, however many rows calibrate.

With --null, tables of 200 normal rows of 5 correlated columns in place of sets: the shares of 500 new ones with p at
most 0.01, 0.05 and 0.1, mean and standard error over --seeds fits.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

RATE, BATCHES, MOST, SHARE = 0.1, 20, 1000, 0.1
ALPHAS = (0.01, 0.05, 0.1)
WAYS = ("split", "cross")


def fitted(x: np.ndarray, new: np.ndarray, seed: int) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, float]]]:
    """Anomaly scores (n,) of new rows; their p-values (n,), and the seconds that they took, by way of calibration."""
    from lapae import LaplacianAutoencoder

    began = time.process_time()
    model = LaplacianAutoencoder(random_state=seed, device="cpu").fit(x)
    found = {}
    for way in WAYS:
        p = model.p_value(new, calibration=way)
        found[way] = p, time.process_time() - began
    return -model.score_samples(new), found


def ceiling(normal: np.ndarray, odd: np.ndarray) -> float:
    """Share of the anomalies above a threshold on scores (n,), (m,) above which at most `RATE` of all is normal."""
    above = np.array([[(of >= threshold).mean() for of in (normal, odd)] for threshold in odd])
    false = (1 - SHARE) * above[:, 0]
    kept = above[:, 1][false <= RATE * (false + SHARE * above[:, 1])]
    return float(kept.max(initial=0))


def measure(path: Path, seed: int, most: int) -> dict[str, Any]:
    from lapae.calibrate.conformal import discoveries

    with np.load(path) as file:
        x, y = file["X"].astype(float), file["y"].astype(int)
    rng = np.random.default_rng(seed)
    normal, odd = (rng.permutation(np.flatnonzero(y == kind)) for kind in (0, 1))
    n_train = min(int(0.6 * len(normal)), most)
    train, rest, odd = normal[:n_train], normal[n_train : n_train + MOST], odd[:MOST]
    row: dict[str, Any] = {"set": path.stem, "seed": seed, "rows": len(train)}
    score, ways = fitted(x[train], x[np.concatenate([rest, odd])], seed)
    row["ceiling"] = ceiling(score[: len(rest)], score[len(rest) :])
    for way, (p, seconds) in ways.items():
        found, false = [], []
        of = np.random.default_rng(seed)
        for _ in range(BATCHES):
            n = len(rest) // 2
            few = min(len(odd), max(1, round(n * SHARE / (1 - SHARE))))
            batch = np.concatenate([of.permutation(len(rest))[:n], len(rest) + of.permutation(len(odd))[:few]])
            chosen = discoveries(p[batch], RATE)
            found.append(chosen[n:].mean())
            false.append(chosen[:n].sum() / max(1, chosen.sum()))
        row[way] = {
            "found": float(np.mean(found)),
            "false": float(np.mean(false)),
            "flagged": float((p[: len(rest)] <= RATE).mean()),
            "seconds": seconds,
        }
    return row


def null(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng([seed, 7])
    x = rng.normal(size=(700, 2)) @ rng.normal(size=(2, 5)) + 0.5 * rng.normal(size=(700, 5))
    row: dict[str, Any] = {"set": "null", "seed": seed, "rows": 200}
    for way, (p, seconds) in fitted(x[:200], x[200:], seed)[1].items():
        row[way] = {"p": [float((p <= alpha).mean()) for alpha in ALPHAS], "seconds": seconds}
    return row


def show(rows: list[dict[str, Any]]) -> None:
    sets = [row for row in rows if row["set"] != "null"]
    if sets:
        keys = ("found", "false", "flagged")
        print("\n| set | rows | found, split / cross | false | p <= 0.1 | ceiling |\n" + "|---" * 6 + "|")
        for name in [*sorted({row["set"] for row in sets}), "mean"]:
            own = [row for row in sets if name in (row["set"], "mean")]
            cells = [" / ".join(f"{np.mean([row[way][key] for row in own]):.1%}" for way in WAYS) for key in keys]
            cells.append(f"{np.mean([row['ceiling'] for row in own]):.1%}")
            print(f"| {name} | {np.mean([row['rows'] for row in own]):.0f} | " + " | ".join(cells) + " |")
    nulls = [row for row in rows if row["set"] == "null"]
    for way in WAYS if nulls else ():
        p = np.array([row[way]["p"] for row in nulls])
        told = (f"{m:.3f} ± {s:.3f}" for m, s in zip(p.mean(0), p.std(0) / np.sqrt(len(p)), strict=True))
        print(f"{way}, {len(p)} fits, share of p <= 0.01, 0.05, 0.1: {', '.join(told)}")
    seconds = [f"{way} {np.mean([row[way]['seconds'] for row in rows]):.1f}" for way in WAYS]
    print(f"\nCPU seconds, split and both: {', '.join(seconds)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--out", type=Path, help="JSON of all rows; what is in it already is not run again")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = json.loads(args.out.read_text("utf-8")) if args.out and args.out.exists() else []
    done = {(row["set"], row["seed"]) for row in rows}
    paths = [] if args.data is None else sorted(args.data.glob("*.npz"))
    tasks = [(path.stem, seed, path) for seed in args.seeds for path in paths if path.stem in (args.sets or path.stem)]
    tasks = [("null", seed, Path()) for seed in args.seeds] if args.null else tasks
    for name, seed, path in tasks:
        if (name, seed) in done or (args.sets and name not in (*args.sets, "null")):
            continue
        rows.append(null(seed) if args.null else measure(path, seed, args.rows))
        print(json.dumps(rows[-1]), flush=True)
        if args.out:
            args.out.write_text(json.dumps(rows) + "\n")
    show(rows)


if __name__ == "__main__":
    main()
