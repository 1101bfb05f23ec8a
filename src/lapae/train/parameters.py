"""The parameters of the estimator as a configuration."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.curvature.likelihoods import likelihood

if TYPE_CHECKING:
    from lapae.estimator import LaplacianAutoencoder


def configuration(given: LaplacianAutoencoder, x: np.ndarray) -> Config:
    """The parameters of an estimator for data x; what is None is chosen by the data later."""
    noise = likelihood(given.likelihood)
    sigma = None if isinstance(given.likelihood, str) else getattr(noise, "sigma", None)
    frame = not isinstance(x, np.ndarray)
    # later data may have holes where these have none
    holes = not frame and x.dtype.kind == "f" and bool(np.isnan(x).any())
    allow_nan = holes or ((frame or x.dtype.kind == "f") and noise.takes_missing)
    return Config(
        data=DataConfig(source="X", allow_nan=allow_nan),
        model=ModelConfig(
            network=given.network if given.network is None or isinstance(given.network, str) else None,
            latent_dim=given.latent_dim,
            likelihood=type(noise).name or "gaussian",
            sigma=sigma if isinstance(sigma, float) else None,
        ),
        method=MethodConfig.taking(
            given.method,
            hessian=given.hessian,
            update=given.update,
            forgetting=given.forgetting,
            predictive=given.predictive,
            n_samples=given.n_samples,
            uncertain=given.uncertain,
            temperature=given.temperature,
            optimize_prior=given.optimize_prior,
            **({} if given.prior_precision is None else {"prior_precision": given.prior_precision}),
        ),
        train=TrainConfig(
            epochs=given.epochs,
            batch_size=given.batch_size,
            learning_rate=given.learning_rate,
            seed=given.seed_,
            device=given.device,  # pyright: ignore[reportArgumentType]
            precision=str(given.precision),  # pyright: ignore[reportArgumentType]
            verbose=bool(given.verbose),
        ),
    ).resolved()


METHOD = ("hessian", "update", "forgetting", "prior_precision", "predictive", "n_samples", "uncertain", "temperature")
TRAIN = ("epochs", "batch_size", "learning_rate", "device", "precision")


def parameters(config: Config) -> dict[str, Any]:
    """The estimator's parameters that a configuration comes to: those of a run of `lapae train`."""
    model, options, train = config.model, config.method.options, config.train
    found: dict[str, Any] = {name: getattr(train, name) for name in TRAIN}
    found |= {name: getattr(options, name) for name in (*METHOD, "optimize_prior") if hasattr(options, name)}
    return found | {
        "method": config.method.method,
        "network": model.network,
        "latent_dim": model.latent_dim,
        "likelihood": model.likelihood if model.sigma is None else {"sigma": model.sigma},
        "random_state": train.seed,
    }


def check_parameters(given: LaplacianAutoencoder) -> None:
    """ValueError where a parameter that is no option of a run is not valid."""
    rate = given.contamination
    if rate != "auto" and not (isinstance(rate, Real) and not isinstance(rate, bool) and 0 < float(rate) <= 0.5):
        raise ValueError(f"contamination={rate!r}: expected a number above 0 and at most 0.5, or 'auto'")
    held_out = given.validation_fraction
    if held_out is not None and not (isinstance(held_out, Real) and 0 <= float(held_out) < 1):
        raise ValueError(f"validation_fraction={held_out!r}: expected a number from 0 to below 1")
