"""Images with red over what is unusual."""

from __future__ import annotations

import numpy as np

from lapae.model import Model
from lapae.score.explain import explain

HELD, RARE, FULL = 200, 0.999, 4.0
"""Held-out images that say how unusual a pixel is, the share of their pixels that stay below a level, and how many
times that level is full red. In an image that is more unusual, half of its most unusual pixel is."""
COMMON = 0.95
"""Share of normal positions of feature maps that are not red at all."""
RED = np.array([220.0, 20.0, 30.0])
SEEN_THROUGH = 0.7
"""How much of a pixel is red at most, with features: they are coarse, and the surface beneath is to be seen."""


class Reddening:
    """How red pixels are, from 0 to 1, by how unusual they are among those of normal images."""

    def __init__(self, model: Model) -> None:
        assert model.calibration is not None
        patches = model.calibration.score.patches
        self.features = patches is not None
        if patches is not None:
            self.low, self.high = (float(patches.usual[int(len(patches.usual) * share)]) for share in (COMMON, RARE))
            return
        rows = model.calibration.reference.rows[:HELD]
        found = explain(model.calibration.score, model.predict, rows).mean(1)
        self.low, self.high = 0.0, FULL * (float(np.quantile(found.nan_to_num().numpy(), RARE)) + 1e-12)

    def __call__(self, unusual: np.ndarray) -> np.ndarray:
        """Return how red the pixels of an image are, by how unusual they are, (H, W)."""
        high = self.high if self.features else max(self.high, float(unusual.max()) / 2)
        red = np.clip((unusual - self.low) / max(high - self.low, 1e-12), 0, 1)
        return SEEN_THROUGH * red if self.features else red


def overlay(image: np.ndarray, red: np.ndarray) -> np.ndarray:
    """Return an image (H, W, C) of bytes with `red` (H, W), full at 1, over it: (H, W, 3) of bytes."""
    share = red[..., None]
    return np.clip(image * (1 - share) + RED * share, 0, 255).astype(np.uint8)
