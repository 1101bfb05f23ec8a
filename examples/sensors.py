"""Find faults in the readings of a simulated pump: python examples/sensors.py OUT

Windows of six sensors (a daily rhythm, inertia, noise); four weeks without faults to learn from, two for the threshold,
and one with three faults. They leave every reading within its usual range: what is unusual is how readings go together.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score

from lapae import LaplacianAutoencoder
from lapae.data.pump import DAY, SENSORS, break_it, pump

LENGTH = 24  # windows of two hours


def windows(x: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows (n, LENGTH, 6) and the time at which each ends."""
    starts = np.arange(0, len(x) - LENGTH + 1, step)
    return sliding_window_view(x, LENGTH, axis=0).transpose(0, 2, 1)[starts], starts + LENGTH - 1


def draw(x: np.ndarray, faults: dict[str, slice], end: np.ndarray, unusual: np.ndarray, threshold: float) -> Figure:
    """The readings and the score below them, faults shaded."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    panels = figure.subplots(7, 1, sharex=True, height_ratios=[1] * 6 + [2.2])
    for axes, name, column in zip(panels, (*SENSORS, ""), (*x.T, unusual), strict=True):
        for span in faults.values():
            axes.axvspan(span.start / DAY, span.stop / DAY, color="C1", alpha=0.25, linewidth=0)
        if name:
            axes.plot(np.arange(len(x)) / DAY, column, linewidth=0.6, color="0.25")
            axes.set_ylabel(name, rotation=0, ha="right", va="center")
            axes.set_yticks([])
        else:
            axes.plot(end / DAY, column, linewidth=0.9)
    below = panels[-1]
    label = "1 % of the windows of two other normal weeks lie above"
    below.axhline(threshold, color="C3", linewidth=0.9, linestyle="--", label=label)
    for name, span in faults.items():
        below.text((span.start + span.stop) / 2 / DAY, 1.02, name, transform=below.get_xaxis_transform(), ha="center")
    below.set(xlabel="day", ylabel="anomaly score", xlim=(0, len(x) / DAY))
    below.legend(loc="upper right", fontsize=8)
    return figure


def main(out: Path) -> None:
    """Learn, score, print, draw."""
    rng = np.random.default_rng(0)
    train, normal = (windows(pump(days, rng), 8)[0] for days in (28, 14))
    readings = pump(7, rng)
    faults = break_it(readings)
    test, end = windows(readings, 2)
    model = LaplacianAutoencoder(latent_dim=8, epochs=40, n_samples=20, random_state=0).fit(train)
    threshold = float(np.percentile(-model.score_samples(normal), 99))
    unusual = -model.score_samples(test)

    broken = np.zeros(len(readings), bool)
    for name, span in faults.items():
        broken[span] = True
        inside = (end >= span.start + LENGTH // 2) & (end < span.stop)
        print(f"{name:<18} {np.mean(unusual[inside] > threshold):4.0%} of its windows are above the threshold")
    touched = broken[end[:, None] - np.arange(LENGTH)].any(1)
    forest = IsolationForest(random_state=0).fit(train.reshape(len(train), -1))
    aurocs = [roc_auc_score(touched, s) for s in (unusual, -forest.score_samples(test.reshape(len(test), -1)))]
    print(f"false alarms {np.mean(unusual[~touched] > threshold):.1%}")
    print("AUROC {:.3f}, of an isolation forest {:.3f}".format(*aurocs))
    draw(readings, faults, end, unusual, threshold).savefig(out / "sensors.png", dpi=120)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]))
