"""How unusual each channel of a window is, which tells which sensor is at fault.

The parts of the score are energies of all channels, and a network spreads a fault of one channel over the residuals of
all. So each channel is examined on its own, and compared with its own held-out values:

| question                                                                         | unusual if     |
|----------------------------------------------------------------------------------|----------------|
| level: what is its mean over the window, given those of all other channels?      | large or small |
| slope: how does it rise over the window, given how all others do?                | large or small |
| detail: how much does it change from step to step?                               | large or small |

With s the means (or slopes) of the C channels and P the inverse of their covariance, (P s)_c / sqrt(P_cc) is channel c
minus its best linear prediction from the others, in standard deviations. It is largest in the faulty channel, which is
not true of the residuals of the network (reconstruction-based contributions, Alcala & Qin 2009). A sensor that drifts
has a wrong level or slope, a stuck one has no detail, and a noisy one has too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.score.images import FLOOR, tail
from lapae.score.whitening import TINY

RIDGE = 1e-3
"""Share of its own variance that is added to that of each channel, so that copies of a channel do not determine it."""
LEAST = 1e-4
"""Variance assigned to a channel that does not change, as a share of the mean variance of all channels."""
PRIOR = 10.0
"""Weight, in held-out windows, of a prior of unit variance for the values measured on them."""
ENOUGH = 2
"""Training windows per channel needed to predict channels from the others; with fewer, each is judged alone."""


@dataclass(frozen=True)
class Channels:
    """Level, slope and detail of each of C channels, relative to those of windows that training has not seen.

    Attributes:
        mean: mean level and slope of training windows, (2, C).
        given: maps centred levels and slopes to what the other channels do not explain of them, (2, C, C).
        floor: added to the detail, (C,).
        middle: mean over held-out windows of this unexplained part, and of the log detail, (3, C).
        scale: the standard deviation of these, (3, C); for levels and slopes one for all channels.
    """

    mean: Tensor
    given: Tensor
    floor: Tensor
    middle: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, rows: Tensor, valid: Tensor) -> Channels:
        """Fit to training windows (R, T, C) and held-out windows (n, T, C), with nothing missing."""
        trend, detail = trends(rows), details(rows)
        mean = trend.mean(0)
        gap = trend - mean
        covariance = torch.einsum("rkc,rkd->kcd", gap, gap) / len(gap)
        variance = covariance.diagonal(dim1=1, dim2=2)
        own = torch.diag_embed(variance + LEAST * variance.mean(1, keepdim=True) + TINY)
        precision = torch.linalg.inv(covariance + RIDGE * own if len(rows) >= ENOUGH * rows.shape[2] else own)
        given = precision / precision.diagonal(dim1=1, dim2=2).sqrt()[:, :, None]
        floor = FLOOR * detail.median(0).values + TINY
        start = cls(mean, given, floor, mean.new_zeros(3, rows.shape[2]), mean.new_ones(3, rows.shape[2]))
        known = start(rows)
        found = start(valid)
        middle = torch.cat([torch.zeros_like(mean), found[:, 2:].mean(0)])
        spread = torch.cat([mean.new_ones(2, rows.shape[2]), known[:, 2:].var(0, correction=0)])
        square = ((found - middle).square().sum(0) + PRIOR * spread) / (len(found) + PRIOR)
        square[:2] = square[:2].mean(1, keepdim=True)  # else the largest would not be the faulty channel
        return cls(mean, given, floor, middle, square.sqrt().clamp_min(math.sqrt(TINY)))

    def __call__(self, x: Tensor) -> Tensor:
        """Return level, slope and detail of windows x (B, T, C) in standard deviations, signed: (B, 3, C)."""
        left = torch.einsum("kcd,bkd->bkc", self.given, trends(x) - self.mean)
        found = torch.cat([left, (details(x) + self.floor).log()[:, None]], 1)
        return (found - self.middle) / self.scale

    def surprise(self, x: Tensor) -> Tensor:
        """Return how unusual each channel of windows x (B, T, C) is: Σ -log P(|normal| > |t|), (B, C), at least 0."""
        return (tail(self(x).abs()) - math.log(2)).clamp_min(0).sum(1)


def trends(x: Tensor) -> Tensor:
    """Return level and slope of the channels of windows x (B, T, C): (B, 2, C)."""
    time = torch.linspace(-1, 1, x.shape[1], dtype=x.dtype)
    return torch.stack([x.mean(1), torch.einsum("t,btc->bc", time / time.square().sum().clamp_min(1), x)], 1)


def details(x: Tensor) -> Tensor:
    """Return the mean squared difference of neighbouring steps of windows x (B, T, C): (B, C)."""
    return x.diff(dim=1).square().mean(1)
