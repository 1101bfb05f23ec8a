"""Prediction intervals where the training data end: python examples/extrapolation.py OUT

The model learns deliveries on ordinary routes; new routes are up to five times as long. Conformal calibration alone
(`method="ae"`) gives intervals that hold for ordinary routes only. The posterior of the default estimator knows where
its data end, so its intervals widen there.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lapae import LaplacianAutoencoder
from lapae.data.deliveries import deliveries

NUMBERS = ["distance", "duration", "weight", "fuel", "cost"]
FACTORS = (1, 1.5, 2, 3, 4, 5)
LEVEL = 0.9


def judge(model: LaplacianAutoencoder, new: pd.DataFrame) -> pd.DataFrame:
    """Return how far the cost and its interval are from the reconstruction, and the share of values inside, by row."""
    low, high = model.predict_interval(new, level=LEVEL)
    expected = model.reconstruct(new)["cost"]
    inside = (new[NUMBERS] >= low[NUMBERS]) & (new[NUMBERS] <= high[NUMBERS])
    return pd.DataFrame(
        {
            "distance": new["distance"],
            "error": new["cost"] - expected,
            "low": low["cost"] - expected,
            "high": high["cost"] - expected,
            "inside": inside["cost"],
            "share": inside.mean(axis=1),
        }
    )


def draw(axes: Axes, rows: pd.DataFrame, title: str, end: float) -> None:
    """Draw errors of the cost with their intervals against the length of the route."""
    colours = np.where(rows["inside"], "C0", "C3")
    axes.vlines(rows["distance"], rows["low"], rows["high"], color=colours, alpha=0.25, linewidth=1)
    axes.scatter(rows["distance"], rows["error"], s=7, color=colours, zorder=3)
    axes.axvspan(rows["distance"].min(), end, color="0.92", zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="length of the route, km (grey: 99 % of training)", title=title)


def main(out: Path) -> None:
    """Learn, compare, print, draw."""
    train = deliveries(2000, seed=0)
    end = float(train["distance"].quantile(0.99))
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    middle.sharey(left)
    left.set_ylabel("cost minus its reconstruction, EUR")
    settings = {"default": ({}, left), "without a posterior": ({"method": "ae"}, middle)}
    for name, (options, axes) in settings.items():
        model = LaplacianAutoencoder(random_state=0, **options).fit(train)
        found = {factor: judge(model, deliveries(300, seed=1, longer=factor)) for factor in FACTORS}
        share = [found[factor]["share"].mean() for factor in FACTORS]
        shares = (f"x{factor}: {value:.0%}" for factor, value in zip(FACTORS, share, strict=True))
        print(f"{name:<20}", *shares, sep="  ")
        draw(axes, pd.concat([rows.head(60) for rows in found.values()]), f"90 % intervals, {name}", end)
        right.plot(FACTORS, share, "o-", label=name)
    right.axhline(LEVEL, color="0.7", linewidth=1, zorder=0)
    right.set(xlabel="length of new routes, times that of training", title="values inside their interval")
    right.set_ylim(0, 1.02)
    right.legend(loc="lower left")
    figure.savefig(out / "extrapolation.png", dpi=110)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]))
