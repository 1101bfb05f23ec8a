"""Standard deviation of every value from its reconstruction, before one has looked at the residual.

The standard deviation of value j of row i is s_j · exp(w · f_ij). The noise s_j of a feature is that of held-out
residuals; f_ij is what the model knows about its own ignorance of this value,

    of the row:   log variance of the output and of the code over networks, log distance to the nearest training codes,
                  log size of the reconstruction, share of missing values
    of the value: log variance of the output, log residual of the training rows with the nearest codes,
                  log distance of the value from its mean

each standardised. If the posterior's variance has its natural size (covariances, linearised), it is added as it is,
and is none of f: intervals then widen where the data end. The noise widens there too, as it was learned from residuals
of rows that the model knows: with o = mean variance / mean noise² of a row, which says how open the data leave it, the
standard deviation is sqrt(noise² (1 + 2 o) + variance). The weights w maximise the likelihood of held-out residuals, as
if they were Laplace-distributed with this scale. With few rows none is below 0, as more ignorance makes no value surer:
residuals of few training rows say otherwise, small far from the others, where a network bends to each. Conformal radii
on top (`calibrate/conformal.py`) make the intervals hold whatever this model gets wrong; what it gets right makes them
narrow where the model is good and wide where it is not. A second one, fitted to values that were hidden from the
network, serves imputation.

Shapes: B rows, K latent dimensions (flattened), x is (B, *features) in the model's space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lapae.predict.prediction import Prediction, Quantity

NEIGHBOURS = 10
REFERENCES = 2000
"""Maximum number of training codes to search for neighbours: more make distances smaller for all rows alike."""
LOCAL = 30
"""Maximum number of neighbours that a row is compared with: a tenth of the references."""
KEPT = 2_000_000
"""Maximum number of residuals of references to keep."""
OWN = 5.0
"""Weight, in neighbours, of the noise of a feature in its local noise."""
RIDGE = 5.0
"""Weight, in held-out rows, of the penalty on w."""
CELLS = 200_000
"""Maximum number of values to fit w to."""
ROUNDS = 30
TINY = 1e-12
LEAST_NOISE = 0.1
"""Smallest noise of a feature as a share of that of all: one that was predicted without error may not be again."""
SHRINK = 2.0
"""Weight, in rows, of the noise of all features in that of one: few rows say little about a single feature."""
WIDEST = 3.0
"""Largest difference of the log of a standard deviation from that of its feature's noise."""
WIDENS = 2.0
"""Growth of the squared noise of a row with the mean variance of its outputs over networks. With 0, 1 and 2, 90 %
intervals of shifted rows hold 87.3, 88.7, 89.3 %, at interval scores of 2.48, 2.48, 2.50 (`benchmarks/shift.md`)."""
OF_ROW, OF_VALUE = 5, 3
SAME = 1e-10
"""Squared distance up to which two codes are of one row."""


