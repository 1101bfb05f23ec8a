"""Reconstruction errors, feature by feature, compared with PCA with as many components as the code has."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.networks.principal import principal_components
from lapae.runs.numbers import number
from lapae.view.display import Display, channel_names
from lapae.view.named_splits import GIVEN, WORDS, NamedSplits
from lapae.view.pictures import amounts, data_url, shrink
from lapae.view.verdicts import Verdicts

SHOWN = 30
"""Number of columns shown at once; the others can be unfolded."""


def reconstruction(verdicts: Verdicts, splits: NamedSplits, display: Display, seed: int) -> dict[str, Any]:
    """Measure errors on samples that training has not seen, if there are any.

    Unusual samples among new data are left out, and PCA is fitted to the calibration samples of the model: one gross
    error would dominate the variance, and a PCA of the new data would have learned it.
    """
    part = splits.held_out("test", "calibration", "validation")
    given, out = _some(splits, part, verdicts, seed), 0
    if part == splits.main:
        usual = verdicts.scores(given)[1] > verdicts.rate
        given, out = (given[usual], int((~usual).sum())) if usual.any() else (given, 0)
        train = verdicts.calibration.reference.rows.to(verdicts.model.tensor(given[:1]).dtype)
    else:
        train = verdicts.model.tensor(_some(splits, splits.main, verdicts, seed))
    held_out = verdicts.model.tensor(given)
    k = min(int(np.prod(verdicts.model.code_shape)), train[0].numel(), max(1, len(train) - 1))
    center = train.nanmean(0).nan_to_num(0.0)
    left, _ = verdicts.errors(given)
    errors = {"ours": torch.from_numpy(left), "pca": held_out - by_pca(train, held_out, center, k)}
    total = (held_out - center).square().nansum()
    explained = {name: 1 - float(error.square().nansum() / total.clamp_min(1e-300)) for name, error in errors.items()}
    metrics = verdicts.model.metrics
    if part != GIVEN and metrics.get("explained_by_pca") is not None:  # what training said: one figure for one thing
        explained = {"ours": metrics["explained"], "pca": metrics["explained_by_pca"]}
    return {
        "n": len(held_out),
        "left_out": out,
        "among": WORDS[part],
        "k": k,
        "explained": {name: f"{100 * share:.0f} %" for name, share in explained.items()},
        "verdict": _verdict(explained["ours"], explained["pca"], k),
        **_by_value(verdicts, display, held_out, errors),
    }


def by_pca(train: Tensor, x: Tensor, center: Tensor, k: int) -> Tensor:
    """Reconstruct x (n, *shape) by the first k principal axes of training data; missing values count as the mean."""
    axes = principal_components(torch.where(train.isnan(), center, train), k).vectors.to(x.dtype)
    return center + ((x - center).nan_to_num(0.0).flatten(1) @ axes @ axes.T).reshape(x.shape)


def _some(splits: NamedSplits, part: str, verdicts: Verdicts, seed: int) -> np.ndarray:
    split = splits.parts[part]
    return np.asarray(split.x[verdicts.some(split, seed)])


def _verdict(ours: float, pca: float, k: int) -> str:
    codes = f"PCA with {k} component{'s' if k > 1 else ''}"
    if ours >= pca + 0.005:
        return f"The model explains {100 * ours:.0f} % of the variance, {codes} {100 * pca:.0f} %."
    if ours > pca - 0.005:
        return f"The model explains as much of the variance as {codes}: {100 * ours:.0f} %."
    return (
        f"{codes} explains more of the variance ({100 * pca:.0f} %) than the model ({100 * max(ours, 0):.0f} %): "
        "train it longer, or give it a larger network or code."
    )


def _by_value(verdicts: Verdicts, display: Display, x: Tensor, errors: dict[str, Tensor]) -> dict[str, Any]:
    """Root mean square error of each pixel, channel or column; for categories, the share of wrong ones."""
    space = verdicts.model.space
    if display.kind == "image":
        rms = {name: error.square().nanmean(0).nan_to_num(0.0).sqrt() for name, error in errors.items()}
        maps = {name: shrink(error[None], 128) for name, error in rms.items()}
        top = max(float(error.mean(1).max()) for error in maps.values())
        return {
            "maps": {name: data_url(amounts(error, top)[0], colours=True) for name, error in maps.items()},
            "top": number(top * space.most, 3),
        }
    truth, ours, pca = (space.to_user(v.double().numpy()) for v in (x, x - errors["ours"], x - errors["pca"]))
    if display.channels:
        truth, ours, pca = (v.reshape(-1, v.shape[-1]) for v in (truth, ours, pca))
        names = list(channel_names(space))
    else:
        truth, ours, pca = (v.reshape(len(v), -1) for v in (truth, ours, pca))
        names = list(display.names)
    words = np.array([not display.channels and display.is_word(j) for j in range(len(names))])
    found = [_columns(words, truth, guess) for guess in (ours, pca, _best_constant(words, truth))]
    order = np.argsort(-np.divide(found[0], found[2], out=np.zeros_like(found[0]), where=found[2] > 0), kind="stable")
    rows = [_row(names[j], bool(words[j]), *(float(error[j]) for error in found)) for j in order]
    top = max([100.0, *(row["width"] for row in rows)])
    for row in rows:
        row["width"], row["pca_at"] = round(100 * row["width"] / top, 1), round(100 * min(row["pca_at"] / top, 1), 1)
    return {"columns": rows[:SHOWN], "more": rows[SHOWN:], "whole": round(1e4 / top, 1), "words": bool(words.any())}


def _columns(words: np.ndarray, truth: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Error (F,) of guesses (n, F) in each column, without missing values."""
    known = ~np.isnan(truth)
    n = np.maximum(known.sum(0), 1)
    square = np.sqrt(np.where(known, np.square(guess - truth), 0.0).sum(0) / n)
    return np.where(words, np.where(known, guess != truth, False).sum(0) / n, square)


def _best_constant(words: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Mean, or most frequent category, of each column: what a model that has learned nothing would predict."""
    best = np.zeros(truth.shape[1])
    for j in range(truth.shape[1]):
        known = truth[~np.isnan(truth[:, j]), j]
        if len(known):
            values, counts = np.unique(known, return_counts=True)
            best[j] = values[counts.argmax()] if words[j] else known.mean()
    return np.broadcast_to(best, truth.shape)


def _row(name: str, word: bool, ours: float, pca: float, spread: float) -> dict[str, Any]:
    def text(error: float) -> str:
        return f"{100 * error:.0f} %" if word else number(error, 3, spread or None)

    share = 100 / spread if spread > 0 else 0.0
    found = {"name": name, "ours": text(ours), "pca": text(pca), "spread": text(spread)}
    return found | {"width": ours * share, "pca_at": pca * share}
