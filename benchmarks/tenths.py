"""Coverage of 90 % intervals of missing numbers by tenth of the true value, and by tenth of the best guess.

    python benchmarks/tenths.py FOLDER

The folder is that of `mixed.py`, and so are the rows that are learned. A fifth of the cells of 400 others is hidden.
The peer is a quantile forest for each column (Meinshausen 2006, here of extremely randomised trees), made conformal on
rows that it has not seen (Romano, Patterson & Candès 2019). The interval score is in standard deviations of the column;
lower is better.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor

from lapae import LaplacianAutoencoder

TABLES = ("titanic", "taxis", "ames")
LEVEL, HIDDEN, SEVERAL, MOST_COLUMNS = 0.9, 0.2, 10, 10


def quantile_forest(train: np.ndarray, calib: np.ndarray, new: np.ndarray, j: int) -> np.ndarray:
    """Return low, median and high (3, n) of column j of `new`, whose other values may be missing."""
    rng, middle = np.random.default_rng(0), np.nan_to_num(np.nanmedian(train, 0))

    def others(rows: np.ndarray, share: float) -> np.ndarray:
        rows = np.where(rng.random(rows.shape) < share, np.nan, rows)
        return np.delete(np.where(np.isnan(rows), middle, rows), j, 1)

    train, calib = (rows[~np.isnan(rows[:, j])] for rows in (train, calib))
    inputs, y = others(train, HIDDEN), train[:, j]
    forest = ExtraTreesRegressor(100, min_samples_leaf=5, random_state=0).fit(inputs, y)
    leaves, order, ends = forest.apply(inputs), np.argsort(y), [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2]

    def quantiles(rows: np.ndarray) -> np.ndarray:
        found = []
        for own in forest.apply(rows):
            same = leaves == own
            total = (same / same.sum(0).clip(1)).sum(1)[order].cumsum()
            found.append(y[order][np.searchsorted(total / total[-1], ends).clip(0, len(y) - 1)])
        return np.array(found).T

    low, _, high = quantiles(others(calib, HIDDEN))
    beyond = np.sort(np.maximum(low - calib[:, j], calib[:, j] - high))
    reach = beyond[min(len(beyond), int(np.ceil((len(beyond) + 1) * LEVEL))) - 1]
    return quantiles(others(new, 0)) + reach * np.array([[-1], [0], [1]])


def by_tenth(held: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return the sums of `held` (n,) and the counts, by tenth of `value`: (2, 10)."""
    tenth = np.minimum((pd.Series(value).rank().to_numpy() - 0.5) / len(value) * 10, 9).astype(int)
    return np.stack([np.bincount(tenth, held, 10), np.bincount(tenth, minlength=10)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    warnings.simplefilter("ignore")
    print("| table | method | tenths of | score | all |" + "".join(f" {i} |" for i in range(1, 11)))
    print("|" + "---|" * 15)
    for table in TABLES:
        frame = pd.read_csv(folder / f"{table}.csv").sample(frac=1, random_state=0).reset_index(drop=True)
        n = min(3000, len(frame) * 2 // 3)
        model = LaplacianAutoencoder(random_state=0, device="cpu").fit(frame[:n]).model_
        x = model.space.known(model.space.code(frame)).astype(float)
        train, calib, true = x[: 7 * n // 10], x[7 * n // 10 : n], x[n : n + 400]
        hidden = (np.random.default_rng(1).random(true.shape) < HIDDEN) & ~np.isnan(true)
        seen = np.where(hidden, np.nan, true)
        (low, high), guess = model.impute_interval(seen, LEVEL), model.impute(seen)
        numbers = [c.kind not in ("category", "boolean") for c in model.space.numbered]
        several = [len(np.unique(column[~np.isnan(column)])) > SEVERAL for column in x[:n].T]
        chosen = [j for j in np.flatnonzero(np.logical_and(numbers, several)) if hidden[:, j].any()][:MOST_COLUMNS]
        for method in ("lapae", "forest"):
            counts, scores = np.zeros((2, 2, 10)), []
            for j in chosen:
                rows = hidden[:, j]
                ends = low[rows, j], guess[rows, j], high[rows, j]
                a, b, c = ends if method == "lapae" else quantile_forest(train, calib, seen[rows], j)
                t, held = true[rows, j], (a <= true[rows, j]) & (true[rows, j] <= c)
                counts += np.stack([by_tenth(held, t), by_tenth(held, b)])
                missed = (a - t).clip(0) + (t - c).clip(0)
                scores.append((c - a + 2 / (1 - LEVEL) * missed) / np.nanstd(x[:n, j]))
            for of, (held, total) in zip(("the true value", "the guess"), counts, strict=True):
                shares = " | ".join(f"{v:.0f}" for v in 100 * held / total)
                score, every = np.concatenate(scores).mean(), 100 * held.sum() / total.sum()
                print(f"| {table} | {method} | {of} | {score:.2f} | {every:.0f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
