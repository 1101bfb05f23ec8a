"""Outlier detection on tables that ship with scikit-learn, beside its detectors and PyOD's where that is installed.

    python benchmarks/outliers.py --seeds 5

One class of a set (or all but the sickest tenth of diabetes) is normal, the rest are outliers. 60 % of the normal data
are fitted, with a share of outliers among them (`--contaminated 0.05`; none by default); the AUROC is that of the other
40 % against the other outliers. Every method has its default settings and standardised data.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn import datasets
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor
from sklearn.preprocessing import StandardScaler


def tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """X and a mask of the outliers."""
    cancer, wine, iris, digits = (
        load() for load in (datasets.load_breast_cancer, datasets.load_wine, datasets.load_iris, datasets.load_digits)
    )
    diabetes = datasets.load_diabetes()
    return {
        "breast cancer: benign": (cancer.data, cancer.target == 0),
        **{f"wine: class {k}": (wine.data, wine.target != k) for k in (0, 1, 2)},
        "iris: versicolor": (iris.data, iris.target != 1),
        "iris: virginica": (iris.data, iris.target != 2),
        **{f"digits: {k}": (digits.data, digits.target != k) for k in (1, 5, 8)},
        "diabetes: all but the top tenth": (diabetes.data, diabetes.target > np.quantile(diabetes.target, 0.9)),
    }


def methods() -> dict[str, Callable[[int, int], Any]]:
    """Detectors by name, given a seed and the number of data.

    `score_samples` is high for normal data, PyOD's `decision_function` low. PyOD's networks fail on fewer data than
    their batch size (32): it is lowered there, and nothing else is changed.
    """
    from lapae import LaplacianAutoencoder

    found: dict[str, Callable[[int, int], Any]] = {
        "LaplacianAutoencoder": lambda seed, n: LaplacianAutoencoder(random_state=seed),
        "IsolationForest": lambda seed, n: IsolationForest(random_state=seed),
        "LocalOutlierFactor": lambda seed, n: LocalOutlierFactor(novelty=True),
    }
    try:
        from pyod.models.auto_encoder import AutoEncoder  # pyright: ignore[reportMissingImports]
        from pyod.models.ecod import ECOD  # pyright: ignore[reportMissingImports]
        from pyod.models.iforest import IForest  # pyright: ignore[reportMissingImports]
        from pyod.models.vae import VAE  # pyright: ignore[reportMissingImports]
    except ImportError:
        return found
    return found | {
        "PyOD AutoEncoder": lambda seed, n: AutoEncoder(batch_size=min(32, n), random_state=seed, verbose=0),
        "PyOD VAE": lambda seed, n: VAE(batch_size=min(32, n), random_state=seed, verbose=0),
        "PyOD ECOD": lambda seed, n: ECOD(),
        "PyOD IForest": lambda seed, n: IForest(random_state=seed),
    }


def split(x: np.ndarray, outlier: np.ndarray, seed: int, share: float, test_share: float) -> tuple[np.ndarray, ...]:
    """Standardised training data, test data, and which of the test data are outliers."""
    rng = np.random.default_rng(seed)
    train, test = train_test_split(np.flatnonzero(~outlier), test_size=0.4, random_state=seed)
    outside = rng.permutation(np.flatnonzero(outlier))
    n_train = round(share / (1 - share) * len(train))
    train = np.concatenate([train, outside[:n_train]])
    most = round(test_share / (1 - test_share) * len(test)) if test_share < 1 else len(outside)
    test = np.concatenate([test, outside[n_train : n_train + most]])
    scaler = StandardScaler().fit(x[train])
    return scaler.transform(x[train]), scaler.transform(x[test]), outlier[test]


def measure(
    make: Callable[[int, int], Any], x: np.ndarray, outlier: np.ndarray, seed: int, *shares: float
) -> tuple[float, float]:
    """AUROC and seconds (fit and score)."""
    train, test, truth = split(x, outlier, seed, *shares)
    began = time.perf_counter()
    detector = make(seed, len(train)).fit(train)
    pyod = type(detector).__module__.startswith("pyod")
    scores = detector.decision_function(test) if pyod else -detector.score_samples(test)
    return float(roc_auc_score(truth, scores)), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--contaminated", type=float, default=0.0)
    parser.add_argument("--test-share", type=float, default=1.0, help="share of outliers in the test data; 1: all")
    parser.add_argument("--only", nargs="*", help="names of methods")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    makes = {name: make for name, make in methods().items() if not options.only or name in options.only}
    sets, shares = tables(), (options.contaminated, options.test_share)
    auroc = np.zeros((len(sets), len(makes), options.seeds))
    seconds = np.zeros_like(auroc)
    for i, (x, outlier) in enumerate(sets.values()):
        for j, make in enumerate(makes.values()):
            for seed in range(options.seeds):
                auroc[i, j, seed], seconds[i, j, seed] = measure(make, x, outlier, seed, *shares)
        print(f"{i + 1}/{len(sets)} sets", file=sys.stderr)
    mean = auroc.mean(2)
    ranks = np.stack([rankdata(-row) for row in mean])
    if options.json:
        print(json.dumps({"sets": list(sets), "methods": list(makes), "auroc": auroc.tolist(), "s": seconds.tolist()}))
        return
    print("| | " + " | ".join(makes) + " |\n|" + "---|" * (len(makes) + 1))
    for name, row, spread in zip(sets, mean, auroc.std(2), strict=True):
        cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(row, spread, strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("| mean | " + " | ".join(f"{m:.3f}" for m in mean.mean(0)) + " |")
    print("| average rank | " + " | ".join(f"{r:.2f}" for r in ranks.mean(0)) + " |")
    print("| seconds | " + " | ".join(f"{s:.2f}" for s in seconds.mean((0, 2))) + " |")


if __name__ == "__main__":
    main()
