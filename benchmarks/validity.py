"""Do p-values keep their promise on ordinary tables off the beaten path? The share of new rows with p <= alpha.

    python benchmarks/validity.py [--fits 20] [--sizes 20 60 200 1000 3000] [--tables dice copies ...] [--new 300]
        [--first 0]

Each cell fits the default estimator `--fits` times to rows of one distribution, and scores new rows of the same. With n
calibration rows the share at alpha is floor(alpha (n + 1)) / (n + 1) on average over fits if scores have no ties, and
smaller if they have; it may differ by chance, and `most` is what it exceeds in one of a thousand such cells.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ALPHAS = (0.05, 0.2)


def one_column(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(20, 5, (n, 1))


def dice(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(1, 7, (n, 2)).astype(float)


def three_values(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, 3, (n, 3)).astype(float)


def redundant(rng: np.random.Generator, n: int) -> np.ndarray:
    """Two temperatures in degrees Celsius beside the same in Fahrenheit."""
    celsius = rng.normal([20, 35], [5, 2], (n, 2))
    return np.concatenate([celsius, 1.8 * celsius + 32], 1)


def copies(rng: np.random.Generator, n: int) -> np.ndarray:
    """Every row five times over; new rows are new."""
    return np.repeat(rng.standard_normal((-(-n // 5), 4)) @ np.triu(np.ones((4, 4))), 5, 0)[:n]


def almost_constant(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.array([1000.0, -3.0, 0.5]) + rng.standard_normal((n, 3)) * np.array([1e-3, 1e-6, 0.1])


def heavy_tails(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_t(1.5, (n, 5)) * np.array([1, 10, 1e3, 1, 1]) + rng.standard_t(1.5, (n, 1))


def mixed(rng: np.random.Generator, n: int) -> Any:
    import pandas as pd

    size = rng.choice(["small", "medium", "large"], n, p=[0.6, 0.3, 0.1])
    base = np.select([size == "small", size == "medium"], [1.0, 2.0], 4.0)
    price = np.exp(base / 2 + 0.3 * rng.standard_normal(n))
    count = rng.poisson(base)
    paid = rng.random(n) < 0.3
    return pd.DataFrame({"size": size, "price": price, "count": count, "paid": paid})


def missing(rng: np.random.Generator, n: int) -> np.ndarray:
    """Six columns of two sources, half of the values missing."""
    x = rng.standard_normal((n, 2)) @ rng_free(6) + 0.3 * rng.standard_normal((n, 6))
    return np.where(rng.random((n, 6)) < 0.5, np.nan, x)


def rng_free(d: int) -> np.ndarray:
    """Loadings (2, d) that are the same in every call."""
    return np.stack([np.cos(np.arange(d)), np.sin(np.arange(d))]) * 2


TABLES: dict[str, Callable[[np.random.Generator, int], Any]] = {
    f.__name__: f
    for f in (
        one_column,
        dice,
        three_values,
        redundant,
        copies,
        almost_constant,
        heavy_tails,
        mixed,
        missing,
    )
}


def fresh(name: str, rng: np.random.Generator, n: int) -> Any:
    """New rows of a table: those of `copies` occur once."""
    return TABLES[name](rng, 5 * n)[::5] if name == "copies" else TABLES[name](rng, n)


def p_of_new(name: str, n: int, seed: int, n_new: int, **options: Any) -> tuple[np.ndarray, int]:
    """Fit n rows, and return the p-values (n_new,) of new rows and the number of calibration rows."""
    from lapae import LaplacianAutoencoder

    rng = np.random.default_rng([seed, n])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LaplacianAutoencoder(random_state=seed, **options).fit(TABLES[name](rng, n))
        return model.p_value(fresh(name, rng, n_new)), len(model.reference_)


def most(alpha: float, held: Sequence[int], n_new: int, chance: float = 1e-3) -> float:
    """Share of p <= alpha among new rows that valid p-values exceed with probability `chance`.

    In one fit with n of `held` calibration rows the count is beta-binomial; the mean over fits is taken as normal, with
    half a count to spare.
    """
    from scipy.stats import norm

    n, fits = np.array(held), len(held)
    mean = np.floor(alpha * (n + 1) + 1e-9) / (n + 1)
    variance = mean * (1 - mean) / n_new * (1 + (n_new - 1) / (n + 2))
    spread = norm.isf(chance) * np.sqrt(variance.mean() / fits)
    return float(mean.mean() + spread + 0.5 / (n_new * fits) + 1e-9)


def cell(name: str, n: int, fits: int, n_new: int, first: int = 0, **options: Any) -> dict[str, Any]:
    """Shares of p <= alpha over several fits, and what they may be at most."""
    found = [p_of_new(name, n, seed, n_new, **options) for seed in range(first, first + fits)]
    held = [k for _, k in found]  # some rows of `missing` have no value, and are left out
    p = np.concatenate([p for p, _ in found])
    out: dict[str, Any] = {"table": name, "rows": n, "held": min(held), "fits": fits}
    for alpha in ALPHAS:
        out[f"{alpha}"] = float(np.nanmean(p <= alpha))
        out[f"most {alpha}"] = most(alpha, held, n_new)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=20)
    parser.add_argument("--new", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="first of the seeds, one for each fit")
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 60, 200, 1000, 3000])
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    given = parser.parse_args()
    print("| table | rows | calibration rows | p <= 0.05 | at most | p <= 0.2 | at most | s |")
    print("|---|---|---|---|---|---|---|---|")
    for name in given.tables:
        for n in given.sizes:
            began = time.monotonic()
            try:
                out = cell(name, n, given.fits, given.new, given.first)
            except ValueError as error:  # refused
                print(f"| {name} | {n} | {error} |", flush=True)
                continue
            shares = " | ".join(f"{out[f'{a}']:.3f} | {out[f'most {a}']:.3f}" for a in ALPHAS)
            wrong = any(out[f"{a}"] > out[f"most {a}"] for a in ALPHAS)
            seconds = time.monotonic() - began
            print(f"| {name} | {n} | {out['held']} | {shares} | {seconds:.0f}{' VOID' if wrong else ''} |", flush=True)


if __name__ == "__main__":
    main()
