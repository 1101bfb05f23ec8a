"""Parts of the anomaly score of a series, window by window.

| part    | question                                                                  | unusual if     |
|---------|---------------------------------------------------------------------------|----------------|
| error   | how badly is the window reproduced, in units of the noise?                | large          |
| texture | is what is left over fine grain, or structure the model does not know?    | large or small |
| detail  | does it have the detail of windows with its code?                         | large or small |
| shape   | is there a training window of its shape, whatever its level?              | large          |
| sensors | have channels the level and slope that the others say, and their detail? | large          |

The first three are those of images (`lapae.score.images`). The distance of the shape is that to the nearest training
window, each channel minus its mean over the window: levels creep, shapes come back. The last part is asked of several
channels, and sums what `lapae.score.channels` finds for each.

Held-out windows are few where they overlap: fifty that are four steps apart hold three or four that do not, and their
spread is hardly known. So standard deviations are those of training windows too, of which each is compared with those
alone that share no step with it; means are of held-out windows, as training windows are reproduced better. As even all
of them are few, the score is the sum of -log p of t distributions, up to a constant (a fault far out in one part does
not drown what the others say):

    score = s(max(e, e')) + s(|texture|) + s(|detail|) + s(shape) + s(sensors)
    s(t) = (ν + 1) / 2 log(1 + max(t, 0)² / ν)

with texture and detail decorrelated, e the error and e' the error given them, each in standard deviations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.predict.rows import evenly
from lapae.score.images import TWO_SIDED

PARTS = ("error", "texture", "detail", "shape", "sensors")
TWO = TWO_SIDED[:2]
"""Parts of which small values are as unusual as large ones."""
FREEDOM = 30
"""Degrees of freedom ν."""
FLOOR = 1e-4
"""Mean squared distance that counts as none, in units of the variance of a channel."""
LEAST_SCALE = 1e-6
"""Standard deviation of a channel below which it stands still, as a share of the largest."""
MOST_VALUES = 2**21
"""Maximum number of values of training windows to keep."""


@dataclass(frozen=True)
class Shapes:
    """Training windows without their levels.

    Attributes:
        rows: windows of J channels in units of `scale`, minus their means over time, (R, T * J).
        scale: standard deviation of each channel, (J,).
    """

    rows: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, rows: Tensor) -> Shapes:
        """Keep training windows (R, T, J) with nothing missing."""
        scale = rows.flatten(0, 1).std(0, correction=0)
        scale = torch.where(scale > LEAST_SCALE * scale.max(), scale, 1.0)
        kept = evenly(rows, max(1, MOST_VALUES // rows[0].numel()))
        return cls(without_level(kept, scale), scale)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compare windows x (B, T, J) with the nearest training window.

        Returns:
            The log of the mean squared distance (B,), and squared distances of values (B, T * J).
        """
        flat = without_level(x, self.scale)
        near = self._square(flat).argmin(1)
        gap = (flat - self.rows[near]).square()
        return (gap.mean(1) + FLOOR).log(), gap

    def left_out(self, x: Tensor, apart: int) -> Tensor:
        """Compare the training windows themselves, (R, T, J), with those at least `apart` places away.

        Returns:
            As `__call__`, (R,), infinite where there are none.
        """
        flat = without_level(x, self.scale)
        share = len(self.rows) / len(flat)  # of the windows that are kept
        place = share * torch.arange(len(flat))[:, None]
        near = (place - torch.arange(len(self.rows))).abs() < max(1.0, share * apart)
        least = self._square(flat).masked_fill(near, torch.inf).amin(1)
        return (least.clamp_min(0) / flat.shape[1] + FLOOR).log()

    def _square(self, flat: Tensor) -> Tensor:
        """Return squared distances (B, R)."""
        square = self.rows.square().sum(1) - 2 * flat @ self.rows.T
        return square + flat.square().sum(1, keepdim=True)


def without_level(x: Tensor, scale: Tensor) -> Tensor:
    """Return windows x (B, T, J), each channel minus its mean and in units of scale (J,): (B, T * J)."""
    return ((x - x.mean(1, keepdim=True)) / scale).flatten(1)


def weights(gap: Tensor, whiten: Tensor) -> Tensor:
    """Return what each part adds to the score, (B, P), at least 0.

    Args:
        gap: parts (B, P) minus their mean.
        whiten: made by `lapae.score.images.standardising`, (P + 3, P).
    """
    t = gap @ whiten.T
    n = len(TWO)
    error = torch.maximum(t[:, n], t[:, n + 1])[:, None]
    return surprise(torch.cat([error, t[:, :n].abs(), t[:, n + 1 + len(PARTS[:3]) :]], 1))


def surprise(t: Tensor) -> Tensor:
    """Return -log p of t, up to a constant, 0 for what is below the mean."""
    return (FREEDOM + 1) / 2 * torch.log1p(t.clamp_min(0).square() / FREEDOM)
