"""One number that says how unusual a datum is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.predict.prediction import Prediction
from lapae.predict.spread import Spread


@dataclass(frozen=True)
class Surprise:
    """Interim: mean of standardised log residual energy and log distance to the nearest training codes."""

    spread: Spread
    mean: Tensor
    scale: Tensor

    def parts(self, found: Prediction, x: Tensor) -> Tensor:
        """(B, 2)."""
        assert found.x_mean is not None
        ratio = ((x - found.x_mean) / self.spread.noise).square().flatten(1)
        energy = (ratio.nanmean(1) + 1e-12).log()
        return torch.stack([energy, self.spread.knowledge(found, x)[:, 2]], 1)

    def __call__(self, found: Prediction, x: Tensor) -> Tensor:
        """(B,), higher is more unusual."""
        return ((self.parts(found, x) - self.mean) / self.scale).mean(1)


def fit_surprise(known: Prediction, train: Tensor, found: Prediction, valid: Tensor, spread: Spread) -> Surprise:
    """From predictions of training and of held-out data."""
    start = Surprise(spread, torch.zeros(2), torch.ones(2))
    parts = start.parts(found, valid)
    return Surprise(spread, parts.mean(0), parts.std(0).clamp_min(1e-9))
