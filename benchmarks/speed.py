"""Speed of one core: `lapae.mapper` on a table of 20 columns, as a ratio to scikit-learn's IsolationForest.

    OMP_NUM_THREADS=1 python benchmarks/speed.py [--rows 24576] [--repeat 10]

Rows come from a Parquet file and go to one, for both. The two take turns, the processor's time counts and not the
clock's, and the least of several turns is taken, so that other work on the machine matters little. The forest has
scikit-learn's defaults and is trained on the same rows.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.ensemble import IsolationForest

import lapae

COLUMNS, TRAIN, FACTORS = 20, 4000, 5


def table(n: int, seed: int) -> pd.DataFrame:
    """Return n rows: five factors, bent, and noise."""
    weights = np.random.default_rng(0).normal(size=(FACTORS, COLUMNS))
    rng = np.random.default_rng(seed)
    x = np.tanh(rng.normal(size=(n, FACTORS)) @ weights) + 0.2 * rng.normal(size=(n, COLUMNS))
    return pd.DataFrame(x, columns=[f"f{i}" for i in range(COLUMNS)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=24576)
    parser.add_argument("--repeat", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        train = table(TRAIN, 1)
        lapae.LaplacianAutoencoder(epochs=20, random_state=0).fit(train).save(root / "run")
        forest = IsolationForest(random_state=0).fit(train)
        table(options.rows, 2).to_parquet(root / "new.parquet", index=False)

        def trees() -> None:
            frame = pd.read_parquet(root / "new.parquet")
            pd.DataFrame({"score": forest.score_samples(frame)}).to_parquet(root / "forest.parquet")

        def mapped(**options: object) -> Callable[[], None]:
            mapper = lapae.mapper(root / "run", **options)  # type: ignore[arg-type]

            def work() -> None:
                batches = pq.ParquetFile(root / "new.parquet").iter_batches(8192)
                pq.write_table(pa.Table.from_batches(mapper(batches), mapper.schema), root / "out.parquet")

            return work

        verbs = {"score": mapped(), "embed": mapped(verb="embed"), "reconstruct": mapped(verb="reconstruct")}
        least = dict.fromkeys(["forest", *verbs], np.inf)
        for _ in range(options.repeat):
            for name, work in {"forest": trees, **verbs}.items():
                start = time.process_time()
                work()
                least[name] = min(least[name], time.process_time() - start)
    print("| verb | µs per row | times IsolationForest.score_samples |\n|---|---|---|")
    for name, seconds in least.items():
        print(f"| {name} | {1e6 * seconds / options.rows:.1f} | {seconds / least['forest']:.2f} |")
    print(f"\nmost memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB, training included")


if __name__ == "__main__":
    main()
