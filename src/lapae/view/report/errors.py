"""How well data are reconstructed, value by value, beside PCA with as many codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.runs.numbers import number
from lapae.tasks.base import subset
from lapae.view.display import Display
from lapae.view.judge import Judge
from lapae.view.material import WORDS, Material
from lapae.view.pictures import amounts, data_url, shrink

MOST_DATA, MOST_VALUES = 1000, 2**22
"""Data, and values of data, to measure on and to fit PCA to at most."""
SHOWN = 30
"""Columns in sight; the others can be unfolded."""


def reconstruction(judge: Judge, material: Material, display: Display, seed: int) -> dict[str, Any]:
    """Errors on data that training has not seen, where there are some."""
    part = material.held_out("test", "calibration", "validation")
    given = _some(material, part, judge, seed)
    train, held_out = judge.tensor(_some(material, material.main, judge, seed)), judge.tensor(given)
    k = min(int(np.prod(judge.model.code_shape)), train[0].numel(), max(1, len(train) - 1))
    center = train.nanmean(0).nan_to_num(0.0)
    left, _ = judge.errors(given)
    errors = {"ours": torch.from_numpy(left), "pca": held_out - by_pca(train, held_out, center, k)}
    total = (held_out - center).square().nansum()
    explained = {name: 1 - float(error.square().nansum() / total.clamp_min(1e-300)) for name, error in errors.items()}
    return {
        "n": len(held_out),
        "among": WORDS[part],
        "k": k,
        "explained": {name: f"{100 * share:.0f} %" for name, share in explained.items()},
        "verdict": _verdict(explained["ours"], explained["pca"], k),
        **_by_value(judge, display, held_out, errors),
    }


def by_pca(train: Tensor, x: Tensor, center: Tensor, k: int) -> Tensor:
    """Reconstructions of x (n, *shape) by the k principal axes of training data; missing values count as their mean."""
    flat = (train - center).nan_to_num(0.0).flatten(1).double()
    n, size = flat.shape
    if size <= n:
        axes = torch.linalg.eigh(flat.T @ flat).eigenvectors[:, -k:]
    else:  # from the smaller of the two products
        axes = torch.nn.functional.normalize(flat.T @ torch.linalg.eigh(flat @ flat.T).eigenvectors[:, -k:], dim=0)
    axes = axes.to(x.dtype)
    return center + ((x - center).nan_to_num(0.0).flatten(1) @ axes @ axes.T).reshape(x.shape)


def _some(material: Material, part: str, judge: Judge, seed: int) -> np.ndarray:
    split = material.parts[part]
    limit = max(50, min(MOST_DATA, MOST_VALUES // max(1, int(np.prod(judge.model.shape)))))
    return np.asarray(split.x[subset(split, limit, seed)])


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


def _by_value(judge: Judge, display: Display, x: Tensor, errors: dict[str, Tensor]) -> dict[str, Any]:
    """Root mean square error of each pixel, channel or column."""
    space = judge.model.space
    rms = {name: error.square().nanmean(0).nan_to_num(0.0).sqrt() for name, error in errors.items()}
    if display.kind == "image":
        maps = {name: shrink(error[None], 128) for name, error in rms.items()}
        top = max(float(error.mean(1).max()) for error in maps.values())
        return {
            "maps": {name: data_url(amounts(error, top)[0], colours=True) for name, error in maps.items()},
            "top": number(top * space.most, 3),
        }
    in_units = {name: space.to_user(error.double().numpy()[None], deviation=True)[0] for name, error in rms.items()}
    spread = space.to_user(x.double().numpy()).std(0) if not x.isnan().any() else np.nanstd(space.to_user(x.numpy()), 0)
    if display.channels:  # over the steps of a window
        in_units = {name: np.sqrt(np.square(error).mean(0)) for name, error in in_units.items()}
        spread = np.sqrt(np.square(spread).mean(0))
        names = [f"channel {c}" for c in range(len(spread))]
    else:
        names = [display.name(j) for j in range(spread.size)]
    ours, pca, spread = (v.reshape(-1) for v in (in_units["ours"], in_units["pca"], np.asarray(spread)))
    relative = np.divide(ours, spread, out=np.zeros_like(ours), where=spread > 0)
    order = np.argsort(-relative, kind="stable")
    top = max(1.0, float(np.max(relative, initial=0.0)))
    rows = [
        {
            "name": names[j],
            "ours": number(float(ours[j]), 3, float(spread[j])),
            "pca": number(float(pca[j]), 3, float(spread[j])),
            "spread": number(float(spread[j]), 3),
            "width": round(100 * float(relative[j]) / top, 1),
            "pca_at": round(100 * min(float(pca[j] / spread[j]) if spread[j] > 0 else 0.0, top) / top, 1),
        }
        for j in order
    ]
    return {"columns": rows[:SHOWN], "more": rows[SHOWN:], "whole": round(100 / top, 1)}
