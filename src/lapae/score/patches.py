"""Anomaly score of feature maps: how unusual each position is, among the same position of other images.

At every position the features of n training images have a mean m and a covariance S (PaDiM, Defard et al. 2021), with a
ridge, as images may be fewer than features. The squared Mahalanobis distance of an image's features there is

    d² = gᵀ S⁻¹ g,    g = x - m

An image that is one of the n is measured without itself, in closed form (Sherman and Morrison):

    d² / (1 - n d² / (n - 1)²) · (n / (n - 1))² (n - 2) / (n - 1)

so that all images calibrate: to an image left out the others are what all of them are to a new one. (Unlike split
conformal prediction this is not exact for few images: benchmarks/defects.md has what was measured.) Positions of
training images that are far out when left out are no part of m and S: defects among the training images are not
learned.
The score of an image is the mean of log d² over the most unusual hundredth of its positions.

Shapes: n images, maps x (n, h, w, D).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

RIDGE = 0.01
"""Share of the mean variance of a feature at a position that is added to every variance."""
SMOOTH = 3
"""Side of the square of positions that log d² is averaged over."""
TOP = 100
"""An image is as unusual as the most unusual hundredth of its positions."""
FAR = 3.0
"""Standard deviations (by the median absolute deviation) of log d² above its median from which a position of a training
image is left out."""
ROUNDS = 2
"""Times that positions are left out and the others fitted again."""
QUANTILES = 4096
TINY = 1e-12


@dataclass(frozen=True)
class PatchDistances:
    """Distances of features from those of training images at the same position.

    Attributes:
        mean: m, (h, w, D).
        factor: inverse L of the lower Cholesky factor of S, |L g|² = d², (h, w, D, D).
        kept: which positions of the training images m and S are made of, (n, h, w).
        usual: quantiles of log d² of the training images, each left out in turn, increasing, (Q,).
    """

    mean: Tensor
    factor: Tensor
    kept: Tensor
    usual: Tensor

    @classmethod
    def fit(cls, maps: Tensor) -> PatchDistances:
        """Fit to the feature maps of training images (n, h, w, D), at least 3."""
        kept = torch.ones(maps.shape[:3], dtype=torch.bool)
        own = torch.arange(len(maps))
        found = cls._of(maps, kept)
        for _ in range(ROUNDS):
            left_out = found.distances(maps, own)
            middle = left_out.median()
            far = left_out > middle + FAR * 1.4826 * (left_out - middle).abs().median()
            kept = ~far | (far.sum(0) > len(maps) // 2)  # where most are far, none is an exception
            found = cls._of(maps, kept)
        known = found(maps, own).flatten().double().sort().values
        places = torch.linspace(0, len(known) - 1, QUANTILES, dtype=torch.float64).round().long()
        return replace(found, usual=known[places])

    @classmethod
    def _of(cls, maps: Tensor, kept: Tensor) -> PatchDistances:
        """Take means and covariances of maps (n, h, w, D) where they are `kept` (n, h, w)."""
        _, h, w, d = maps.shape
        weight = kept.to(maps.dtype)
        count = weight.sum(0).clamp_min(3.0)
        mean = (maps * weight[..., None]).sum(0) / count[..., None]
        factor, eye = maps.new_empty(h, w, d, d), torch.eye(d, dtype=maps.dtype)
        ridge = RIDGE * maps.var(0).mean().clamp_min(TINY)
        for row in range(h):  # one row of positions at a time, for the memory
            gap = ((maps[:, row] - mean[row]) * weight[:, row, :, None]).movedim(0, 1)
            covariance = gap.transpose(1, 2) @ gap / (count[row, :, None, None] - 1) + ridge * eye
            lower = torch.linalg.cholesky(covariance)
            factor[row] = torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)
        return cls(mean, factor, kept, mean.new_empty(0))

    def distances(self, maps: Tensor, own: Tensor | None = None) -> Tensor:
        """Return log d² (B, h, w) of maps (B, h, w, D); `own` (B,) as in `__call__`."""
        rows = zip(self.factor, maps.unbind(1), self.mean, strict=True)
        square = torch.stack(
            [(factor @ (part - mean).movedim(0, -1)).square().sum(1).T for factor, part, mean in rows], 1
        )
        if own is not None:
            n = self.kept.sum(0).clamp_min(3).to(square.dtype)
            apart = square * (n / (n - 1)) ** 2 * (n - 2) / (n - 1) / (1 - square * n / (n - 1) ** 2).clamp_min(1e-4)
            inside = self.kept[own.clamp_min(0)] & (own >= 0)[:, None, None]
            square = torch.where(inside, apart, square)
        return (square + TINY).log()

    def __call__(self, maps: Tensor, own: Tensor | None = None) -> Tensor:
        """Return how unusual each position of maps (B, h, w, D) is, (B, h, w): log d², smoothed.

        Args:
            maps: feature maps.
            own: where they are among the training images, below 0 for those that are not, (B,); default none is.
        """
        return avg_pool2d(self.distances(maps, own)[:, None], SMOOTH, 1, SMOOTH // 2, count_include_pad=False)[:, 0]

    def p_values(self, found: Tensor) -> Tensor:
        """Return p-values of what `__call__` has found, (B, h, w).

        On average over new normal images about a share p of the positions of an image, or less, has a p-value up to p:
        the bound of conformal risk control (Angelopoulos et al. 2024), with images left out in place of held-out ones.
        """
        share = 1 - torch.searchsorted(self.usual, found.double().contiguous()) / len(self.usual)
        n = len(self.kept)
        return (1 + n * share) / (n + 1)


def of_image(found: Tensor) -> Tensor:
    """Return the anomaly scores (B,) of images from those of their positions (B, h, w)."""
    flat = found.flatten(1)
    return flat.topk(max(1, flat.shape[1] // TOP), 1).values.mean(1)


def to_pixels(found: Tensor, size: tuple[int, int]) -> Tensor:
    """Return values of positions (B, h, w) as values of pixels (B, H, W)."""
    return interpolate(found[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
