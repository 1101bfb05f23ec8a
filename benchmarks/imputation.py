"""Holes in tables: the estimator's defaults beside KNNImputer and IterativeImputer with extra trees, in one run.

    python benchmarks/imputation.py --data FOLDER [--shares 0.2 0.5] [--patterns mcar mar mnar] [--seeds 0] [--out FILE]

FOLDER holds NAME.csv: an index column, then numbers. Values are hidden, all methods are given the table with its holes
and fill it. Errors are in units of each column's range (largest less smallest value). Of the methods that know how far
off they are, coverage is the share of hidden values within 90 % intervals, and CRPS that of 100 completions; for the
others the CRPS is the absolute error. Of lapae, `mae` and `rmse` are those of its median, `mean_mae` and `mean_rmse`
those of its mean. One configuration for all tables; of larger ones 2,000 rows are drawn.

mcar hides values at random. mar leaves a third of the columns whole, and hides values of the others more often in rows
where a random mixture of these is large. mnar hides large values of every column more often than small ones.

With --methods mice: miceforest (`pip install miceforest lightgbm==4.5`), 20 data sets, their median as the best guess,
their quantiles as intervals.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MOST_ROWS = 2000
COMPLETIONS = 100
LEVEL = 0.9
METHODS = ("lapae", "trees", "knn", "mean")
DRAWS = 20
"""Data sets of miceforest, which takes seconds for each."""
PUBLISHED = ("mae", "rmse", "mean_mae", "mean_rmse", "crps", "coverage", "width", "seconds")


def read(path: Path, seed: int) -> np.ndarray:
    x = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, usecols=range(1, _columns(path)))
    return x[np.random.default_rng(seed).permutation(len(x))[:MOST_ROWS]]


def _columns(path: Path) -> int:
    """In the first row of values: the header may hold commas of its own."""
    return path.read_text("utf-8").splitlines()[1].count(",") + 1


def hide(x: np.ndarray, share: float, pattern: str, seed: int) -> np.ndarray:
    """Which values are hidden, (n, d): about `share` of them, and never all of a row or a column."""
    rng = np.random.default_rng([seed, 1])
    n, d = x.shape
    rank = x.argsort(0).argsort(0) / n
    if pattern == "mcar":
        rate = np.full((n, d), share)
    elif pattern == "mnar":
        rate = 2 * share * rank
    else:
        whole = rng.permutation(d)[: max(1, d // 3)]
        mixture = rank[:, whole] @ rng.normal(size=len(whole))
        rate = np.repeat(2 * share * (mixture.argsort().argsort() / n)[:, None], d, 1) * d / (d - len(whole))
        rate[:, whole] = 0
    hidden = rng.random((n, d)) < np.clip(rate, 0, 0.95)
    hidden[hidden.all(1), rng.integers(d)] = False
    hidden[0] &= ~hidden.all(0)
    return hidden


def imputers(seed: int) -> dict[str, Callable[[np.ndarray], dict[str, Any]]]:
    """By name: a table with holes -> the filled table, and where it has them completions and intervals."""
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
    from sklearn.preprocessing import StandardScaler

    from lapae import LaplacianAutoencoder

    def ours(x: np.ndarray) -> dict[str, Any]:
        model = LaplacianAutoencoder(random_state=seed, device="cpu").fit(x)
        filled = model.impute(x)
        low, high = model.impute_interval(x, level=LEVEL)
        drawn = model.impute(x, n_samples=COMPLETIONS)
        return {"filled": filled, "mean": model.impute(x, guess="mean"), "low": low, "high": high, "completions": drawn}

    def knn(x: np.ndarray) -> dict[str, Any]:
        scaler = StandardScaler().fit(x)
        filled = KNNImputer(keep_empty_features=True).fit_transform(scaler.transform(x))
        return {"filled": scaler.inverse_transform(filled)}

    def trees(x: np.ndarray) -> dict[str, Any]:
        forest = ExtraTreesRegressor(n_estimators=50, random_state=seed)
        return {"filled": IterativeImputer(forest, max_iter=5, random_state=seed).fit_transform(x)}

    def mean(x: np.ndarray) -> dict[str, Any]:
        return {"filled": SimpleImputer(keep_empty_features=True).fit_transform(x)}

    def mice(x: np.ndarray) -> dict[str, Any]:
        import pandas as pd
        from miceforest import ImputationKernel  # pyright: ignore[reportMissingImports]

        varies = np.nanstd(x, 0) > 0
        frame = pd.DataFrame(x[:, varies], columns=[f"c{i}" for i in np.flatnonzero(varies)])
        kernel = ImputationKernel(frame, num_datasets=DRAWS, random_state=seed)
        kernel.mice(5, num_threads=1)
        drawn = np.repeat(np.where(np.isnan(x), np.nanmean(x, 0), x)[None], DRAWS, 0)
        drawn[:, :, varies] = [kernel.complete_data(i).to_numpy(float) for i in range(DRAWS)]
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return {"filled": np.median(drawn, 0), "low": low, "high": high, "completions": drawn}

    return {"lapae": ours, "trees": trees, "mice": mice, "knn": knn, "mean": mean}


def crps(completions: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Of completions (S, m) of values (m,): E|c - x| - E|c - c'| / 2, the latter over pairs of different ones."""
    s = len(completions)
    ordered = np.sort(completions, 0)
    weight = (2 * np.arange(1, s + 1) - s - 1) / (s * (s - 1))
    return np.abs(completions - truth).mean(0) - weight @ ordered


