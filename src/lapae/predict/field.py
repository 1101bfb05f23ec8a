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

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lapae.predict.prediction import Prediction
from lapae.predict.spread import Spread
from lapae.predict.whitening import TINY

PARTS = ("error", "texture", "detail", "distance")
NEAR_CODES = 30
"""Training data with the nearest codes that a datum is compared with."""
CLOSE = 5
"""Of them, those that its distance is measured to."""
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
        assert known.x_mean is not None
        assert known.z_mean is not None
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
        assert found.x_mean is not None
        full = torch.where(x.isnan(), found.x_mean, x)
        values, shares = self.energies(full - found.x_mean, full, spread)
        square, near = self.nearest(found, spread)
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

    def nearest(self, found: Prediction, spread: Spread) -> tuple[Tensor, Tensor]:
        """Squared distances and indices (B, k) of the nearest codes; one that is the datum's own is left out."""
        assert found.z_mean is not None
        z, codes = found.z_mean.flatten(1) / spread.width, self.codes
        k = max(1, min(NEAR_CODES, max(5, len(codes) // 10), len(codes) - 1))
        square = (codes.square().sum(1) - 2 * z @ codes.T + z.square().sum(1, keepdim=True)).clamp_min(0)
        square = torch.where(square <= 1e-10, torch.inf, square)
        found_square, index = square.topk(k, largest=False)
        return found_square, index

    def tensors(self) -> dict[str, Tensor]:
        """What to save."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


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
