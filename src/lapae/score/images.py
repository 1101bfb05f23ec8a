"""Parts of the anomaly score of an image or an array, whose values are all of one kind; some serve series, too.

| part     | question                                                               | unusual if        |
|----------|------------------------------------------------------------------------|-------------------|
| error    | how badly is it reconstructed, in units of the noise?                  | large             |
| texture  | is the residual fine grain, or structure the model does not know?      | large or small    |
| detail   | does it have as much detail as samples with its code?                  | large or small    |
| distance | is its code near those of training samples?                            | large             |
| colour   | does it have the colour of samples with its code? (colour images only) | large or small    |
| region   | does each region have its usual detail? (images only)                  | small in one      |

All but distance and region are logarithms of energies, minus their mean over the training samples with the nearest
codes. The detail of a series is computed for each channel and averaged, so that a single stuck sensor, which has no
detail, is noticed. `lapae.score.series` describes the other parts for series, and how they are combined.

Each question is answered by a p-value, as if parts of held-out samples were normally distributed, and the score is the
sum of -log p (Fisher's combination):

    score = |t|² / 2 + tail(max(e, e', r)) + tail(d),    tail(t) = -log P(normal > t)

where t is texture, detail and colour, decorrelated (|t|² / 2 is -log p of two normal numbers), e the error, e' the
error given them, r the region and d the distance, each in units of its standard deviation. Error, region and distance
are one-sided: only large values are unusual.

A small error is not unusual by itself: training samples have one, and so have simple images. A blank, faint or blurred
image has a small error *and* no detail, and is recognised by the missing detail. An error that is large for an image
with this much detail is unusual even if other images have a larger one.

A mask or a smooth patch that covers part of an image is reconstructed well and changes the whole image little; the
region part detects it. It is the greatest lack of detail in a square of an eighth of the side, in standard deviations
of the log detail of the same square in training samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from lapae.predict.deviation import Deviation, nearest, squared_distances
from lapae.predict.prediction import Prediction
from lapae.score.whitening import TINY

PARTS = ("error", "texture", "detail", "distance", "colour", "region")
TWO_SIDED = (1, 2, 4)
"""Parts whose small values are as unusual as large ones."""
CLOSE = 5
"""Number of nearest training codes to which the distance of a code is measured."""
COPY = 1e-10
"""Squared distance up to which two codes are considered equal."""
GRAY = 1e-6
"""Squared distance of a channel from the mean of all channels, up to which a pixel is gray: a quarter of the step
between two bytes."""
REGIONS, LEAST_SIDE = 8, 16
"""Number of regions along the shorter side of an image, each overlapping half of the next, and the smallest side for
which regions are used."""
LEAST_SPREAD = 0.1
"""Smallest standard deviation of the log detail of a region; that of a region that is always blank would be 0."""
FLOOR = 1e-3
"""Share of the median energy of training samples that is added to energies, so that the log of an energy of 0 is
unusual but finite."""


@dataclass(frozen=True)
class ImageParts:
    """Error, texture, detail and distance of samples, relative to those of training samples.

    Attributes:
        codes: training codes in units of their standard deviation, (R, K).
        floor: added to the energies of error, differences of residuals and residuals, and to that of the colour of
            colour images, (3,) or (4,).
        channel_floor: added to the detail of each channel of a series; one number otherwise, (G,).
        usual: mean of the logarithm of that detail, (G,).
        levels: parts of the training samples except the distance, (R, 3) or (R, 4).
        regions: floor, mean and standard deviation of the log detail of regions, (3, h, w); None without regions.
    """

    codes: Tensor
    floor: Tensor
    channel_floor: Tensor
    usual: Tensor
    levels: Tensor
    regions: Tensor | None = None

    @classmethod
    def fit(cls, rows: Tensor, known: Prediction, deviation: Deviation) -> ImageParts:
        """Fit to training samples.

        Args:
            rows: training samples (R, *features), NaN where missing.
            known: their predictions.
            deviation: standard deviations of residuals.
        """
        gap = (rows - known.x_mean).nan_to_num()
        full = torch.where(rows.isnan(), known.x_mean, rows)
        energies = [(gap / deviation.noise).square().flatten(1).mean(1)]
        energies += [value.flatten(1).sum(1) for value in (steps(gap), gap.square())]
        if colourful(rows):
            energies.append(hue(full).flatten(1).sum(1))
        floor = FLOOR * torch.stack([energy.median() for energy in energies]) + TINY
        detail = by_channel(steps(full))
        channel_floor = FLOOR * detail.median(0).values + TINY
        usual = (detail + channel_floor).log().mean(0)
        codes = known.z_mean.flatten(1) / deviation.width
        blank = cls(codes, floor, channel_floor, usual, floor)
        levels = blank.energies(gap, full, deviation)[0]
        return cls(codes, floor, channel_floor, usual, levels, regions_of(full))

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self.floor) + (1 if self.regions is None else 2)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""
        return PARTS[: len(self.floor) + 1] + (() if self.regions is None else PARTS[-1:])

    @property
    def two_sided(self) -> tuple[int, ...]:
        """Parts whose small values are as unusual as large ones."""
        return tuple(i for i in TWO_SIDED if i <= len(self.floor))

    def parts(
        self, found: Prediction, x: Tensor, deviation: Deviation, n: int, apart: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Measure samples.

        Args:
            found: predictions of x.
            x: samples (B, *features).
            deviation: standard deviations of residuals.
            n: number of parts.
            apart: if x are the training samples themselves, the number of places from which on others count as
                neighbours; for n = 3.

        Returns:
            The first n parts (B, n), and the shares (B, n, D) of values in them.
        """
        full = torch.where(x.isnan(), found.x_mean, x)
        values, shares = self.energies(full - found.x_mean, full, deviation)
        squares = squared_distances(found.z_mean.flatten(1) / deviation.width, self.codes)
        if apart is not None:
            place = torch.arange(len(x))
            squares = squares.masked_fill((place[:, None] - place).abs() < apart, torch.inf)
        square, near = nearest(squares)
        if apart is None:
            values = values - self.levels[near].mean(1)
        else:
            known = square.isfinite().to(values.dtype)[:, :, None]
            values = values - (known * self.levels[near]).sum(1) / known.sum(1)  # NaN if there is no neighbour
        if n < 4:
            return values, shares
        copies = square[:, :CLOSE].isinf()  # if there are too few others
        distance = torch.where(copies, COPY, square[:, :CLOSE]).log().mean(1)
        order = [0, 1, 2, 0, *range(3, values.shape[1])]
        values, shares = torch.cat([values[:, :3], distance[:, None], values[:, 3:]], 1), shares[:, order]
        if self.regions is None:
            return values, shares
        lack = self._lacking(full)
        at = interpolate(lack.clamp_min(0).square()[:, None], size=x.shape[2:], mode="bilinear", align_corners=False)
        of_region = shared(at.expand_as(x).flatten(1))[:, None]
        return torch.cat([values, lack.flatten(1).amax(1, keepdim=True)], 1), torch.cat([shares, of_region], 1)

    def _lacking(self, x: Tensor) -> Tensor:
        """Return by how much less detail than usual the regions of images x (B, C, H, W) have, (B, h, w)."""
        assert self.regions is not None
        floor, mean, spread = self.regions
        return (mean - (detail_at(x) + floor).log()) / spread

    def energies(self, gap: Tensor, x: Tensor, deviation: Deviation) -> tuple[Tensor, Tensor]:
        """Measure error, texture and detail of samples.

        Args:
            gap: residuals (B, *features).
            x: samples (B, *features).
            deviation: standard deviations of residuals.

        Returns:
            All parts except the distance (B, 3) or (B, 4), and the shares (B, 3, D) or (B, 4, D) of values in them.
        """
        error = (gap / deviation.noise).square().flatten(1)
        rough, fine = steps(gap).flatten(1), steps(x)
        size = gap.square().flatten(1).sum(1)
        detail = (by_channel(fine) + self.channel_floor).log()
        values = [
            (error.mean(1) + self.floor[0]).log(),
            (rough.sum(1) + self.floor[1]).log() - (size + self.floor[2]).log(),
            detail.mean(1),
        ]
        of_parts = [shared(error), shared(rough), self._detailed(fine, detail)]
        if len(self.floor) > 3:
            colour = hue(x).flatten(1)
            values.append((colour.sum(1) + self.floor[3]).log())
            of_parts.append(shared(colour))
        return torch.stack(values, 1), torch.stack(of_parts, 1)

    def _detailed(self, fine: Tensor, detail: Tensor) -> Tensor:
        """Return shares (B, D) of values in the detail; channels of a series by how unusual theirs (B, G) is."""
        if detail.shape[1] == 1:
            return shared(fine.flatten(1))
        within = (fine + TINY) / (fine + TINY).sum(1, keepdim=True)
        return (within * shared((detail - self.usual).square())[:, None]).flatten(1)


