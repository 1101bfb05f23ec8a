"""Standard deviation of every value around its reconstruction, predicted without looking at the value's own residual.

The standard deviation of value j of row i is s_j · exp(w · f_ij). The noise s_j of a feature is that of held-out
residuals; f_ij describes how uncertain the model is about this value. Each of these features is standardised:

    of the row:   log variance of the output and of the code over networks, log distance to the nearest training codes,
                  log size of the reconstruction, share of missing values; output and reconstruction are those of the
                  observed values, so that the result for a missing value does not depend on how others are filled in
    of the value: log variance of the output, log residual of the training rows with the nearest codes,
                  log distance of the value from its mean

If the posterior's variance has its natural size (covariances, linearised), it is added as it is and is not a feature
in f: intervals then widen where the data end. The network cannot know how large its errors are there, as it has only
learned from rows that it has seen, but the other values of the row show it. Nor does it know well which values are
affected, so v_ij is half the variance of the value and half that of the row, divided in proportion to the noise. It is
counted k_ij times,

    standard deviation² = noise² + 2 k_ij v_ij,
    k_ij = (1 + sum_l (e_il² - noise_il²) / (noise_il² + v_il)) / (1 + sum_l v_il / (noise_il² + v_il)) >= 0

where e are the residuals and the sums run over the other values l of the row. This is a method-of-moments estimate from
E e² = noise² + k v, with a prior of k = 1. The effect of a value on the residuals of the others is subtracted from them
first (`passed`), so that an unusual value does not widen its own interval, and widens those of the others three times
at most. In rows of two values nothing is subtracted: one other residual cannot distinguish an unusual value from an
unusual row.

The weights w maximise the likelihood of held-out residuals, treated as Laplace-distributed with this scale. With few
rows, weights are kept at or above 0, because more uncertainty should never make a value more certain. The residuals of
a few training rows may suggest otherwise: they are small far from the other rows, where the network bends to fit each
one. Conformal radii on top (`calibrate/conformal.py`) make the intervals valid whatever this model gets wrong; what it
gets right makes them narrow where the model is good and wide where it is not. A second instance, fitted to values that
were hidden from the network, serves imputation.

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
RIDGE_OF_ROWS = 1e-3
"""Penalty on coefficients of a regression on standardised rows, in variances."""
RIDGE = 5.0
"""Weight, in held-out rows, of the penalty on w."""
CELLS = 200_000
"""Maximum number of values to fit w to."""
ROUNDS = 30
TINY = 1e-12
LEAST_NOISE = 0.1
"""Smallest noise of a feature as a share of that of all features: one that was predicted without error so far may not
be next time."""
SHRINK = 2.0
"""Weight, in rows, of the noise of all features in that of a single one, about which few rows say little."""
WIDEST = 3.0
"""Largest difference of the log of a standard deviation from that of its feature's noise."""
COUNTS = 2.0
"""How many times the variance is counted if the other values of a row deviate as much as it predicts: they indicate
only roughly how far this value deviates. `benchmarks/shift.md` compares other values of this constant."""
USUAL = 1.0
"""Weight, in values, of k = 1."""
MOST_TIMES = 9.0
"""Upper bound of a squared standard deviation, in units of noise² + variance: without it, one value that is a hundred
standard deviations off would make the intervals of all the others uselessly wide."""
PAIR = 2
"""Number of features up to which the effect of one value on the residual of the other is not subtracted."""
WIDE = 1000
"""Number of features from which on the effect of one value on the residuals of the others is too small to matter."""
LEAST_OWN = 0.3
"""Share of a value that remains in its residual, below which this says little about its effect on the others."""
OF_ROW, OF_VALUE = 5, 3
CACHED = 1 << 17
"""Number of distances between codes at a time: more do not fit into the cache of a core."""
SAME = 1e-10
"""Squared distance up to which two codes are considered to come from the same row."""


