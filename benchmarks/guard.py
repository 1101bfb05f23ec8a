"""Does a change of structure leave every number as it was? Seven reference models, saved by one commit, read by others.

    python benchmarks/guard.py make FOLDER      # train and save them, and what they say of new rows
    python benchmarks/guard.py check FOLDER     # load them: equal to the bit; train them again: equal to 1e-6

A refactoring commit runs `check` on a folder that was made before it (in a worktree of that commit, with PYTHONPATH to
its src). The models: a table with and without missing values, a mixed frame, digits, small images with convolutions, a
series, and a network of one's own.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lapae import LaplacianAutoencoder

N, N_NEW = 240, 40
HOW: dict[str, Any] = {"random_state": 0, "device": "cpu", "epochs": 3}


def table(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal((n, 2)) @ np.array([[1, 2, 0, 1, -1], [0, 1, 1, -2, 3.0]]) + 0.3 * rng.standard_normal(
        (n, 5)
    )


def incomplete(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(rng.random((n, 5)) < 0.15, np.nan, table(rng, n))


def mixed(rng: np.random.Generator, n: int) -> Any:
    import pandas as pd

    kind = rng.choice(["a", "b", "c"], n)
    size = np.select([kind == "a", kind == "b"], [1.0, 3.0], 6.0) + rng.standard_normal(n)
    frame = pd.DataFrame({"kind": kind, "size": size, "count": rng.poisson(np.abs(size)), "old": rng.random(n) < 0.4})
    frame.loc[rng.random(n) < 0.1, "size"] = np.nan
    return frame


def digits(rng: np.random.Generator, n: int) -> np.ndarray:
    from sklearn.datasets import load_digits

    return (load_digits().images / 16).astype(np.float32)[rng.permutation(1797)[:n]]


def images(rng: np.random.Generator, n: int) -> np.ndarray:
    place = rng.integers(2, 14, (n, 2))
    x = 0.05 * rng.random((n, 16, 16))
    for one, (i, j) in zip(x, place, strict=True):
        one[i - 2 : i + 2, j - 2 : j + 2] += 0.8
    return x.astype(np.float32)


def series(rng: np.random.Generator, n: int) -> np.ndarray:
    t = np.arange(12)[None, :, None] + rng.uniform(0, 12, (n, 1, 1))
    return 3 * np.sin(t / 2 + np.arange(3)) + 0.2 * rng.standard_normal((n, 12, 3))


def own() -> dict[str, Any]:
    torch.manual_seed(0)
    return {"network": (nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)), nn.Linear(2, 5))}


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "table": (table, {}),
    "incomplete": (incomplete, {}),
    "mixed": (mixed, {}),
    "digits": (digits, {}),
    "images": (images, {"network": "conv"}),
    "series": (series, {"method": "posthoc"}),
    "own": (table, {"own": True}),
}


def numbers(model: LaplacianAutoencoder, new: Any) -> dict[str, np.ndarray]:
    """Return what a model says of new rows, by name."""

    def flat(value: Any) -> np.ndarray:
        value = np.asarray(value)
        if value.dtype != object:
            return value
        words = {word: float(i) for i, word in enumerate("abc")}
        return np.vectorize(lambda cell: words.get(cell, cell), otypes=[float])(value)

    z, z_std = model.transform(new, return_std=True)
    x, x_std = model.reconstruct(new, return_std=True)
    out = {"score": model.score_samples(new), "p": model.p_value(new), "z": z, "z_std": z_std, "x": x, "x_std": x_std}
    out["low"], out["high"] = model.predict_interval(new, level=0.9)
    out["explain"], out["sample"] = model.explain(new), model.sample(8)
    if not isinstance(new, np.ndarray):
        lacking = new.copy()
        lacking.loc[lacking.index[::3], "size"] = np.nan
    else:
        lacking = np.array(new, copy=True)
        lacking[::3].reshape(len(lacking[::3]), -1)[:, :2] = np.nan
    out["p_lacking"] = model.p_value(lacking)
    out["impute"], out["completions"] = (
        model.impute(lacking),
        np.stack([flat(v) for v in model.impute(lacking, n_samples=2)]),
    )
    out["missing_low"], out["missing_high"] = model.impute_interval(lacking)
    return {name: flat(value) for name, value in out.items()}


def trained(name: str) -> tuple[LaplacianAutoencoder, Any]:
    """Fit one of the models, and make new rows for it."""
    make, options = MODELS[name]
    options = {**HOW, **(own() if options.get("own") else options)}
    rng = np.random.default_rng(0)
    return LaplacianAutoencoder(**options).fit(make(rng, N)), make(rng, N_NEW)


def compare(name: str, what: str, found: dict[str, np.ndarray], path: Path, most: float) -> bool:
    """Print where numbers differ from those saved, by more than `most` of their greatest; return whether none does."""
    good = True
    with np.load(path) as saved:
        for key in saved.files:
            a, b = saved[key].astype(float), found[key].astype(float)
            same = a.shape == b.shape and np.array_equal(np.isnan(a), np.isnan(b))
            gap = (
                np.nanmax(np.abs(a - b), initial=0.0) / (np.nanmax(np.abs(a), initial=0.0) + 1e-300) if same else np.inf
            )
            if gap > most:
                good = False
                print(f"{name}, {what}: {key} differs by {gap:.2g}", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["make", "check"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--no-train", action="store_true", help="check saved models alone")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    good = True
    for name in MODELS:
        run, path = given.folder / name, given.folder / f"{name}.npz"
        load = {"network": own()["network"]} if name == "own" else {}
        if given.do == "make":
            model, new = trained(name)
            model.save(run)
            np.savez(given.folder / f"{name}.trained.npz", **numbers(model, new))
            np.savez(path, **numbers(LaplacianAutoencoder.load(run, **load), new))
            continue
        new = MODELS[name][0](rng := np.random.default_rng(0), N)
        new = MODELS[name][0](rng, N_NEW)
        good &= compare(name, "saved", numbers(LaplacianAutoencoder.load(run, **load), new), path, 0.0)
        if not given.no_train:
            model, new = trained(name)
            good &= compare(name, "trained", numbers(model, new), given.folder / f"{name}.trained.npz", 1e-6)
    print("done" if given.do == "make" else "equal" if good else "NOT EQUAL")
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
