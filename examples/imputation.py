"""Impute the missing values of a table, with intervals: python examples/imputation.py OUT

A tenth of the cells of scikit-learn's breast cancer table is hidden. KNNImputer and the mean of a column give a number
for each; the autoencoder also gives an interval, of which one can check what it promises.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lapae import LaplacianAutoencoder

SHOWN = ("mean texture", "mean area", "mean smoothness", "worst concavity")
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def compare(x: np.ndarray, incomplete: np.ndarray, best: np.ndarray) -> dict[str, float]:
    """Root mean square error of the hidden cells, in standard deviations of their columns."""
    missing = np.isnan(incomplete)
    neighbours = make_pipeline(StandardScaler(), KNNImputer()).fit(incomplete)
    scaler = neighbours[0]
    filled = {
        "LaplacianAutoencoder": best,
        "KNNImputer": scaler.inverse_transform(neighbours.transform(incomplete)),
        "mean of the column": SimpleImputer().fit_transform(incomplete),
    }
    gaps = {name: ((found - x) / scaler.scale_)[missing] for name, found in filled.items()}
    return {name: float(np.sqrt(np.mean(gap**2))) for name, gap in gaps.items()}


def covered(x: np.ndarray, draws: np.ndarray, missing: np.ndarray, level: float) -> float:
    """Share of the hidden cells within the central interval of the completions."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return float(np.mean(((x >= low) & (x <= high))[missing]))


def draw(x: np.ndarray, draws: np.ndarray, best: np.ndarray, missing: np.ndarray, names: list[str]) -> Figure:
    """Hidden values against their guesses, with 90 % intervals; and what intervals of other levels hold."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    panels = figure.subplot_mosaic([[*SHOWN[:2], "coverage"], [*SHOWN[2:], "coverage"]], width_ratios=[1, 1, 1.2])
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    for name in SHOWN:
        column = names.index(name)
        rows = np.flatnonzero(missing[:, column])
        truth, guess = x[rows, column], best[rows, column]
        ends = np.stack([guess - low[rows, column], high[rows, column] - guess]).clip(0)
        inside = (truth >= low[rows, column]) & (truth <= high[rows, column])
        axes = panels[name]
        for chosen, colour in ((inside, "C0"), (~inside, "C3")):
            axes.errorbar(truth[chosen], guess[chosen], ends[:, chosen], fmt="o", ms=3, lw=0.7, color=colour)
        axes.axline((truth.mean(), truth.mean()), slope=1, color="0.7", linewidth=1, zorder=0)
        axes.set(title=f"{name}: {inside.mean():.0%} inside", xlabel="hidden value", ylabel="guess, 90 % interval")
    axes = panels["coverage"]
    axes.plot([0.45, 1], [0.45, 1], color="0.7", linewidth=1)
    axes.plot(LEVELS, [covered(x, draws, missing, level) for level in LEVELS], "o-")
    axes.set(xlabel="level of the interval", ylabel="share of all hidden values inside", title="do intervals hold?")
    axes.set(xlim=(0.45, 1), ylim=(0.45, 1), aspect="equal")
    return figure


def main(out: Path) -> None:
    """Hide, learn, fill in, print, draw."""
    table = load_breast_cancer()
    x, names = table.data, [str(name) for name in table.feature_names]
    missing = np.random.default_rng(0).random(x.shape) < 0.1
    incomplete = np.where(missing, np.nan, x)

    model = LaplacianAutoencoder(latent_dim=8, random_state=0).fit(incomplete)
    best = model.impute(incomplete)
    draws = model.impute(incomplete, n_samples=100)

    for name, error in compare(x, incomplete, best).items():
        print(f"{name:<22} error {error:.3f} standard deviations")
    print(f"90 % intervals hold {covered(x, draws, missing, 0.9):.1%} of the {missing.sum()} hidden values")
    draw(x, draws, best, missing, names).savefig(out / "intervals.png", dpi=120)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]))