def standardising(values: Tensor, two_sided: tuple[int, ...] = TWO_SIDED) -> Tensor:
    """Fit the matrix (Q + 1 + P, P) that maps centred parts of held-out samples (n, P) to unit variance.

    Its rows are the Q two-sided parts, each given those before it (texture; detail given the texture; for colour
    images, colour given both); the error given all of these; then each part by itself.
    """
    gap = values - values.mean(0)
    covariance = gap.T @ gap / max(len(gap) - 1, 1)
    scale = covariance.diagonal().clamp_min(1e-8)
    order = [*(i for i in two_sided if i < values.shape[1]), 0]
    inner = covariance[order][:, order] + torch.diag(1e-4 * scale[order])
    given = values.new_zeros(len(order), values.shape[1])
    given[:, order] = torch.linalg.inv(torch.linalg.cholesky(inner))
    return torch.cat([given, torch.diag(scale.rsqrt())])


def contributions(gap: Tensor, whiten: Tensor) -> Tensor:
    """Return what each part adds to the score, (B, P), at least 0.

    Args:
        gap: parts (B, P) minus their mean.
        whiten: made by `standardising`. Models saved before it existed have a triangular (P, P) in its place: their
            score was |whiten gap|² plus the square of an excess of error.
    """
    t = gap @ whiten.T
    if len(whiten) == gap.shape[1]:
        weight = pulls(gap, whiten)
        return torch.cat([weight[:, :1] + t[:, :1].clamp_min(0).square(), weight[:, 1:]], 1)
    regional = len(whiten) == 2 * gap.shape[1] - 2
    two = [i for i in TWO_SIDED if i < gap.shape[1] - regional]
    n = len(two)  # then the error given these, the error, the distance, and the region last
    error, distance = t[:, n : n + 2].amax(1, keepdim=True), tail(t[:, n + 4 : n + 5])
    both = pulls(gap[:, two], whiten[:n, two]) / 2
    if not regional:
        return torch.cat([tail(error), both[:, :2], distance, both[:, 2:]], 1)
    most, here = tail(torch.maximum(error, t[:, -1:])), t[:, -1:] > error
    of_error, of_region = (torch.where(here == side, most, torch.zeros_like(most)) for side in (False, True))
    return torch.cat([of_error, both[:, :2], distance, both[:, 2:], of_region], 1)


