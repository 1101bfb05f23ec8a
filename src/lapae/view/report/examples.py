"""Reconstructions of test data to look at: some at random, and the most uncertain."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lapae.data import Data
from lapae.model import Model
from lapae.predict import predict
from lapae.runs.numbers import number
from lapae.tasks.base import subset, tensor
from lapae.view.describe import label
from lapae.view.display import Display, cards


def test_data(data: Data, model: Model, n: int, seed: int) -> np.ndarray:
    """Indices of test data to look for examples in: fewer where data are large."""
    most = max(n * 2, 2**19 // max(int(np.prod(model.shape)), 1))
    return subset(data.test, min(most, 512), seed)


def examples(
    model: Model, data: Data, display: Display, index: np.ndarray, *, n: int, n_samples: int, seed: int
) -> list[dict[str, Any]]:
    """Groups of reconstructions: some at random, and those of the largest deviation."""
    if not len(index):
        return []
    x = tensor(model, data.test, index)
    found = predict(model.method, x.nan_to_num(0.0), n_samples=n_samples, seed=seed, want=("codes", "outputs"))
    assert found.x_mean is not None
    assert found.x_var is not None
    assert found.x_noise is not None
    deviation = (found.x_var + found.x_noise if found.x_learned else found.x_var).sqrt()
    total = deviation.flatten(1).sum(1)
    n = n if display.kind == "image" else max(2, n // 3)
    some = np.sort(np.random.default_rng(seed).permutation(len(x))[:n])
    most = torch.argsort(total, descending=True)[: max(2, n // 2)].numpy()
    chosen = np.concatenate([some, most])
    made = cards(model, display, x[chosen], found.x_mean[chosen], deviation[chosen])
    for card, i in zip(made, chosen, strict=True):
        card |= {"label": label(data, data.test, int(index[i])), "total": number(float(total[i]), 3)}
    groups = [{"title": "at random", "cards": made[: len(some)]}]
    if float(total.max()) > 0:
        groups.append({"title": "the most uncertain of " + f"{len(x):,}", "cards": made[len(some) :]})
    return groups
