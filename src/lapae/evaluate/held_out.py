"""Samples to judge a model by: held out of training, in the units of the data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lapae.errors import ConfigError

if TYPE_CHECKING:
    from lapae.data import Data
    from lapae.space import Space

PARTS = {"test": "test", "validation": "valid", "calibration": "calib"}
"""Splits to evaluate on, the best first, and their names in `Data`. Calibration samples come last: their p-values and
intervals hold by construction."""


@dataclass(frozen=True)
class HeldOut:
    """Samples on which a model is evaluated."""

    split: str
    """"test", "validation" or "calibration"."""
    x: np.ndarray
    """(n, *shape) in the units of the data; NaN is missing."""
    y: np.ndarray | None
    """(n,) classes, or (n, A) attributes; None without labels."""

    @property
    def is_new(self) -> bool:
        """Whether training and calibration have not seen them."""
        return self.split == "test"


def held_out(data: Data, limit: int | None, seed: int) -> HeldOut:
    """Return at most `limit` samples of the test split, at random; else of the validation split, with a warning.

    Args:
        data: with its splits.
        limit: maximum number of samples; None for all.
        seed: seed of the choice.
    """
    name = next((name for name, field in PARTS.items() if len(getattr(data, field))), None)
    if name is None:
        raise ConfigError("there are no held-out samples to evaluate on: give some with --data FILE")
    split = getattr(data, PARTS[name])
    if name != "test":
        warnings.warn(
            f"the run has no test samples, so it is evaluated on {len(split):,} {name} samples, which were used in its "
            "training: results are optimistic. Train with --test-fraction 0.1, or give new samples with --data FILE",
            stacklevel=2,
        )
    index = split.some(limit, seed)
    return HeldOut(name, np.asarray(split.x[index]), None if split.y is None else np.asarray(split.y)[index])


def columns_of(space: Space) -> dict[str, tuple[np.ndarray, str]]:
    """Return where each column of a table, or channel of a series, lies: {name: (indices on the last axis, kind)}.

    Images are one column, "pixels"; columns of an array without names are called by their numbers.
    """
    if space.kind == "image":
        return {"pixels": (np.arange(space.shape[-1]), "number")}
    if space.columns is not None:
        return {column.name: (np.array([i]), column.kind) for i, column in enumerate(space.columns)}
    return {str(i): (np.array([i]), "number") for i in range(space.shape[-1])}
