"""Parts of the anomaly score of a series, window by window.

| part    | question                                                                  | unusual if     |
|---------|---------------------------------------------------------------------------|----------------|
| error   | how badly is the window reconstructed, in units of the noise?             | large          |
| texture | is the residual fine grain, or structure the model does not know?         | large or small |
| detail  | does it have as much detail as windows with its code?                     | large or small |
| shape   | is there a training window of its shape, whatever its level?              | large          |
| sensors | do channels have the level and slope the others imply, and their detail?  | large          |

The first three are those of images (`lapae.score.images`). The distance of the shape is that to the nearest training
window, with the mean over the window subtracted from each channel: levels drift, shapes recur. The last part exists for
several channels, and sums the results of `lapae.score.channels`.

Overlapping held-out windows contain little independent information: among fifty that are four steps apart, only three
or four do not overlap, so that their spread is hardly known. Standard deviations are therefore estimated from training
windows as well, each compared only with windows that share no step with it; means are those of held-out windows, as
training windows are reconstructed better. As even all of these windows are few, the score is the sum of -log p of t
distributions, up to a constant (so that an extreme value in one part does not drown out the others):

    score = s(max(e, e')) + s(|texture|) + s(|detail|) + s(shape) + s(sensors)
    s(t) = (ν + 1) / 2 log(1 + max(t, 0)² / ν)

where texture and detail are decorrelated, e is the error and e' the error given them, each in standard deviations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.predict.rows import evenly
from lapae.score.images import TWO_SIDED

PARTS = ("error", "texture", "detail", "shape", "sensors")
TWO = TWO_SIDED[:2]
"""Parts whose small values are as unusual as large ones."""
FREEDOM = 30
"""Degrees of freedom ν."""
FLOOR = 1e-4
"""Mean squared distance that counts as zero, in units of the variance of a channel."""
LEAST_SCALE = 1e-6
"""Standard deviation below which a channel counts as constant, as a share of the largest."""
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
            As `__call__`, (R,), infinite if there are none.
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
    """Return -log p of t, up to a constant; 0 for values below the mean."""
    return (FREEDOM + 1) / 2 * torch.log1p(t.clamp_min(0).square() / FREEDOM)