def measure(fill: Callable[[np.ndarray], dict[str, Any]], x: np.ndarray, hidden: np.ndarray) -> dict[str, float]:
    began = time.process_time()
    found = fill(np.where(hidden, np.nan, x))
    seconds = time.process_time() - began
    unit = np.broadcast_to(np.maximum(np.ptp(x, axis=0), 1e-12), x.shape)[hidden]
    truth = x[hidden]
    gap = (found["filled"][hidden] - truth) / unit
    out = {"mae": np.abs(gap).mean(), "rmse": np.sqrt(np.square(gap).mean()), "crps": np.abs(gap).mean()}
    if "mean" in found:
        gap = (found["mean"][hidden] - truth) / unit
        out |= {"mean_mae": np.abs(gap).mean(), "mean_rmse": np.sqrt(np.square(gap).mean())}
    if "low" in found:
        low, high = found["low"][hidden], found["high"][hidden]
        drawn = found["completions"][:, hidden]
        out["crps"] = (crps(drawn, truth) / unit).mean()
        out["coverage"] = ((low <= truth) & (truth <= high)).mean()
        out["width"] = ((high - low) / unit)[unit > 1e-12].mean()  # of columns that are not constant
        edges = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        out["coverage of completions"] = ((edges[0] <= truth) & (truth <= edges[1])).mean()
    return {name: float(value) for name, value in {**out, "seconds": seconds}.items()}


def show(rows: list[dict[str, Any]], methods: list[str]) -> None:
    settings = sorted({(row["pattern"], row["share"]) for row in rows})
    for pattern, share in settings:
        own = [row for row in rows if (row["pattern"], row["share"]) == (pattern, share)]
        print(f"\n{pattern}, {share:.0%} hidden: mean absolute error\n\n| table | " + " | ".join(methods) + " |")
        print("|---" * (len(methods) + 1) + "|")
        for name in sorted({row["table"] for row in own}):
            cells = [
                np.mean([row["mae"] for row in own if (row["table"], row["method"]) == (name, m)]) for m in methods
            ]
            print(f"| {name} | " + " | ".join(f"{cell:.4f}" for cell in cells) + " |")
        for key in (*PUBLISHED, "coverage of completions"):
            cells = [np.mean([row.get(key, np.nan) for row in own if row["method"] == m]) for m in methods]
            print(f"| mean of {key} | " + " | ".join("" if np.isnan(c) else f"{c:.4f}" for c in cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", nargs="+")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.2, 0.5])
    parser.add_argument("--patterns", nargs="+", default=["mcar"], choices=["mcar", "mar", "mnar"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=[*METHODS, "mice"])
    parser.add_argument("--out", type=Path, help="JSON of all rows; what is in it already is not run again")
    args = parser.parse_args()
    if not any(args.data.glob("*.csv")):
        parser.error(f"{args.data} holds no .csv files")
    warnings.simplefilter("ignore")
    rows = json.loads(args.out.read_text("utf-8")) if args.out and args.out.exists() else []
    done = {(row["table"], row["pattern"], row["share"], row["seed"], row["method"]) for row in rows}
    names = args.tables or sorted((path.stem for path in args.data.glob("*.csv")), key=lambda n: _size(args.data, n))
    for name in names:
        for pattern, share, seed in [(p, s, r) for p in args.patterns for s in args.shares for r in args.seeds]:
            x = read(args.data / f"{name}.csv", seed)
            hidden = hide(x, share, pattern, seed)
            for method, fill in imputers(seed).items():
                key = {"table": name, "pattern": pattern, "share": share, "seed": seed, "method": method}
                if method not in args.methods or tuple(key.values()) in done:
                    continue
                rows.append({**key, **measure(fill, x, hidden)})
                print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
                if args.out:
                    args.out.write_text(json.dumps(rows, indent=1) + "\n")
    show(rows, args.methods)


def _size(data: Path, name: str) -> int:
    return (data / f"{name}.csv").stat().st_size


if __name__ == "__main__":
    main()
