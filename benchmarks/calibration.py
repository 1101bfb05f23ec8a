"""Do the numbers hold on data the model has not seen? Coverage of intervals, false alarms, p-values, false discoveries.

    python benchmarks/calibration.py --data FOLDER [--seeds 0 1 2] [--jobs 2] [--out results.json]

FOLDER is the data folder of the tests (imputation/*.csv, adbench/*.npz, mnist, fashion_mnist, where there). Of every
set 70 % of the (normal) rows, at most 5,000, are given to `fit` with the defaults; the rest, at most 3,000, are new.
"""

from __future__ import annotations

import argparse
import gzip
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

LEVELS = (0.5, 0.8, 0.9, 0.95)
RATES = (0.01, 0.05)


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


def run(task: tuple[str, str, int]) -> dict:
    import torch
    from scipy.stats import kstest, spearmanr

    from lapae import LaplacianAutoencoder

    torch.set_num_threads(1)
    name, folder, seed = task
    x, anomalies = load(name, Path(folder))
    rng = np.random.default_rng(seed)
    x = x[rng.permutation(len(x))][:8000]
    n = min(int(0.7 * len(x)), 5000)
    train, new = x[:n], x[n : n + 3000]
    model = LaplacianAutoencoder(random_state=seed, device="cpu").fit(train)
    found: dict = {"set": name, "seed": seed, "rows": len(x), "new": len(new)}
    floats = new.astype(float)
    for level in LEVELS:
        low, high = model.predict_interval(new, level)
        found[f"interval {level}"] = float(((floats >= low) & (floats <= high)).mean())
    p = model.p_value(new)
    for rate in RATES:
        found[f"false alarms {rate}"] = float((p <= rate).mean())
    flagged = LaplacianAutoencoder.predict(model, new) == -1
    found["flagged at 0.05"] = float(flagged.mean())
    found["uniformity (KS)"] = float(kstest(p, "uniform").statistic)
    mean, deviation = model.reconstruct(new, return_std=True)
    error = np.abs(mean - floats)
    of_datum = [np.square(v.reshape(len(v), -1)).sum(1) for v in (deviation, error)]
    found["rank correlation, datum"] = float(spearmanr(*of_datum)[0])
    some = rng.permutation(error.size)[:200_000]
    found["rank correlation, cell"] = float(spearmanr(deviation.ravel()[some], error.ravel()[some])[0])
    if new.ndim == 2:
        for share in (0.2, 0.5):
            hidden = rng.random(new.shape) < share
            holes = np.where(hidden, np.nan, new)
            for level in LEVELS:
                low, high = model.impute_interval(holes, level)
                found[f"imputed {share}, {level}"] = float(((new >= low) & (new <= high))[hidden].mean())
            q = model.p_value(holes)[hidden.any(1) & ~hidden.all(1)]
            found[f"false alarms with holes {share}"] = float((q <= 0.05).mean())
    if anomalies is not None and len(anomalies):
        mixed = np.concatenate([new, anomalies[: max(1, len(new) // 9)]])
        normal = np.arange(len(mixed)) < len(new)
        chosen = model.set_params(contamination="auto").predict(mixed) == -1
        found["false discoveries at 0.1"] = float((chosen & normal).sum() / max(chosen.sum(), 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sets = [f"imputation/{p.stem}" for p in (args.data / "imputation").glob("*.csv")]
    sets += [f"adbench/{p.stem}" for p in (args.data / "adbench").glob("*.npz")]
    sets += [s for s in ("mnist", "fashion_mnist") if (args.data / s).is_dir()] + ["digits"]
    tasks = [(name, str(args.data), seed) for name in reversed(sets) for seed in args.seeds]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(run, tasks))
    columns = [key for key in rows[0] if key not in ("set", "seed", "rows", "new")]
    columns = list(
        dict.fromkeys([*columns, *(key for row in rows for key in row if key not in ("set", "seed", "rows", "new"))])
    )
    print(f"{'':<28}{'mean':>8}{'worst of sets with 500 rows or more':>40}")
    for column in columns:
        by_set = {
            s: np.mean([row[column] for row in rows if row["set"] == s])
            for s in sets
            if any(row["set"] == s and column in row for row in rows)
        }
        large = {s: v for s, v in by_set.items() if next(r["rows"] for r in rows if r["set"] == s) >= 500}
        aim = float(column.split()[-1]) if column.split()[-1].replace(".", "").isdigit() else None
        aim = 0.05 if column.startswith("false alarms with") else aim
        worst = max(large, key=lambda s: abs(large[s] - aim)) if aim is not None else min(large, key=lambda s: large[s])
        print(f"{column:<28}{np.mean(list(by_set.values())):8.3f}{large[worst]:12.3f}  {worst}")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
