"""Imputation of tables that ship with scikit-learn, beside its IterativeImputer and KNNImputer.

    python benchmarks/imputation.py --seeds 3

80 % of the rows are fitted, complete or with holes of their own (`--holes-in-training`); of the other 20 % a fifth of
the values is hidden, at random. RMSE is in standard deviations of the training data. Coverage is the share of hidden
values within the 5 % and 95 % quantiles of 100 completions; the peers give no intervals for new rows.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

MISSING = 0.2
LEVEL = 0.9


def tables() -> dict[str, np.ndarray]:
    return {
        "breast cancer": datasets.load_breast_cancer().data,
        "wine": datasets.load_wine().data,
        "iris": datasets.load_iris().data,
        "diabetes": datasets.load_diabetes().data,
        "digits": datasets.load_digits().data,
        "linnerud": np.hstack([datasets.load_linnerud().data, datasets.load_linnerud().target]),
    }


def imputers() -> dict[str, Callable[[int], Any]]:
    from lapae import LaplacianAutoencoder

    return {
        "LaplacianAutoencoder": lambda seed: LaplacianAutoencoder(random_state=seed),
        "LaplacianAutoencoder, latent_dim=8": lambda seed: LaplacianAutoencoder(latent_dim=8, random_state=seed),
        "IterativeImputer": lambda seed: IterativeImputer(random_state=seed),
        "KNNImputer": lambda seed: KNNImputer(),
        "mean": lambda seed: SimpleImputer(keep_empty_features=True),
    }


def measure(make: Callable[[int], Any], x: np.ndarray, seed: int, holes: bool) -> tuple[float, float, float]:
    """RMSE, coverage (NaN where there is none) and seconds."""
    train, test = train_test_split(x, test_size=0.2, random_state=seed)
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    rng = np.random.default_rng(seed)
    hidden = rng.random(test.shape) < MISSING
    if holes:
        train = np.where(rng.random(train.shape) < MISSING, np.nan, train)
    given = np.where(hidden, np.nan, test)
    began = time.perf_counter()
    model = make(seed).fit(train)
    own = hasattr(model, "impute")
    filled = model.impute(given) if own else model.transform(given)
    seconds = time.perf_counter() - began
    rmse = float(np.sqrt(np.mean(np.square((filled - test)[hidden]))))
    if not own:
        return rmse, np.nan, seconds
    edges = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(model.impute(given, n_samples=100), edges, axis=0)
    return rmse, float(((low <= test) & (test <= high))[hidden].mean()), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--holes-in-training", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    makes = imputers()
    print("| | " + " | ".join(makes) + " |\n|" + "---|" * (len(makes) + 1))
    results = []
    for name, x in tables().items():
        rows = [
            [measure(make, x, seed, options.holes_in_training) for seed in range(options.seeds)]
            for make in makes.values()
        ]
        found = np.array(rows).mean(1)  # (methods, 3)
        results.append(found)
        cells = [f"{r:.3f}" + (f" ({c:.0%})" if np.isfinite(c) else "") for r, c, _ in found]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    mean = np.mean(results, 0)
    print("| mean | " + " | ".join(f"{r:.3f}" + (f" ({c:.0%})" if np.isfinite(c) else "") for r, c, _ in mean) + " |")
    print("| seconds | " + " | ".join(f"{s:.2f}" for s in mean[:, 2]) + " |")


if __name__ == "__main__":
    main()
