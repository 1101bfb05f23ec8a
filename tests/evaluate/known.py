"""A model of which everything is known, and rows to judge models by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from lapae.calibrate.conformal import Rule
from lapae.data import Data, Split
from lapae.space import Space


@dataclass
class Normal:
    """Knows that all values are standard normal: exact intervals and p-values; imputes 0."""

    space: Space
    rate: float = 0.05

    @property
    def shape(self) -> tuple[int, ...]:
        return self.space.model_shape

    def interval(self, x: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        reach = np.full(x.shape, NormalDist().inv_cdf(0.5 + level / 2))
        return -reach, reach

    def anomaly_score(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        score = np.abs(x[:, 0])
        return score, 2 * norm.sf(score)

    def rule(self) -> Rule:
        return Rule(self.rate, np.zeros(100))

    def impute(self, x: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(x), 0.0, x)

    def impute_interval(self, x: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.interval(x, level)
        return np.where(np.isnan(x), low, x), np.where(np.isnan(x), high, x)


def all_to_test(x: Any, y: Any = None, names: tuple[str, ...] | None = None, space: Space | None = None) -> Data:
    """Data whose test split is x (n, F), with labels y (n,)."""
    space = space or Space("table", x.shape[1:], label_names=names)
    nothing = Split(x[:0], None)
    return Data(replace(space, label_names=names), nothing, nothing, nothing, Split(x, y))


def mixed(n: int, seed: int) -> pd.DataFrame:
    """Three columns that follow from one another, one of them of words."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    kind = np.where(z > 0.5, "large", np.where(z < -0.5, "small", "middle"))
    return pd.DataFrame(
        {"length": 100 + 10 * z + rng.normal(size=n), "width": 5 - z + 0.2 * rng.normal(size=n), "kind": kind}
    )
