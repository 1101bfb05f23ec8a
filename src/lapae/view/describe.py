"""What a run is, in words: titles, one line about it, and the labels of its data."""

from __future__ import annotations

from typing import Any

import numpy as np

from lapae.data import Data, Split
from lapae.model import Model


def summary(model: Model, data: Data) -> str:
    """What was trained on what, in a line."""
    config = model.config
    what = "images" if data.kind == "image" else "rows" if data.kind == "table" else "arrays"
    shape = " × ".join(map(str, model.shape))
    epochs = f", trained for {model.metrics['epochs']} epochs" if "epochs" in model.metrics else ""
    codes = f"codes of {config.model.latent_dim} dimension{'s' if config.model.latent_dim > 1 else ''}"
    return f"{len(data.train):,} {what} of {shape}; {codes}, network {config.model.network}{epochs}."


def labelings(data: Data, index: np.ndarray) -> list[dict[str, Any]]:
    """Ways to colour the data: by class, or by one attribute at a time."""
    if data.train.y is None:
        return []
    y = np.asarray(data.train.y)[index]
    if y.ndim == 1:
        names = list(data.label_names or [])
        names += [str(i) for i in range(len(names), int(y.max(initial=0)) + 1)]
        return [{"name": "class", "names": names, "values": y.astype(int).tolist()}]
    titles = data.label_names or [f"attribute {a + 1}" for a in range(y.shape[1])]
    return [
        {"name": title, "names": [f"not {title}", title], "values": y[:, a].astype(int).tolist()}
        for a, title in enumerate(titles)
    ]


def label(data: Data, split: Split, i: int) -> str | None:
    """The class of datum i of a split, by its name where it has one."""
    if split.y is None or split.y.ndim != 1:
        return None
    value = int(split.y[i])
    names = data.label_names
    return names[value] if names is not None and 0 <= value < len(names) else str(value)
