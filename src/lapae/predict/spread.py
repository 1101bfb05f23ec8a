"""How far values lie from their reconstruction: a deviation for every value, before one has looked at the residual.

The deviation of value j of datum i is g_i · s_j. The noise s_j of a feature is that of held-out residuals. The factor
g_i says how far this datum is to be trusted; it is log-linear in what the model knows about its own ignorance,

    log g = w · [log variance of the output, log variance of the code, log distance to the nearest training codes,
                 log size of the reconstruction, share of values that are missing, 1]

all but the last standardised, with w fitted by ridge regression to the size of held-out residuals. Conformal radii on
top (conformal.py) make the intervals hold whatever this model gets wrong; what it gets right makes them narrow where
the model is good and wide where it is not. The same model, fitted to values that were hidden from the network, serves
imputation.

Shapes: B data, K latent dimensions (flattened), x is (B, *features) in the model's space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lapae.predict.prediction import Prediction

NEIGHBOURS = 10
REFERENCES = 2000
"""Training codes to look for neighbours in, at most: more make distances smaller for all data alike."""
RIDGE = 5.0
"""Weight of the penalty on w, in held-out data."""
TINY = 1e-12
LEAST = 0.1
"""Noise of a feature, at least, as a share of that of all: one predicted without error may not be so next time."""
SHRINK = 2.0
"""Data that the noise of all features counts for in that of one: few data say little about a single feature."""
WIDEST = 20.0
"""The factor lies between this and its inverse."""


@dataclass(frozen=True)
class Spread:
    """The fitted deviation model."""

    noise: Tensor
    """(*features): s_j."""
    codes: Tensor
    """(R, K): training codes, in units of `width`."""
    width: Tensor
    """(K,): deviation of the training codes."""
    mean: Tensor
    """(5,): mean of what log g depends on, over held-out data."""
    scale: Tensor
    """(5,): its deviation."""
    weights: Tensor
    """(6,): w."""

    def knowledge(self, found: Prediction, x: Tensor) -> Tensor:
        """What the model knows about its own ignorance of data x (B, *features): (B, 5), see above."""
        assert found.z_mean is not None
        assert found.z_var is not None
        assert found.x_mean is not None
        assert found.x_var is not None
        distance = nearest(found.z_mean.flatten(1) / self.width, self.codes)
        parts = [
            found.x_var.flatten(1).mean(1) + TINY,
            found.z_var.flatten(1).mean(1) + TINY,
            distance + 1e-6,
            found.x_mean.flatten(1).square().mean(1) + 1e-9,
        ]
        missing = x.isnan().flatten(1).to(distance.dtype).mean(1)
        return torch.stack([*(part.log() for part in parts), missing], 1)

    def factor(self, found: Prediction, x: Tensor) -> Tensor:
        """g (B,)."""
        features = (self.knowledge(found, x) - self.mean) / self.scale
        log_g = features @ self.weights[:-1] + self.weights[-1]
        return log_g.clamp(-math.log(WIDEST), math.log(WIDEST)).exp()

    def deviation(self, found: Prediction, x: Tensor) -> Tensor:
        """g_i s_j: (B, *features)."""
        return self.factor(found, x).reshape(-1, *(1 for _ in self.noise.shape)) * self.noise

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def fit_spread(found: Prediction, x: Tensor, truth: Tensor, codes: Tensor) -> Spread:
    """Fit the model to held-out data.

    Args:
        found: predictions ("codes", "outputs") of held-out data.
        x: these data (n, *features) as the network saw them, NaN where missing or hidden.
        truth: their values, NaN where they do not count.
        codes: codes (R, K) of training data.
    """
    assert found.x_mean is not None
    square = (truth - found.x_mean).square()
    noise = feature_noise(square)
    width = codes.std(0, correction=0).clamp_min(TINY)
    chosen = codes[torch.linspace(0, len(codes) - 1, min(len(codes), REFERENCES)).long()]
    start = Spread(noise, chosen / width, width, noise.new_zeros(5), noise.new_ones(5), noise.new_zeros(6))
    ratio = (square / noise.square()).flatten(1)
    known = ~ratio.isnan()
    rows = known.any(1)
    if rows.sum() < 2 * NEIGHBOURS:  # too few to say which data are worse than others
        return start
    size = 0.5 * (ratio.nan_to_num().sum(1)[rows] / known.sum(1)[rows] + TINY).log()
    features = start.knowledge(found, x)[rows]
    mean, scale = features.mean(0), features.std(0).clamp_min(1e-6)
    design = torch.cat([(features - mean) / scale, torch.ones_like(size)[:, None]], 1)
    gram = design.T @ design + RIDGE * torch.eye(6, dtype=design.dtype)
    weights = torch.linalg.solve(gram, design.T @ size)
    return Spread(noise, start.codes, width, mean, scale, weights)


def feature_noise(square: Tensor) -> Tensor:
    """Deviation s (*features) from squared residuals (n, *features), NaN where missing."""
    known = ~square.isnan()
    values = square.nan_to_num()
    pooled = (values.sum() / known.sum().clamp_min(1)).clamp_min(TINY)
    found = (values.sum(0) + SHRINK * pooled) / (known.sum(0) + SHRINK)
    return found.clamp_min(LEAST**2 * pooled).sqrt()


def nearest(z: Tensor, references: Tensor) -> Tensor:
    """Mean distance (B,) from z (B, K) to the nearest of the references (R, K)."""
    k = min(NEIGHBOURS, len(references))
    square = references.square().sum(1) - 2 * z @ references.T + z.square().sum(1, keepdim=True)
    return square.clamp_min(0).topk(k, largest=False).values.sqrt().mean(1)
