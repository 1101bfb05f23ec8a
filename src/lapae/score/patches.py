"""Anomaly score of feature maps: how unusual each position is, compared with the same position in other images.

At every position the features of n training images have a mean m and a covariance S (PaDiM, Defard et al. 2021), with a
ridge, as there may be fewer images than features. The squared Mahalanobis distance of features x at position j is

    d²_j = gᵀ S_j⁻¹ g,    g = x - m_j

A training image is measured with itself left out, in closed form (Sherman and Morrison). With u its own features at
position j minus m_j, w its weight there, c the sum of weights, t = w / (c - w) and b = t c / (c - 1),

    v = g + t u,    d²_j = (c - 1 - w) / (c - 1) · (vᵀS⁻¹v + b (vᵀS⁻¹u)² / (1 - b uᵀS⁻¹u))

so that all images serve for calibration: the others are to an image that is left out what all of them are to a new one.
(Unlike split conformal prediction this is not exact for few images: see the measurements in benchmarks/defects.md.)

A training image gets less weight at positions where it is unusual when left out, so that defects in training images are
not learned: if d² is above the 90 % quantile of a position, the weight is quantile / d². This is decided for each
position separately, as images may differ more at some positions than at others.

The score of an image is the mean of log d² over its three most unusual positions of 28x28, smoothed.

Shapes: n images, maps x (n, h, w, D).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

RIDGE = 0.3
"""Share of the mean variance of a feature at a position that is added to every variance."""
OLD_REACH = 1
"""Positions to each side that features may have come from, in models saved without `reach`, which used the smallest
distance. On surfaces this cost more than it gained on objects whose position varies."""
SMOOTH = 3
"""Side of the square of positions that log d² is averaged over."""
TOP = 256
"""The score of an image is the mean over its most unusual positions, one in this number."""
FAR = 0.9
"""Quantile of log d² at a position above which training images get less weight."""
ROUNDS = 2
"""Number of times that weights are computed from distances, and distances from weights."""
AT_ONCE = 64
"""Number of images measured at a time, to limit memory."""
OLD_TOP = 100
"""TOP of older models, which left positions out instead of weighting them, and did not compare neighbours."""
QUANTILES = 4096
TINY = 1e-12


@dataclass(frozen=True)
class PatchDistances:
    """Distances of features from those of training images at the same position.

    Attributes:
        mean: m, (h, w, D).
        factor: inverse L of the lower Cholesky factor of S, |L g|² = d², (h, w, D, D).
        kept: weights of the training images in m and S, from 0 to 1, (n, h, w); booleans in older models.
        usual: quantiles of log d² of the training images, each left out in turn, increasing, (Q,).
        reach: positions to each side that features may have come from, (); see `OLD_REACH`.
    """

    mean: Tensor
    factor: Tensor
    kept: Tensor
    usual: Tensor
    reach: Tensor | None = None

    @classmethod
    def fit(cls, maps: Tensor) -> PatchDistances:
        """Fit to the feature maps of training images (n, h, w, D), at least 3."""
        own = torch.arange(len(maps), device=maps.device)
        found = cls._of(maps, maps.new_ones(maps.shape[:3]))
        for _ in range(ROUNDS):
            left_out = found(maps, own)
            far = left_out.flatten(1).quantile(FAR, dim=0).reshape(left_out.shape[1:])
            found = cls._of(maps, (far - left_out).clamp_max(0).exp())
        known = found(maps, own).flatten().double().sort().values
        places = torch.linspace(0, len(known) - 1, QUANTILES, dtype=torch.float64, device=known.device).round().long()
        return replace(found, usual=known[places])

    @classmethod
    def _of(cls, maps: Tensor, weight: Tensor) -> PatchDistances:
        """Compute means and covariances of maps (n, h, w, D) with weights (n, h, w)."""
        _, h, w, d = maps.shape
        count = weight.sum(0)
        mean = (maps * weight[..., None]).sum(0) / count[..., None]
        factor, eye = maps.new_empty(h, w, d, d), torch.eye(d).to(maps)
        ridge = RIDGE * maps.var(0).mean().clamp_min(TINY)
        for row in range(h):  # one row of positions at a time, to limit memory
            gap = ((maps[:, row] - mean[row]) * weight[:, row, :, None].sqrt()).movedim(0, 1)
            covariance = gap.transpose(1, 2) @ gap / (count[row, :, None, None] - 1) + ridge * eye
            lower = torch.linalg.cholesky(covariance)
            factor[row] = torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)
        return cls(mean, factor, weight, mean.new_empty(0), torch.zeros((), dtype=torch.long))

    def distances(self, maps: Tensor, own: Tensor | None = None) -> Tensor:
        """Return log d² (B, h, w) of maps (B, h, w, D); `own` (B,) as in `__call__`."""
        places = torch.full((len(maps),), -1, device=maps.device) if own is None else own.to(maps.device)
        parts = zip(maps.split(AT_ONCE), places.split(AT_ONCE), strict=True)
        return torch.cat([self._some(part, at) for part, at in parts])

    def _some(self, maps: Tensor, own: Tensor) -> Tensor:
        h, w = self.mean.shape[:2]
        reach = 0 if self._old else OLD_REACH if self.reach is None else int(self.reach)
        inside = own >= 0
        member = maps[inside]
        weight = self.kept[own[inside]].to(maps.dtype)
        count = self.kept.sum(0).to(maps.dtype).clamp_min(3.0)
        columns = torch.arange(w, device=maps.device)
        rows = [self._whitened(member[:, i], i, columns) for i in range(h)]  # u at every position
        out = maps.new_empty(maps.shape[:3])
        for i in range(h):
            best = maps.new_full((w, len(maps)), torch.inf)
            for row in range(max(i - reach, 0), min(i + reach, h - 1) + 1):
                for shift in range(-reach, reach + 1):
                    at = (columns + shift).clamp(0, w - 1)
                    g = self._whitened(maps[:, i], row, at)
                    square = g.square().sum(2)
                    if len(member):
                        u, n, wt = rows[row][at], count[row, at][:, None], weight[:, row, at].T
                        square[:, inside] = _left_out(g[:, inside], u, wt, n)
                    best = torch.minimum(best, square)
            out[:, i] = best.T
        return (out + TINY).log()

    def _whitened(self, x: Tensor, row: int, columns: Tensor) -> Tensor:
        """Return L (x - m) for features x (B, w, D) at positions in a row (w,): (w, B, D)."""
        gap = (x - self.mean[row, columns]).movedim(0, 1)
        return gap @ self.factor[row, columns].transpose(1, 2)

    @property
    def _old(self) -> bool:
        return self.kept.dtype == torch.bool

    def of_images(self, maps: Tensor, own: Tensor | None = None) -> Tensor:
        """Return the anomaly scores (B,) of images from their maps (B, h, w, D); `own` (B,) as in `__call__`."""
        return self.top(self(maps, own))

    def top(self, found: Tensor) -> Tensor:
        """Return the anomaly scores (B,) of images from the result of `__call__` at their positions (B, h, w)."""
        flat = found.flatten(1)
        return flat.topk(max(1, flat.shape[1] // (OLD_TOP if self._old else TOP)), 1).values.mean(1)

    def __call__(self, maps: Tensor, own: Tensor | None = None) -> Tensor:
        """Return how unusual each position of maps (B, h, w, D) is, (B, h, w): log d², smoothed.

        Args:
            maps: feature maps.
            own: their indices among the training images, below 0 for other images, (B,); default: none of them is one.
        """
        return avg_pool2d(self.distances(maps, own)[:, None], SMOOTH, 1, SMOOTH // 2, count_include_pad=False)[:, 0]

    def p_values(self, found: Tensor) -> Tensor:
        """Return p-values of the result of `__call__`, (B, h, w).

        On average over new normal images, about a share p of the positions of an image, or less, has a p-value up to p:
        the bound of conformal risk control (Angelopoulos et al. 2024), with left-out images in place of held-out ones.
        """
        share = 1 - torch.searchsorted(self.usual, found.double().contiguous()) / len(self.usual)
        n = len(self.kept)
        return (1 + n * share) / (n + 1)


def _left_out(g: Tensor, u: Tensor, weight: Tensor, count: Tensor) -> Tensor:
    """Return d² (w, B) of training images, each left out of m and S.

    Args:
        g: L (x - m) of their features x, (w, B, D).
        u: the same for the features that m and S were computed from, (w, B, D).
        weight: their weights there, (w, B).
        count: sums of weights, (w, 1).
    """
    away = weight / (count - weight)
    size = u.square().sum(2)
    v = g + away[:, :, None] * u
    pull = away * count / (count - 1)
    more = pull * (v * u).sum(2).square() / (1 - pull * size).clamp_min(1e-4)
    return (count - 1 - weight) / (count - 1) * (v.square().sum(2) + more)


def to_pixels(found: Tensor, size: tuple[int, int]) -> Tensor:
    """Return values of positions (B, h, w) as values of pixels (B, H, W)."""
    return interpolate(found[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
