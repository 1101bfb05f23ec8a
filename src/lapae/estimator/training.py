"""What `fit` does: the configuration that suits the data, the split, the training, and the size of typical errors."""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.likelihoods import likelihood as by_name
from lapae.data import Data
from lapae.data.splits import LEAST_TO_SPLIT, MOST_HELD_OUT
from lapae.model import Model

if TYPE_CHECKING:
    from lapae.estimator.autoencoder import LaplacianAutoencoder

SMALL = 40
"""Steps an epoch below which an epoch says too little for a plateau: the learning rate falls along a cosine."""
STEPS = 1500
"""Steps at least, where the number of epochs is left open."""
GAPS_FROM = 512
"""Data at most to measure typical errors on."""
LEAST_GAPS = 200
"""Data at least to hide values of."""
HIDDEN = 0.2
"""Share of values hidden to measure the error of imputed ones."""


def train(estimator: LaplacianAutoencoder, x: np.ndarray) -> tuple[Model, np.ndarray]:
    """Train on x (n, *shape); also what was held out to steer training."""
    fraction, n = estimator.validation_fraction, len(x)
    if not 0 <= fraction < 1:
        raise ValueError(f"validation_fraction={fraction}: expected a number from 0 to below 1")
    held_out = min(round(fraction * n), MOST_HELD_OUT) if n >= LEAST_TO_SPLIT else 0
    names = getattr(estimator, "feature_names_in_", None)
    columns = None if names is None else tuple(map(str, names))
    data = Data.of(x, seed=estimator.seed_, validation=held_out, columns=columns)
    config = configuration(estimator, x)
    from lapae.train.progress import make_progress

    observers = [make_progress(sys.stderr)] if estimator.verbose else []
    from lapae.train.fit import fit

    model = fit(config, data, network=own_network(estimator), likelihood=own_likelihood(estimator), observers=observers)
    settle(model)
    return model, np.asarray(data.valid.x)


def settle(model: Model) -> None:
    """Ready to predict: tables in 64 bits on a CPU, so that a datum's score does not depend on its batch."""
    model.method.eval().requires_grad_(False)
    if model.space.kind == "table" and next(model.method.parameters()).device.type == "cpu":
        model.method.double()


def configuration(estimator: LaplacianAutoencoder, x: np.ndarray) -> Config:
    """The estimator's parameters as a configuration, open ones chosen by the data."""
    n = len(x)
    batch_size = estimator.batch_size
    if batch_size is None:
        batch_size = 32 if n < 1000 else 64 if n < 20_000 else 128
    per_epoch = math.ceil(n / max(batch_size, 1))
    small = per_epoch < SMALL
    epochs = estimator.epochs if estimator.epochs is not None else max(100, math.ceil(STEPS / per_epoch))
    table = x.ndim == 2
    rate = estimator.learning_rate
    if rate is None:
        rate = 3e-3 if table else 1e-3
    likelihood = estimator.likelihood if isinstance(estimator.likelihood, str) else "gaussian"
    # later data may have holes where these have none
    allow_nan = x.dtype.kind == "f" and (by_name(estimator.likelihood).takes_missing or bool(np.isnan(x).any()))
    network = estimator.network if isinstance(estimator.network, str) else "mlp"
    return Config(
        data=DataConfig(source="X", allow_nan=allow_nan),
        model=ModelConfig(
            network=network,
            latent_dim=estimator.latent_dim,
            hidden=hidden_widths(x.shape[1]) if network == "mlp" and table else None,
            likelihood=likelihood,
            sigma=getattr(estimator.likelihood, "sigma", 1.0),
        ),
        method=MethodConfig.taking(
            estimator.method,
            hessian=estimator.hessian,
            update=estimator.update,
            forgetting=estimator.forgetting,
            prior_precision=estimator.prior_precision,
            predictive=estimator.predictive,
            n_samples=estimator.n_samples,
        ),
        train=TrainConfig(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=rate,
            schedule="cosine" if small else "plateau",
            patience=max(8, epochs // 4) if small else 8,
            seed=estimator.seed_,
            device=estimator.device,  # pyright: ignore[reportArgumentType]
            precision=str(estimator.precision),  # pyright: ignore[reportArgumentType]
            verbose=bool(estimator.verbose),
        ),
    ).resolved()


def hidden_widths(n_features: int) -> tuple[int, ...]:
    """Two layers that grow with the table."""
    width = int(np.clip(2 ** math.ceil(math.log2(4 * n_features)), 32, 512))
    return width, width // 2


def own_network(estimator: LaplacianAutoencoder) -> Any:
    """The user's modules, or None where the network is named."""
    return None if isinstance(estimator.network, str) else tuple(estimator.network)


def own_likelihood(estimator: LaplacianAutoencoder) -> Likelihood | None:
    """The user's likelihood, or None where it is named."""
    return None if isinstance(estimator.likelihood, str) else by_name(estimator.likelihood)


def typical_gap(estimator: LaplacianAutoencoder, x: np.ndarray) -> np.ndarray:
    """Root mean square error of each element (*model shape) where it was hidden and imputed."""
    from lapae.estimator.prediction import guess

    rng = np.random.default_rng(estimator.seed_)
    part = np.sort(rng.permutation(len(x))[:GAPS_FROM])
    truth = estimator.to_model(x[part]).numpy()
    # few data are hidden several times over, so that every element is hidden in some
    many = np.concatenate([truth] * max(1, LEAST_GAPS // len(truth)))
    mask = rng.random(many.shape) < HIDDEN
    holes = torch.from_numpy(np.where(mask, np.float32(np.nan), many))
    filled = guess(
        estimator.model_.method, holes, seed=estimator.seed_, value_range=estimator.space_.value_range
    ).numpy()
    return _rms(np.where(mask, filled - many, np.nan))


def _rms(gaps: np.ndarray) -> np.ndarray:
    """Over the first axis, NaN left out; an element without any gets the mean of the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # elements without any
        rms = np.sqrt(np.nanmean(np.square(gaps.astype(np.float64)), 0))
        return np.where(np.isnan(rms), np.nan_to_num(np.nanmean(rms)), rms)
