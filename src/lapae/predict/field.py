"""What is unusual about an image, a series or an array, whose values are all of one kind.

| part     | question                                                               |
|----------|------------------------------------------------------------------------|
| error    | how badly is it reproduced, in units of the noise?                     |
| texture  | is what is left over fine grain, or structure the model does not know? |
| detail   | does it have the detail that data with its code have?                  |
| distance | is its code near those of training data? (where nothing was trained)   |

The first three are logarithms of energies, less their mean over the training data with the nearest codes. The detail of
a series is the mean over its channels, each on its own: one sensor that is stuck has none. A network that was trained
on other data may reproduce anything: then it is the code that tells these data from others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.predict.prediction import Prediction
from lapae.predict.spread import Spread, nearest, squared_distances
from lapae.predict.whitening import TINY

PARTS = ("error", "texture", "detail", "distance")
CLOSE = 5
"""Training data with the nearest codes that the distance of a datum is measured to."""
FLOOR = 1e-3
"""Share of the median energy of training data that is added to energies: the log of nothing is far out but finite."""


@dataclass(frozen=True)
class Field:
    """What training data that are no table are like."""

    codes: Tensor
    """(R, K): their codes, in units of their deviation."""
    floor: Tensor
    """(3,): what is added to the energies of error, differences of residuals and residuals."""
    channel_floor: Tensor
    """(G,): what is added to the detail of a channel of a series; of all else there is one."""
    usual: Tensor
    """(G,): mean of the logarithm of that detail."""
    levels: Tensor
    """(R, 3): their parts."""

    @classmethod
    def of(cls, rows: Tensor, known: Prediction, spread: Spread) -> Field:
        """Of training data (R, *features), NaN where missing, with their predictions."""
        gap = (rows - known.x_mean).nan_to_num()
        full = torch.where(rows.isnan(), known.x_mean, rows)
        energies = [(gap / spread.noise).square().flatten(1).mean(1)]
        energies += [value.flatten(1).sum(1) for value in (steps(gap), gap.square())]
        floor = FLOOR * torch.stack([energy.median() for energy in energies]) + TINY
        detail = by_channel(steps(full))
        channel_floor = FLOOR * detail.median(0).values + TINY
        usual = (detail + channel_floor).log().mean(0)
        codes = known.z_mean.flatten(1) / spread.width
        blank = cls(codes, floor, channel_floor, usual, floor)
        return cls(codes, floor, channel_floor, usual, blank.energies(gap, full, spread)[0])

    def parts(self, found: Prediction, x: Tensor, spread: Spread, n: int) -> tuple[Tensor, Tensor]:
        """The first n parts (B, n) of data x (B, *features), NaN where missing, and the shares (B, n, D) of values."""
        full = torch.where(x.isnan(), found.x_mean, x)
        values, shares = self.energies(full - found.x_mean, full, spread)
        square, near = nearest(squared_distances(found.z_mean.flatten(1) / spread.width, self.codes))
        values = values - self.levels[near].mean(1)
        if n < len(PARTS):
            return values, shares
        distance = square[:, :CLOSE].log().mean(1)
        return torch.cat([values, distance[:, None]], 1), shares[:, [0, 1, 2, 0]]

    def energies(self, gap: Tensor, x: Tensor, spread: Spread) -> tuple[Tensor, Tensor]:
        """Error, texture, detail (B, 3) of data x with residuals `gap` (B, *features), and their shares (B, 3, D)."""
        error = (gap / spread.noise).square().flatten(1)
        rough, fine = steps(gap).flatten(1), steps(x)
        size = gap.square().flatten(1).sum(1)
        detail = (by_channel(fine) + self.channel_floor).log()
        values = [
            (error.mean(1) + self.floor[0]).log(),
            (rough.sum(1) + self.floor[1]).log() - (size + self.floor[2]).log(),
            detail.mean(1),
        ]
        return torch.stack(values, 1), torch.stack([shared(error), shared(rough), self._detailed(fine, detail)], 1)

    def _detailed(self, fine: Tensor, detail: Tensor) -> Tensor:
        """Shares (B, D) of values in the detail: of a series, of channels as far as theirs (B, G) is from the usual."""
        if detail.shape[1] == 1:
            return shared(fine.flatten(1))
        within = (fine + TINY) / (fine + TINY).sum(1, keepdim=True)
        return (within * shared((detail - self.usual).square())[:, None]).flatten(1)


def by_channel(x: Tensor) -> Tensor:
    """Sums (B, G) of values (B, *features): of a series (B, T, C) over time, of all else over all."""
    return x.sum(1) if x.ndim == 3 else x.flatten(1).sum(1, keepdim=True)


def steps(x: Tensor) -> Tensor:
    """Squared differences of neighbours along an image's axes, or time, half to each of the two: (B, *features)."""
    axes = range(2, x.ndim) if x.ndim > 3 else range(1, 2)
    total = torch.zeros_like(x)
    for axis in axes:
        half = 0.5 * x.diff(dim=axis).square()
        edge = torch.zeros_like(x.narrow(axis, 0, 1))
        total = total + torch.cat([half, edge], axis) + torch.cat([edge, half], axis)
    return total


def shared(x: Tensor) -> Tensor:
    """Non-negative parts of x (B, D) as shares of their sum."""
    x = x.clamp_min(0)
    return (x + TINY) / (x + TINY).sum(1, keepdim=True)