@dataclass(frozen=True)
class Deviation:
    """Model of the standard deviation of residuals.

    Attributes:
        noise: s_j, (*features).
        codes: training codes in units of `width`, in no order, (R, K).
        width: standard deviation of the training codes, (K,).
        residuals: squared residuals of the rows with the first S codes, NaN where there is none, (S, *features).
        middle: mean log variance of a feature, and mean of its reconstructions, (2, *features).
        mean: mean of f over held-out rows, (8,).
        scale: standard deviation of f, (8,).
        weights: w, and a constant, (9,).
        adds_variance: whether the variance of the output over networks is added to that of the noise. It then has no
            weight in w, as it would count twice.
        passed: how much of the residual of one feature (column) shows up in those of the others (row), 0 on the
            diagonal, (D, D); None if this is not subtracted.
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
    passed: Tensor | None = None

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
            known: predictions of training rows; "means" are enough.
            rows: their values (R, *features), NaN where they do not count.
            found: predictions of held-out rows: "codes" and "outputs", or "means" if variances are added.
            x: these rows (n, *features) as the network saw them, NaN where missing or hidden.
            truth: their values, NaN where they do not count.
            least: lower bound of the weights.
            adds_variance: see the attribute; for posteriors whose variance has its natural size.
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
            passed=passed_on(rows, known.x_mean) if adds_variance and PAIR < noise.numel() < WIDE else None,
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
        """Quantities of a prediction that are needed."""
        return ("means", "outputs") if self.adds_variance else ("codes", "outputs")

    def knowledge(self, found: Prediction, x: Tensor, at: Tensor | None = None) -> Tensor:
        """Return f of rows x (B, *features): (B, 8, *features), see above. Variances are 0 if they are added.

        Args:
            found: predictions of x.
            x: NaN where missing.
            at: compute it for one feature of each row only, (B,): (B, 8, 1).
        """

        def of(values: Tensor) -> Tensor:
            return values if at is None else values.flatten(1).gather(1, at[:, None])

        distance, local = self._neighbours(found.z_mean.flatten(1) / self.width, at)
        observed = (~x.isnan()).flatten(1).to(distance.dtype)
        count = observed.sum(1)

        def over_observed(values: Tensor) -> Tensor:
            return (observed * values.flatten(1)).sum(1) / count.clamp_min(1)

        x_var, z_var = found.x_mean * 0, found.z_mean * 0
        if not self.adds_variance:
            x_var, z_var = found.x_var, found.z_var
        parts = [
            over_observed(x_var) + TINY,
            z_var.flatten(1).mean(1) + TINY,
            distance + 1e-6,
            over_observed(found.x_mean.square()) + 1e-9,
        ]
        of_row = torch.stack([*(part.log() for part in parts), 1 - observed.mean(1)], 1)
        noise = self._noise(at)
        of_row = of_row.reshape(*of_row.shape, *(1 for _ in noise.shape[1:])).expand(-1, -1, *noise.shape[1:])
        middle = self.middle if at is None else self.middle.flatten(1)[:, at, None]
        of_value = [
            (of(x_var) + TINY).log() - middle[0],
            local,
            ((of(found.x_mean) - middle[1]).abs() / noise + 0.1).log(),
        ]
        return torch.cat([of_row, torch.stack(of_value, 1)], 1)

    def _noise(self, at: Tensor | None) -> Tensor:
        """Return the noise of features, (1, *features), or of one of each row, (B, 1)."""
        return self.noise[None] if at is None else self.noise.flatten()[at, None]

    def _neighbours(self, z: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the mean distance (B,) of codes z (B, K) from the nearest references, and the log of the noise around
        them, minus that of the feature, (B, *features)."""
        if torch.compiler.is_exporting():  # a graph takes any number of rows at once
            return self._around(z, at)
        size = max(1, CACHED // len(self.codes))
        indices = [None] * len(z) if at is None else at.split(size)
        distances, local = zip(
            *(self._around(*some) for some in zip(z.split(size), indices, strict=False)), strict=True
        )
        return torch.cat(distances), torch.cat(local)

    def _around(self, z: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor]:
        square, k = squared_distances(z, self.codes), min(NEIGHBOURS, len(self.codes))
        if len(self.residuals) < len(self.codes):
            distances = smallest(square, k)[0]
            index = nearest(square[:, : len(self.residuals)])[1]
        else:  # one search for both
            every = smallest(square, min(len(self.codes), max(k, n_nearest(len(self.codes)) + 1)))
            distances, index = every[0][:, :k], nearest(square, every)[1]
        near = self.residuals[index] if at is None else self.residuals.flatten(1)[index, at[:, None]][..., None]
        near = near / self._noise(at).square()[:, None]
        known = ~near.isnan()
        local = 0.5 * ((near.nan_to_num().sum(1) + OWN) / (known.sum(1) + OWN)).log()
        return distances.sqrt().mean(1), local

    def __call__(self, found: Prediction, x: Tensor, at: Tensor | None = None) -> Tensor:
        """Return the standard deviation (B, *features) of rows x (B, *features) from their predictions; with `at` (B,),
        that of one feature of each row, (B, 1)."""
        if at is not None and self.adds_variance:
            return self(found, x).flatten(1).gather(1, at[:, None])
        f = self.knowledge(found, x, at)
        shape = (1, -1, *(1 for _ in f.shape[2:]))
        f = (f - self.mean.reshape(shape)) / self.scale.reshape(shape)
        log = (f * self.weights[:-1].reshape(shape)).sum(1) + self.weights[-1]
        noise = log.clamp(-WIDEST, WIDEST).exp() * self._noise(at)
        if not self.adds_variance:
            return noise
        square, variance = noise.square(), self.shared(found, noise)
        counts = self.counts(x - found.x_mean, square, variance)
        return torch.minimum(square + COUNTS * counts * variance, MOST_TIMES * (square + variance)).sqrt()

    def shared(self, found: Prediction, noise: Tensor) -> Tensor:
        """Return the variance v (B, *features) of each value, half of it that of its row, given the standard deviations
        (B, *features) without it."""
        variance, square = found.x_var.flatten(1), noise.square().flatten(1)
        of_row = square * (variance.mean(1) / square.mean(1))[:, None]
        return ((variance + of_row) / 2).reshape(noise.shape)

    def counts(self, error: Tensor, square: Tensor, variance: Tensor) -> Tensor:
        """Return how many times the variance of each value counts, judged by the rest of its row: k (B, *features).

        Args:
            error: residuals of the values, NaN where missing, (B, *features).
            square: variance of their noise, (B, *features).
            variance: the variance that is added to it, (B, *features).
        """
        shape, dtype = square.shape, square.dtype
        error, square, variance = (part.flatten(1).double() for part in (error, square, variance))  # large ones cancel
        weight = torch.where(error.isnan(), 0.0, 1 / (square + variance + TINY))
        error = error.nan_to_num()
        excess = all_but_one(weight * (error.square() - square))
        if self.passed is not None:
            passed = self.passed.double()
            excess = excess + error * (error * (weight @ passed.square()) - 2 * ((weight * error) @ passed))
        counted = (USUAL + excess) / (USUAL + all_but_one(weight * variance))
        return counted.clamp_min(0.0).to(dtype).reshape(shape)


def all_but_one(values: Tensor) -> Tensor:
    """Return the sums of values (B, D) over the others of their rows, (B, D)."""
    return values.sum(1, keepdim=True) - values


def passed_on(rows: Tensor, means: Tensor) -> Tensor:
    """Return how much of the residual of one feature shows up in those of the others, (D, D), 0 on the diagonal.

    Increasing a value by 1 moves the reconstructions by the coefficients b of their linear regression on the rows, and
    its own residual by 1 - b. If little of the value remains in its own residual, other residuals are not explained by
    it.

    Args:
        rows: training rows (n, *features), NaN where they do not count.
        means: their reconstructions (n, *features).
    """
    x, y = (part - part.mean(0) for part in (torch.where(rows.isnan(), means, rows).flatten(1), means.flatten(1)))
    x, y = x.double(), y.double()
    ridge = torch.eye(x.shape[1], dtype=x.dtype, device=x.device) * (RIDGE_OF_ROWS * len(x) + TINY)
    b = torch.linalg.solve(x.T @ x + ridge, x.T @ y).T
    own = 1 - b.diagonal()
    found = -b * (own / (own.square() + LEAST_OWN**2))
    return found.fill_diagonal_(0.0).to(means.dtype)


def mean_log(variance: Tensor, error: Tensor) -> Tensor:
    """Return the mean log (*features) of variances (n, *features), over the values whose error is known (not NaN), as
    observed values have different variances. Means of few values are shrunk towards the mean of all."""
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
    """Return the k smallest of the numbers (B, R), none of them below 0, in order, and their indices: (B, k) each.

    The bit patterns of positive numbers are in the same order as the numbers. The lowest bits are replaced by the index
    of the number, so that one partial sort finds both.
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


def n_nearest(n: int) -> int:
    """Return the number of neighbours that a row is compared with, if there are n references."""
    return max(1, min(LOCAL, max(5, n // 10), n - 1))


def nearest(square: Tensor, found: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Return the smallest of squared distances (B, R), and their indices (B, k); a row is no neighbour of itself.

    Args:
        square: the squared distances.
        found: the `smallest` of them, at least one more than k, if R > 1; default: they are searched.
    """
    n = square.shape[1]
    k = n_nearest(n)
    if torch.compiler.is_exporting():
        return smallest(torch.where(square <= SAME, torch.inf, square), k)
    values, index = smallest(square, min(k + 1, n)) if found is None else found
    if n == 1:
        return torch.where(values <= SAME, torch.inf, values), index
    own, several = values[:, :1] <= SAME, values[:, 1] <= SAME
    values, index = (torch.where(own, part[:, 1 : k + 1], part[:, :k]) for part in (values, index))
    if several.any():
        values[several], index[several] = smallest(torch.where(square[several] <= SAME, torch.inf, square[several]), k)
    return values, index


def log_scale(design: Tensor, size: Tensor, penalty: float, least: float = -math.inf) -> Tensor:
    """Fit weights w (F,) such that sizes (n,) >= 0 are exponential with mean exp(design @ w), by Fisher scoring.

    Args:
        design: (n, F), the last column 1.
        size: the sizes to be explained.
        penalty: weight of |w|² / 2, without the last weight.
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
