"""Rows with columns of every kind."""

from __future__ import annotations

import numpy as np
import pandas as pd


def people(n: int, seed: int) -> pd.DataFrame:
    """A table with columns of every kind; one row in five has missing values."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    height = rng.normal(170, 10, n)
    frame = pd.DataFrame(
        {
            "id": [f"u{i}" for i in range(n)],
            "age": age,
            "height": height,
            "weight": 0.5 * height + 0.1 * age + 3 * rng.normal(size=n),
            "city": rng.choice(["Ulm", "Bonn", "Köln"], n),
            "member": rng.random(n) < 0.4,
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365, n), unit="D"),
        }
    )
    for column in ("height", "weight", "city", "day"):
        frame.loc[rng.random(n) < 0.05, column] = None
    return frame
