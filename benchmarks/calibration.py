"""Do the numbers hold on data the model has not seen? Coverage of intervals, false alarms, p-values, false discoveries.

    python benchmarks/calibration.py --data FOLDER [--seeds 0] [--sets NAME ...] [--out results.jsonl]
    python benchmarks/calibration.py --table results.jsonl

FOLDER is the data folder of the tests (imputation/*.csv, adbench/*.npz, mnist, fashion_mnist, where there). Of every
set 60 % of the (normal) rows, at most 3,000, are given to `fit` with the defaults; of the rest at most 2,000 are new.
Sets are done from small to large, with one line of results each; what the file has already is not done again.
With --peer, crepes (`pip install crepes`) makes the intervals around a plain autoencoder, from the same held-out rows.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np

LEVELS = (0.5, 0.8, 0.9, 0.95)
RATES = (0.01, 0.05)
MOST_ROWS, MOST_NEW = 3000, 2000
LARGE = 500
"""Rows from which a set counts for the worst."""
ABOUT = ("set", "seed", "rows", "new", "seconds", "code")


def sets(folder: Path) -> list[str]:
    """The names of all sets, small ones first."""
    tables = [p for kind in ("imputation/*.csv", "adbench/*.npz") for p in folder.glob(kind)]
    by_size = sorted(tables, key=lambda p: p.stat().st_size)
    names = [f"{p.parent.name}/{p.stem}" for p in by_size]
    return ["digits", *names, *(s for s in ("mnist", "fashion_mnist") if (folder / s).is_dir())]


def load(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Normal data of a set, and anomalies where there are some."""
    kind, _, which = name.partition("/")
    if kind == "imputation":
        import pandas as pd

        return pd.read_csv(folder / kind / f"{which}.csv").iloc[:, 1:].to_numpy(float), None
    if kind == "adbench":
        with np.load(folder / kind / f"{which}.npz") as file:
            x, y = file["X"].astype(float), file["y"].astype(int)
        return x[y == 0], x[y == 1]
    if kind == "digits":
        from sklearn.datasets import load_digits

        return (load_digits().images / 16).astype(np.float32), None
    raw = gzip.decompress((folder / kind / "train-images-idx3-ubyte.gz").read_bytes())
    return np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28), None


