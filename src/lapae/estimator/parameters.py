"""The parameters of the estimator, and the configuration that they come to."""

from __future__ import annotations

from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.curvature.likelihoods import likelihood

METHOD = (
    *("hessian", "update", "forgetting", "prior_precision", "predictive", "n_samples", "uncertain", "temperature"),
    "optimize_prior",
)
TRAIN = ("epochs", "batch_size", "learning_rate", "false_alarm_rate", "device")
"""Parameters that are options of the method, and of training, under the same name."""


class Parameters(BaseEstimator):
    """What `LaplacianAutoencoder` is given; its documentation says what each is."""

    seed_: int

    def __init__(
        self,
        *,
        latent_dim: int | None = None,
        network: Any = None,
        method: str = "online",
        hessian: str | None = None,
        likelihood: Any = "gaussian",
        update: str = "laplacian",
        forgetting: float | None = None,
        prior_precision: float | None = None,
        predictive: str | None = None,
        n_samples: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_fraction: float | None = None,
        false_alarm_rate: float = 0.05,
        uncertain: Any = "all",
        temperature: float | None = None,
        optimize_prior: str = "scalar",
        device: str = "auto",
        precision: str = "32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.latent_dim = latent_dim
        self.network = network
        self.method = method
        self.hessian = hessian
        self.likelihood = likelihood
        self.update = update
        self.forgetting = forgetting
        self.prior_precision = prior_precision
        self.predictive = predictive
        self.n_samples = n_samples
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.false_alarm_rate = false_alarm_rate
        self.uncertain = uncertain
        self.temperature = temperature
        self.optimize_prior = optimize_prior
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def from_trained(cls, encoder: Any, decoder: Any = None, **parameters: Any) -> Self:
        """An estimator around a trained network: `fit` trains nothing, and fits a posterior and the calibration.

        The network gets X as it is, whatever its units: floats unchanged, integer images divided by 255. `reconstruct`
        gives what the network gives. Weights with `requires_grad=False` are taken as known.

        Args:
            encoder: a module that is called on data; it is only read. Or a model with `encode` and `decode`.
            decoder: a module that is called on codes, likewise.
            parameters: further arguments of the constructor.
        """
        network = encoder if decoder is None else (encoder, decoder)
        return cls(network=network, **{"method": "posthoc", "epochs": 0, **parameters})


def configuration(given: Parameters, x: np.ndarray) -> Config:
    """The parameters of an estimator for data x; what is None is chosen by the data later."""
    noise = likelihood(given.likelihood)
    sigma = None if isinstance(given.likelihood, str) else getattr(noise, "sigma", None)
    frame = not isinstance(x, np.ndarray)
    # later data may have holes where these have none
    holes = not frame and x.dtype.kind == "f" and bool(np.isnan(x).any())
    allow_nan = holes or ((frame or x.dtype.kind == "f") and noise.takes_missing)
    method = {name: value for name in METHOD if (value := getattr(given, name)) is not None}
    return Config(
        data=DataConfig(source="X", allow_nan=allow_nan),
        model=ModelConfig(
            network=given.network if given.network is None or isinstance(given.network, str) else None,
            latent_dim=given.latent_dim,
            likelihood=type(noise).name or "gaussian",
            sigma=sigma if isinstance(sigma, float) else None,
        ),
        method=MethodConfig.taking(given.method, **method),
        train=TrainConfig(
            **{name: getattr(given, name) for name in TRAIN},
            precision=str(given.precision),  # pyright: ignore[reportArgumentType]
            seed=given.seed_,
            verbose=bool(given.verbose),
        ),
    ).resolved()


def parameters(config: Config) -> dict[str, Any]:
    """The estimator's parameters that a configuration comes to: those of a run of `lapae train`."""
    model, options, train = config.model, config.method.options, config.train
    found: dict[str, Any] = {name: getattr(train, name) for name in (*TRAIN, "precision")}
    found |= {name: getattr(options, name) for name in METHOD if hasattr(options, name)}
    return found | {
        "method": config.method.method,
        "network": model.network,
        "latent_dim": model.latent_dim,
        "likelihood": model.likelihood if model.sigma is None else {"sigma": model.sigma},
        "random_state": train.seed,
    }


def check_parameters(given: Parameters) -> None:
    """ValueError where a parameter that is no option of a run is not valid."""
    held_out = given.validation_fraction
    if held_out is not None and not (isinstance(held_out, Real) and 0 <= float(held_out) < 1):
        raise ValueError(f"validation_fraction={held_out!r}: expected a number from 0 to below 1")
