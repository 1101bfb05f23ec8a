"""What the estimator asks of a trained method beyond `lapae.predict`: completing and generating."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lapae.methods import Method
from lapae.predict.complete import Imputation, impute
from lapae.predict.generate import from_noise, from_prior

if TYPE_CHECKING:
    from lapae.estimator.autoencoder import LaplacianAutoencoder

EXPLORE = 5
"""Encodings and decodings of a chain: by then the missing values agree with the observed ones."""
CHAINS = 5
"""Chains behind a best guess."""
AVERAGE = 5
"""Networks averaged at the end of each chain of a best guess."""


def guess(method: Method, x: Tensor, *, seed: int, value_range: tuple[float, float]) -> Tensor:
    """x (n, *shape) in the model's space, its missing values by the mean of a few chains."""
    return _impute(method, x, seed, value_range, modes=CHAINS, average=AVERAGE).mean


def complete(estimator: LaplacianAutoencoder, x: Tensor, n_samples: int | None) -> np.ndarray:
    """The best guess (n, *shape), or completions (n_samples, n, *shape) with the noise of hidden values on them."""
    method, seed, value_range = estimator.model_.method, estimator.seed_, estimator.space_.value_range
    if n_samples is None:
        return guess(method, x, seed=seed, value_range=value_range).numpy()
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: expected at least 1")
    center = guess(method, x, seed=seed, value_range=value_range)
    spread = _impute(method, x, seed, value_range, modes=n_samples, average=0).samples
    spread = spread - (spread.mean(0) if n_samples > 1 else center)
    # Errors of the best guess have the variance `hidden_noise_`²; what the networks do not account for is noise.
    noise = torch.from_numpy(estimator.hidden_noise_).to(center.dtype)
    left = (noise.square() - spread.square().mean(0)).clamp_min(0.0).sqrt()
    generator = torch.Generator().manual_seed(seed)
    drawn = center + spread + left * torch.randn(spread.shape, generator=generator, dtype=center.dtype)
    if estimator.space_.kind == "image":
        drawn = drawn.clamp(*value_range)
    return drawn.numpy()


def generate(
    method: Method, shape: tuple[int, ...], latent_dim: int, n: int, *, seed: int, value_range: tuple[float, float]
) -> np.ndarray:
    """New data (n, *shape) in the model's space."""
    if n < 1:
        raise ValueError(f"n_samples={n}: expected at least 1")
    if method.latent_prior:
        return from_prior(method, latent_dim, n, seed=seed).numpy()
    return from_noise(method, shape, n, seed=seed, value_range=value_range).numpy()


def _impute(
    method: Method, x: Tensor, seed: int, value_range: tuple[float, float], *, modes: int, average: int
) -> Imputation:
    x = x.to(next(method.parameters()).dtype)
    return impute(method, x, modes=modes, average=average, steps=EXPLORE, seed=seed, value_range=value_range)