def pulls(gap: Tensor, whiten: Tensor) -> Tensor:
    """Divide |whiten gap|² among parts (B, P) by how much each contributes: (B, P), at least 0."""
    t = gap @ whiten.T
    weight = (gap * (t @ whiten)).clamp_min(0)
    return weight * (t.square().sum(1) / weight.sum(1).clamp_min(TINY))[:, None]


def tail(t: Tensor) -> Tensor:
    """Return -log P(normal > t), within 0.06, with operations that every runtime has (Pollak's bound, 1956)."""
    size = t.abs()
    log = math.log(2 / math.sqrt(2 * math.pi)) - size.square() / 2 - (size + (size.square() + 8 / math.pi).sqrt()).log()
    return torch.where(t > 0, -log, -torch.log1p(-log.exp()))


def by_channel(x: Tensor) -> Tensor:
    """Sum values (B, *features): a series (B, T, C) over time, other data over all features, (B, G)."""
    return x.sum(1) if x.ndim == 3 else x.flatten(1).sum(1, keepdim=True)


def steps(x: Tensor) -> Tensor:
    """Return squared differences of neighbours along the axes of an image, or time, half to each: (B, *features)."""
    axes = range(2, x.ndim) if x.ndim > 3 else range(1, 2)
    total = torch.zeros_like(x)
    for axis in axes:
        half = 0.5 * x.diff(dim=axis).square()
        edge = torch.zeros_like(x.narrow(axis, 0, 1))
        total = total + torch.cat([half, edge], axis) + torch.cat([edge, half], axis)
    return total


def detail_at(x: Tensor) -> Tensor:
    """Return the mean squared difference of neighbours in regions of images x (B, C, H, W), (B, h, w)."""
    side = max(3, min(x.shape[2:]) // REGIONS)
    return avg_pool2d(steps(x).mean(1, keepdim=True), side, side // 2)[:, 0]


def regions_of(x: Tensor) -> Tensor | None:
    """Return floor, mean and standard deviation of the log detail of regions, (3, h, w), over training samples x; None
    if these are not images, or are small."""
    if x.ndim != 4 or min(x.shape[2:]) < LEAST_SIDE:
        return None
    detail = detail_at(x)
    floor = (FLOOR * detail.mean() + TINY).expand_as(detail[0])
    level = (detail + floor).log()
    return torch.stack([floor, level.mean(0), level.std(0).clamp_min(LEAST_SPREAD)])


def colourful(x: Tensor) -> bool:
    """Whether samples x (B, *features) are images with three channels and some of them are not gray."""
    return x.ndim == 4 and x.shape[1] == 3 and bool((hue(x.nan_to_num()) > GRAY).any())


def hue(x: Tensor) -> Tensor:
    """Return squared differences of the channels of images x (B, 3, H, W) from their mean."""
    return (x - x.mean(1, keepdim=True)).square()


def shared(x: Tensor) -> Tensor:
    """Return the non-negative parts of x (B, D) as shares of their sum."""
    x = x.clamp_min(0)
    return (x + TINY) / (x + TINY).sum(1, keepdim=True)