@dataclass(frozen=True)
class Deviation:
    """Model of the standard deviation of residuals.

    Attributes:
        noise: s_j, (*features).
        codes: training codes in units of `width`, in no order, (R, K).
        width: standard deviation of the training codes, (K,).
        residuals: squared residuals of the rows of the first S codes, NaN where there is none, (S, *features).
        middle: mean log variance of a feature, and mean of its reconstructions, (2, *features).
        mean: mean of f over held-out rows, (8,).
        scale: standard deviation of f, (8,).
        weights: w, and a constant, (9,).
        adds_variance: whether the variance of the output over networks is added to that of the noise. Then it has no
            weight in w, or it would count twice.
    """

    noise: Tensor
    codes: Tensor
    width: Tensor
    residuals: Tensor
    middle: Tensor
    mean: Tensor
    scale: Tensor
    weights: Tensor
    adds_variance: bool = False

    @classmethod
    def fit(
        cls,
        known: Prediction,
        rows: Tensor,
        found: Prediction,
        x: Tensor,
        truth: Tensor,
        *,
        least: float = -math.inf,
        adds_variance: bool = False,
    ) -> Deviation:
        """Fit to held-out rows.

        Args:
            known: predictions of training rows, of which "means" are enough.
            rows: their values (R, *features), NaN where they do not count.
            found: predictions of held-out rows: "codes" and "outputs", or "means" if variances are added.
            x: these rows (n, *features) as the network saw them, NaN where missing or hidden.
            truth: their values, NaN where they do not count.
            least: lower bound of the weights.
            adds_variance: see the attribute: for posteriors whose variance has its natural size.
        """
        error = (truth - found.x_mean).abs()
        noise = feature_noise(error.square())
        codes = known.z_mean.flatten(1)
        width = codes.std(0, correction=0).clamp_min(TINY)
        chosen = torch.randperm(len(codes), generator=torch.Generator().manual_seed(0))[:REFERENCES]
        kept = chosen[: max(1, KEPT // noise.numel())]
        usual = torch.zeros_like(noise) if adds_variance else mean_log(found.x_var, error)
        middle = torch.stack([usual, found.x_mean.mean(0)])
        n = OF_ROW + OF_VALUE
        start = cls(
            noise=noise,
            codes=codes[chosen] / width,
            width=width,
            residuals=(rows - known.x_mean)[kept].square(),
            middle=middle,
            mean=noise.new_zeros(n),
            scale=noise.new_ones(n),
            weights=noise.new_zeros(n + 1),
            adds_variance=adds_variance,
        )
        counted = ~error.isnan()
        if not counted.any():
            return start
        f = start.knowledge(found, x).movedim(1, -1)[counted]
        ratio = (error / noise)[counted]
        per_row = len(ratio) / max(int(counted.flatten(1).any(1).sum()), 1)
        some = torch.randperm(len(ratio), generator=torch.Generator().manual_seed(0))[:CELLS]
        f, ratio, penalty = f[some], ratio[some], RIDGE * per_row * len(some) / len(ratio)
        mean, scale = f.mean(0), f.std(0, correction=0).clamp_min(1e-6)
        design = torch.cat([(f - mean) / scale, torch.ones_like(ratio)[:, None]], 1)
        return replace(start, mean=mean, scale=scale, weights=log_scale(design, ratio, penalty, least))

    @property
    def needs(self) -> tuple[Quantity, ...]:
        """Quantities of a prediction that it is made of."""
        return ("means", "outputs") if self.adds_variance else ("codes", "outputs")

    def knowledge(self, found: Prediction, x: Tensor) -> Tensor:
        """Return f of rows x (B, *features): (B, 8, *features), see above. Variances are 0 if they are added."""
        z = found.z_mean.flatten(1) / self.width
        square = squared_distances(z, self.codes)
        distance = smallest(square, min(NEIGHBOURS, len(self.codes)))[0].sqrt().mean(1)
        x_var, z_var = (torch.zeros_like(found.x_mean), z * 0) if self.adds_variance else (found.x_var, found.z_var)
        parts = [
            x_var.flatten(1).mean(1) + TINY,
            z_var.flatten(1).mean(1) + TINY,
            distance + 1e-6,
            found.x_mean.flatten(1).square().mean(1) + 1e-9,
        ]
        missing = x.isnan().flatten(1).to(distance.dtype).mean(1)
        of_row = torch.stack([*(part.log() for part in parts), missing], 1)
        of_row = of_row.reshape(*of_row.shape, *(1 for _ in self.noise.shape)).expand(-1, -1, *self.noise.shape)
        of_value = [
            (x_var + TINY).log() - self.middle[0],
            self.local(square[:, : len(self.residuals)]),
            ((found.x_mean - self.middle[1]).abs() / self.noise + 0.1).log(),
        ]
        return torch.cat([of_row, torch.stack(of_value, 1)], 1)

    def local(self, square: Tensor) -> Tensor:
        """Return the log of the noise (B, *features) around codes at squared distances (B, S) from the references,
        minus that of the feature."""
        near = self.residuals[nearest(square)[1]] / self.noise.square()
        known = ~near.isnan()
        return 0.5 * ((near.nan_to_num().sum(1) + OWN) / (known.sum(1) + OWN)).log()

    def __call__(self, found: Prediction, x: Tensor) -> Tensor:
        """Return the standard deviation (B, *features) of rows x (B, *features) from their predictions."""
        f = self.knowledge(found, x)
        shape = (1, -1, *(1 for _ in self.noise.shape))
        f = (f - self.mean.reshape(shape)) / self.scale.reshape(shape)
        log = (f * self.weights[:-1].reshape(shape)).sum(1) + self.weights[-1]
        noise = log.clamp(-WIDEST, WIDEST).exp() * self.noise
        if not self.adds_variance:
            return noise
        square, variance = noise.square(), found.x_var
        left_open = variance.flatten(1).mean(1) / square.flatten(1).mean(1)
        left_open = left_open.reshape(-1, *(1 for _ in self.noise.shape))
        return (square * (1 + WIDENS * left_open) + variance).sqrt()


def mean_log(variance: Tensor, error: Tensor) -> Tensor:
    """Return the mean log (*features) of variances (n, *features) of the values whose error is known, not NaN: where a
    value is seen its variance is another one. Few values are pulled to the mean of all."""
    known = ~error.isnan()
    log = torch.where(known, (variance + TINY).log(), 0.0)
    if known.all():
        return log.mean(0)
    pooled = log.sum() / known.sum().clamp_min(1)
    return (log.sum(0) + SHRINK * pooled) / (known.sum(0) + SHRINK)


def squared_distances(z: Tensor, codes: Tensor) -> Tensor:
    """Return squared distances (B, R) between z (B, K) and codes (R, K)."""
    found = torch.addmm(codes.square().sum(1), z, codes.T, alpha=-2)
    return found.add_(z.square().sum(1, keepdim=True)).clamp_min_(0)


def smallest(square: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k least of numbers (B, R), none below 0, in order, and where they are: (B, k) each.

    The bits of a positive number are ordered as the numbers are. The last ones give way to the place of the number, so
    that one partial sort finds both.
    """
    if torch.compiler.is_exporting() or square.dtype != torch.float64 or square.device.type != "cpu":
        found = square.topk(k, largest=False)
        return found.values, found.indices
    n = square.shape[1]
    last = np.int64((1 << (n - 1).bit_length()) - 1)
    packed = np.bitwise_and(square.numpy().view(np.int64), ~last)
    packed |= np.arange(n)
    if k < n:
        packed.partition(k - 1, axis=1)
    index = torch.from_numpy(np.sort(packed[:, :k], axis=1) & last)
    return square.gather(1, index), index


def nearest(square: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least of squared distances (B, R), and their indices (B, k); a row is no neighbour of itself."""
    n = square.shape[1]
    k = max(1, min(LOCAL, max(5, n // 10), n - 1))
    if torch.compiler.is_exporting():
        return smallest(torch.where(square <= SAME, torch.inf, square), k)
    values, index = smallest(square, k)
    own = values[:, 0] <= SAME
    if own.any():
        values[own], index[own] = smallest(torch.where(square[own] <= SAME, torch.inf, square[own]), k)
    return values, index


def log_scale(design: Tensor, size: Tensor, penalty: float, least: float = -math.inf) -> Tensor:
    """Fit weights w (F,) such that sizes (n,) >= 0 are exponential with mean exp(design @ w), by Fisher scoring.

    Args:
        design: (n, F), the last column 1.
        size: what is to be explained.
        penalty: weight of |w|² / 2, the last left out.
        least: lower bound of all weights but the last.
    """
    ridge = penalty * torch.eye(design.shape[1], dtype=design.dtype)
    ridge[-1, -1] = 1e-6
    information = torch.linalg.inv(design.T @ design + ridge)
    w = design.new_zeros(design.shape[1])
    w[-1] = (size.mean() + TINY).log()
    for _ in range(ROUNDS):
        excess = (size * (-(design @ w)).clamp(-10, 10).exp()).clamp_max(20.0) - 1
        step = information @ (design.T @ excess - ridge @ w)
        w = w + step * (1.0 / step.abs().max().clamp_min(1.0))
        w = torch.cat([w[:-1].clamp_min(least), w[-1:]])
    return w


def feature_noise(square: Tensor) -> Tensor:
    """Return the noise s (*features) of squared residuals (n, *features), NaN where missing."""
    known = ~square.isnan()
    values = square.nan_to_num()
    pooled = (values.sum() / known.sum().clamp_min(1)).clamp_min(TINY)
    found = (values.sum(0) + SHRINK * pooled) / (known.sum(0) + SHRINK)
    return found.clamp_min(LEAST_NOISE**2 * pooled).sqrt()
