"""Anomaly detection in series, step by step, beside the usual detectors.

    python benchmarks/series.py --data FOLDER [--only lapae …] [--window 64] [--judged] [--out results.json]
    python benchmarks/series.py --generated 1 --judged
    python benchmarks/series.py --data FOLDER --streams
    python benchmarks/series.py --data FOLDER --draw SMAP_A-2 --figure telemetry.png

FOLDER holds series, NAME.npz with train (T, C), test (T, C) and label (T,) of test, 1 inside an anomaly. Every method
learns `train`, in units of its standard deviation, by windows of one length, and gives each step of `test` the mean
score of the windows that hold it; with --judged, the peers get no columns that are 0 or 1 in every step of `train`
(commands), unless all are. Two figures per series: the AUROC of steps, and VUS-PR (Paparrizos et al. 2022), the
area under precision and recall with labels that reach 0 to 100 steps beyond the anomaly, averaged.

The peers: an isolation forest; PCA, T² + Q (the squared distance in the components that hold 90 % of the variance and
outside them, each over its mean); the mean distance to the five nearest training windows; and the autoencoder of TSB-AD
(128-64-128, ReLU, windows of 100 steps).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from generated_series import KINDS, Series
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from lapae.calibrate.conformal import p_values

if TYPE_CHECKING:
    from lapae.calibrate.steps import StepScores
    from lapae.model import Model

RATE = 0.05
REACH = 100
"""Steps up to which labels reach beyond an anomaly."""
THRESHOLDS = 250


def vus_pr(label: np.ndarray, score: np.ndarray, reach: int = REACH) -> float:
    """Return the volume under the surface of precision and recall of scores (T,), labels (T,) reaching out 0 to
    `reach` steps."""
    bounds = np.flatnonzero(np.diff(np.concatenate([[0], label.astype(int), [0]])))
    spans = [(int(first), int(last) - 1) for first, last in bounds.reshape(-1, 2)]
    n, at = len(label), np.linspace(0, len(label) - 1, THRESHOLDS).astype(int)
    threshold = np.sort(score)[::-1][at]
    order = np.argsort(-score, kind="stable")
    n_found = np.searchsorted(-score[order], -threshold, side="right")
    inside = label > 0
    volume = []
    for width in range(reach + 1):
        weight = inside.astype(float)
        half, joined = width // 2, []
        for first, last in spans:
            after, before = np.arange(last + 1, min(last + half + 1, n)), np.arange(max(first - half, 0), first)
            weight[after] += np.sqrt(1 - (after - last) / max(width, 1))
            weight[before] += np.sqrt(1 - (first - before) / max(width, 1))
            if joined and joined[-1][1] >= first - half:
                joined[-1] = (joined[-1][0], min(last + half, n - 1))
            else:
                joined.append((max(first - half, 0), min(last + half, n - 1)))
        weight = weight.clip(max=1)
        hit = np.cumsum(weight[order])[n_found - 1]
        outside = np.cumsum(np.where(inside, 0, weight)[order])[n_found - 1]
        most = np.array([score[first : last + 1].max() for first, last in joined])
        exists = (most[:, None] >= threshold).mean(0)
        size = (inside.sum() + inside.sum() + outside) / 2
        recall = np.minimum(hit / size, 1) * exists
        volume.append(np.diff(recall, prepend=0) @ (hit / n_found))
    return float(np.mean(volume))


def windows(x: np.ndarray, length: int) -> np.ndarray:
    """Return all windows (n, length, C) of a series (T, C)."""
    return sliding_window_view(x, length, axis=0).swapaxes(1, 2)


def folded(score: np.ndarray, n_steps: int) -> np.ndarray:
    """Return the mean (T,) of the scores (n,) of the windows that hold each step."""
    length = n_steps - len(score) + 1
    total, count = (np.convolve(x, np.ones(length)) for x in (score, np.ones(len(score))))
    return total / count


def forest(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    return -IsolationForest(random_state=seed).fit(train).score_samples(test)


def pca(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    fitted = PCA(0.9 if train.std() else 1, svd_solver="full").fit(train)  # of a constant there is no share

    def energies(x: np.ndarray) -> np.ndarray:
        z = fitted.transform(x)
        return np.stack(
            [(z**2 / fitted.explained_variance_.clip(1e-9)).sum(1), ((x - fitted.inverse_transform(z)) ** 2).sum(1)]
        )

    return (energies(test) / energies(train).mean(1, keepdims=True).clip(1e-9)).sum(0)


def neighbours(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    return NearestNeighbors(n_neighbors=5, algorithm="brute").fit(train).kneighbors(test)[0].mean(1)


def autoencoder(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    torch.manual_seed(seed)
    x, d = torch.from_numpy(train), train.shape[1]
    sizes = [(d, 128), (128, 64), (64, 128), (128, d)]
    layers = [module for a, b in sizes for module in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    net = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-5)
    for _ in range(30):
        for part in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            (net(x[part]) - x[part]).square().mean().backward()
            optimizer.step()
    with torch.no_grad():
        y = torch.from_numpy(test)
        return (net(y) - y).square().sum(1).sqrt().numpy()


PEERS: dict[str, tuple[Callable[[np.ndarray, np.ndarray, int], np.ndarray], int | None]] = {
    "forest": (forest, None),
    "pca": (pca, None),
    "knn": (neighbours, None),
    "autoencoder": (autoencoder, 100),
}
"""Detectors of windows, and their length if it is not that of all."""


def by_peer(name: str, train: np.ndarray, test: np.ndarray, length: int, seed: int) -> np.ndarray:
    """Score the steps of `test` (T, C): (T,)."""
    score, own = PEERS[name]
    scale = train.std(0)
    mean, scale = train.mean(0), np.where(scale > 1e-6, scale, 1)
    flat = [windows((x - mean) / scale, own or length).astype(np.float32) for x in (train, test)]
    return folded(score(flat[0].reshape(len(flat[0]), -1), flat[1].reshape(len(flat[1]), -1), seed), len(test))


def trained(train: np.ndarray, length: int, seed: int) -> Model:
    """Return the model of a run with default options, of windows as far apart as by default."""
    from lapae.config import Config, TrainConfig
    from lapae.data import Data
    from lapae.fit import fit

    return fit(Config(train=TrainConfig(seed=seed, verbose=False)), Data.of(train, window=length))


def by_steps(model: Model, test: np.ndarray) -> StepScores:
    """Judge the steps of `test` (T, C), as `lapae score` does."""
    from lapae.calibrate.steps import StepScores

    length, rule = model.space.shape[0], model.step_rule(RATE)
    windows, first = model.space.windows(test.astype(np.float64))

    def judged() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for part in np.array_split(np.arange(len(first)), -(-len(first) // 500)):
            found = model.judge(windows[part], reasons=True)
            assert found.contribution is not None
            yield first[part], found.anomaly_score, found.contribution

    steps = StepScores.of(len(test), judged(), rule, model.threshold(rule, overlap=length))
    assert steps is not None
    return steps


def by_lapae(train: np.ndarray, test: np.ndarray, length: int, seed: int) -> np.ndarray:
    """Score the steps of `test` (T, C): (T,)."""
    return by_steps(trained(train, length, seed), test).anomaly_score


def streams(files: list[Path], length: int, seed: int) -> None:
    """Print what is flagged of the steps that are no anomalies, nor within a window of one."""
    from lapae.calibrate.adaptive import SPAN

    for file in files:
        train, test, label = opened(file)
        model = trained(train, length, seed)
        rule, threshold = model.step_rule(RATE), model.threshold(model.step_rule(RATE), overlap=length)
        near = np.convolve(label, np.ones(2 * length + 1), "same") > 0
        score = by_steps(model, test).anomaly_score[~near]
        found = [threshold.update(value) for value in score.tolist()]
        flagged, drift = (np.array([getattr(step, name) for step in found]) for name in ("flagged", "drift"))
        free = np.convolve(drift, np.ones(SPAN), "valid") == 0
        most = np.convolve(flagged, np.ones(SPAN), "valid")[free].max() / SPAN if free.any() else np.nan
        told = f"p_value {(p_values(score, rule.held_out) <= RATE).mean():.3f} p_adaptive {flagged.mean():.3f}"
        print(f"{file.stem:<12} {told} alarm {drift.mean():.3f} most {most:.3f}", flush=True)


def draw(file: Path, out: Path, length: int, seed: int) -> None:
    """Draw the first sensor of a series, its score, what is flagged and what is labelled."""
    import matplotlib.pyplot as plt

    train, test, label = opened(file)
    steps = by_steps(trained(train, length, seed), test)
    figure, axes = plt.subplots(3, 1, figsize=(9, 5), sharex=True, height_ratios=[3, 3, 1], layout="constrained")
    axes[0].plot(test[:, 0], linewidth=0.4, color="0.3")
    axes[0].set_ylabel("sensor")
    axes[1].plot(steps.anomaly_score, linewidth=0.8, color="tab:blue")
    axes[1].set_ylabel("anomaly score")
    rows = {"labelled": label > 0, "p_value": steps.p_value <= RATE, "p_adaptive": steps.p_adaptive <= RATE}
    rows["drift"] = steps.drift
    axes[2].imshow(np.stack([*rows.values()]), aspect="auto", cmap="Reds", vmin=0, vmax=1.3, interpolation="nearest")
    axes[2].set_yticks(range(len(rows)), [*rows])
    axes[2].set_xlabel("step")
    figure.savefig(out, dpi=110)
    plt.close(figure)


def opened(file: Path) -> Series:
    """Return the series of a file."""
    with np.load(file) as arrays:
        return arrays["train"], arrays["test"], arrays["label"]


def chosen(files: list[Path], n_draws: int) -> Iterator[tuple[str, Callable[[], Series]]]:
    """Yield names and series: those of files, then so many draws of each generated kind."""
    for file in files:
        yield file.stem, partial(opened, file)
    for kind, drawn in KINDS.items():
        for seed in range(n_draws):
            yield f"{kind}-{seed}", partial(drawn, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--data", type=Path, help="folder of NAME.npz")
    where.add_argument("--generated", type=int, help="draws of each kind of generated series, see generated_series.py")
    parser.add_argument("--only", nargs="*", choices=["lapae", *PEERS], default=["lapae", *PEERS])
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judged", action="store_true", help="give peers no commands")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--streams", action="store_true", help="tell what is flagged of normal steps, in place of figures"
    )
    parser.add_argument("--draw", help="NAME of a series to draw into --figure instead")
    parser.add_argument("--figure", type=Path, default=Path("telemetry.png"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    files = sorted(options.data.glob("*.npz")) if options.data else []
    if not files and not options.generated:
        parser.error(f"{options.data}: expected files NAME.npz, found none")
    if options.draw:
        return draw(options.data / f"{options.draw}.npz", options.figure, options.window, options.seed)
    if options.streams:
        return streams(files, options.window, options.seed)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in options.only}
    for stem, read in chosen(files, options.generated or 0):
        train, test, label = read()
        for name, of_name in found.items():
            began = time.perf_counter()
            if name == "lapae":
                score = by_lapae(train, test, options.window, options.seed)
            else:
                sensors = ~np.isin(train, (0, 1)).all(0)
                seen = sensors if options.judged and sensors.any() else slice(None)
                score = by_peer(name, train[:, seen], test[:, seen], options.window, options.seed)
            seconds = time.perf_counter() - began
            of_name[stem] = [float(roc_auc_score(label, score)), vus_pr(label, score), seconds]
            print(f"{stem:<12} {name:<12} AUROC {of_name[stem][0]:.3f} VUS-PR {of_name[stem][1]:.3f}")
    for name, of_name in found.items():
        values = np.array(list(of_name.values()))
        auroc, volume = values[:, :2].mean(0)
        print(f"mean {name:<12} AUROC {auroc:.3f} VUS-PR {volume:.3f}, at most {values[:, 2].max():.1f} s per series")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