def run(name: str, folder: Path, seed: int, *, peer: bool = False) -> dict:
    from lapae import LaplacianAutoencoder

    x, anomalies = load(name, folder)
    rng = np.random.default_rng(seed)
    x = x[rng.permutation(len(x))][: MOST_ROWS + MOST_NEW]
    n = min(int(0.6 * len(x)), MOST_ROWS)
    train, new = x[:n], x[n : n + MOST_NEW]
    began = time.perf_counter()
    model = LaplacianAutoencoder(random_state=seed, device="cpu").fit(train)
    found = {"set": name, "seed": seed, "rows": len(x), "new": len(new), "seconds": time.perf_counter() - began}
    found |= of_intervals(model, new) | of_p_values(model, new)
    if new.ndim == 2:
        found |= of_missing(model, new, rng.random(new.shape) < 0.2)
    if anomalies is not None:
        some = anomalies[rng.permutation(len(anomalies))[: max(1, len(new) // 9)]]
        found |= of_discoveries(model, new, some)
    if peer and new.ndim == 2:
        found |= of_peer(model, train, new, seed)
    return found


def of_intervals(model, new: np.ndarray) -> dict:
    from scipy.stats import spearmanr

    floats, found = new.astype(float), {}
    varies = floats.std(0) > 0  # a value that is always the same is in its interval always
    for level in LEVELS:
        low, high = model.predict_interval(new, level)
        found[f"interval {level}"] = float(((floats >= low) & (floats <= high))[:, varies].mean())
    mean, deviation = model.reconstruct(new, return_std=True)
    error = np.abs(mean - floats)[:, varies]
    deviation = deviation[:, varies]
    by_sample = [np.square(v).sum(1) for v in (deviation / floats.std(0)[varies], error / floats.std(0)[varies])]
    found["rank correlation, sample"] = float(spearmanr(*by_sample)[0])
    units = np.sqrt(np.square(error).mean(0)) + 1e-12  # within each feature: that features differ is no news
    some = np.random.default_rng(0).permutation(error.size)[:200_000]
    found["rank correlation, value"] = float(spearmanr(deviation.ravel()[some], error.ravel()[some])[0])
    found["rank correlation, value in its units"] = float(
        spearmanr((deviation / units).ravel()[some], (error / units).ravel()[some])[0]
    )
    return found


def of_p_values(model, new: np.ndarray) -> dict:
    from scipy.stats import kstest

    p = model.p_value(new)
    found = {f"false alarms {rate}": float((p <= rate).mean()) for rate in RATES}
    return found | {"uniformity (KS)": float(kstest(p, "uniform").statistic)}


def of_missing(model, new: np.ndarray, hidden: np.ndarray) -> dict:
    from scipy.stats import kstest

    found = {}
    varies = np.broadcast_to(new.std(0) > 0, new.shape)
    lacking = np.where(hidden, np.nan, new)
    for level in LEVELS:
        low, high = model.impute_interval(lacking, level)
        found[f"imputed {level}"] = float(((new >= low) & (new <= high))[hidden & varies].mean())
    p = model.p_value(lacking)
    p = p[hidden.any(1) & ~hidden.all(1)]
    found["false alarms with missing values 0.05"] = float((p <= 0.05).mean())
    return found | {"uniformity with missing values (KS)": float(kstest(p, "uniform").statistic)}


def of_discoveries(model, new: np.ndarray, anomalies: np.ndarray) -> dict:
    mixed = np.concatenate([new, anomalies])
    normal = np.arange(len(mixed)) < len(new)
    flagged = model.discoveries(mixed, rate=0.1)
    return {
        "false discoveries": float((flagged & normal).sum() / max(flagged.sum(), 1)),
        "discovered": float(flagged[~normal].mean()),
    }


def of_peer(model, train: np.ndarray, new: np.ndarray, seed: int) -> dict:
    """crepes: split conformal intervals, each value normalised by the errors at the nearest training codes."""
    from crepes import ConformalRegressor  # pyright: ignore[reportMissingImports]
    from crepes.extras import DifficultyEstimator  # pyright: ignore[reportMissingImports]
    from scipy.stats import spearmanr

    from lapae import LaplacianAutoencoder
    from lapae.data import Data

    plain = LaplacianAutoencoder(method="ae", random_state=seed, device="cpu").fit(train)
    data = Data.of(train)
    parts = [np.asarray(data.train.x), np.asarray(data.calib.x), new]
    codes = [plain.transform(part) for part in parts]
    expected = [plain.reconstruct(part) for part in parts]
    varies = np.flatnonzero(new.std(0) > 0)
    low, high = (np.empty_like(new) for _ in range(2))
    for j in varies:
        left = [part[:, j] - mean[:, j] for part, mean in zip(parts, expected, strict=True)]
        difficulty = DifficultyEstimator().fit(X=codes[0], residuals=left[0], scaler=True)
        _, of_calib, of_new = (difficulty.apply(X=code) for code in codes)
        peer = ConformalRegressor().fit(residuals=left[1], sigmas=of_calib)
        ends = peer.predict_int(expected[2][:, j], sigmas=of_new, confidence=0.9)
        low[:, j], high[:, j] = ends[:, 0], ends[:, 1]
    ours = np.subtract(*model.predict_interval(new, 0.9)[::-1])[:, varies]
    theirs = (high - low)[:, varies]
    error = np.abs(new - expected[2])[:, varies]
    units = np.sqrt(np.square(error).mean(0)) + 1e-12
    ratio = np.log(np.median(ours, 0) + 1e-12) - np.log(np.median(theirs, 0) + 1e-12)
    return {
        "crepes: interval 0.9": float(((new >= low) & (new <= high))[:, varies].mean()),
        "crepes: rank correlation, value in its units": float(
            spearmanr((theirs / units).ravel(), (error / units).ravel())[0]
        ),
        "median width, ours / theirs": float(np.exp(ratio[np.isfinite(ratio)].mean())),
    }


def aim(column: str) -> float | None:
    """What a column should be: the number that its name ends in."""
    last = column.split()[-1]
    return float(last) if last.replace(".", "").isdigit() else None


def table(rows: list[dict]) -> str:
    """Means over sets, and the worst of those with enough rows, in Markdown."""
    columns = list(dict.fromkeys(key for row in rows for key in row if key not in ABOUT))
    lines = ["| | sets | mean | mean distance | worst of sets with 500 rows or more | |", "|---|---|---|---|---|---|"]
    for column in columns:
        by_set: dict[str, list[float]] = {}
        for row in rows:
            if column in row:
                by_set.setdefault(row["set"], []).append(row[column])
        means = {name: float(np.mean(values)) for name, values in by_set.items()}
        large = {r["set"]: means[r["set"]] for r in rows if r["rows"] >= LARGE and r["set"] in means} or means
        target = aim(column)
        high = column.startswith(("uniformity", "false"))
        if target is not None:
            worst = max(large, key=lambda s: abs(large[s] - target))
            distance = f"{np.mean([abs(v - target) for v in means.values()]):.3f}"
        else:
            worst, distance = (max if high else min)(large, key=lambda s: large[s]), ""
        lines.append(
            f"| {column} | {len(means)} | {np.nanmean(list(means.values())):.3f} | {distance} "
            f"| {large[worst]:.3f} | {worst} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--sets", nargs="+", help="names of sets; default: all")
    parser.add_argument("--peer", action="store_true", help="crepes beside it, of tables")
    parser.add_argument("--out", type=Path, default=Path("calibration.jsonl"))
    parser.add_argument("--table", type=Path, help="print the summary of a file of results, and do nothing else")
    args = parser.parse_args()
    if args.table is not None:
        print(table([json.loads(line) for line in args.table.read_text("utf-8").splitlines()]))
        return
    if args.data is None:
        parser.error("--data is needed")
    rows = [json.loads(line) for line in args.out.read_text("utf-8").splitlines()] if args.out.exists() else []
    done = {(row["set"], row["seed"]) for row in rows}
    for seed in args.seeds:
        for name in args.sets or sets(args.data):
            if (name, seed) in done:
                continue
            rows.append(run(name, args.data, seed, peer=args.peer))
            with args.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(name, seed, f"{rows[-1]['seconds']:.0f} s", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
