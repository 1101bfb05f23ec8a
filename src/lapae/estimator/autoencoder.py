"""The estimator: an autoencoder with a posterior over its weights behind scikit-learn's interface."""

from __future__ import annotations

from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

if TYPE_CHECKING:
    from lapae.methods import Method
    from lapae.predict import Prediction

MINIMUM = 2
"""Fewer data cannot be learned from."""


class LaplacianAutoencoder(ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin, BaseEstimator):
    """A Bayesian autoencoder: codes, reconstructions and a score of normality, each with its uncertainty.

    X is a table (n, F), images (n, H, W), (n, C, H, W) or (n, H, W, C) as uint8 or floats within [0, 1], or
    windows of a time series (n, T, channels). Missing values are NaN, in `fit` too. Tables and windows are standardised
    inside; what comes back is in the units of X. Where an argument is None it is chosen by the data.

    Args:
        latent_dim: size K of the code.
        network: "mlp", "conv", a network of the paper by name, or a pair (encoder, decoder) of `torch.nn.Module`s.
        method: online (the paper's), posthoc, ae, ae-var, vae, dropout, ensemble or bbb.
        hessian: curvature of the posterior: approx, exact, mixed, mc, sketch, bottleneck, block or kfac.
        likelihood: "gaussian", "bernoulli", "categorical", or an object such as `Gaussian(sigma=0.5)`.
        update: of the online precision: laplacian, redux, van or nng.
        forgetting: the α of the online update; the learning rate where None.
        prior_precision: of the Gaussian prior over weights.
        predictive: mc (sampled networks), linearized or moments.
        n_samples: networks drawn for a prediction by mc.
        epochs: passes over the data at most; by the size of the data where None.
        batch_size: data in a step; by the size of the data where None.
        learning_rate: of Adam, at the start; by the kind of data where None.
        validation_fraction: part of X held out to steer training.
        contamination: share of X that lies beyond the threshold of `predict`.
        device: auto, cpu or cuda.
        precision: "32", "tf32" or "bf16".
        random_state: seed, generator or None.
        verbose: whether to show the progress of training.

    Attributes:
        model_: the trained `lapae.model.Model`.
        offset_: the threshold: `decision_function` is `score_samples` minus it.
        history_: one record an epoch.
        n_features_in_: number of features, of a table.
        feature_names_in_: names of the columns, of a table that has some.
    """

    def __init__(
        self,
        *,
        latent_dim: int = 2,
        network: Any = "mlp",
        method: str = "online",
        hessian: str = "approx",
        likelihood: Any = "gaussian",
        update: str = "laplacian",
        forgetting: float | None = None,
        prior_precision: float = 1.0,
        predictive: str = "mc",
        n_samples: int = 100,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_fraction: float = 0.1,
        contamination: float = 0.05,
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
        self.contamination = contamination
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> LaplacianAutoencoder:
        """Learn from X (n, ...); y is not looked at."""
        from lapae.estimator.training import train, typical_gap

        if not isinstance(self.contamination, Real) or not 0 < self.contamination <= 0.5:
            raise ValueError(f"contamination={self.contamination!r}: expected a number above 0 and at most 0.5")
        x = self._validated(X, reset=True)
        empty = np.isnan(x).reshape(len(x), -1).all(0)
        if empty.any():
            column = int(empty.argmax())
            raise ValueError(f"X has no value at all in feature {column} (from 0): there is nothing to learn of it")
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.model_, held_out = train(self, x)
        self.space_ = self.model_.space
        self.history_ = self.model_.history
        self.n_iter_ = max(1, len(self.history_))
        self.latent_dim_ = self._n_features_out = self._code_size(x[:1])
        self.hidden_noise_ = typical_gap(self, held_out if len(held_out) else x)
        self.offset_ = float(np.percentile(self.score_samples(X), 100 * self.contamination))
        return self

    def transform(self, X: Any, return_std: bool = False) -> Any:
        """Codes (n, K): their mean over networks, and with `return_std` their deviation (n, K)."""
        found = self._predict(self._validated(X), ("codes",))
        z = _numpy(found.z_mean)
        return (z, np.sqrt(_numpy(found.z_var))) if return_std else z

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Data (n, ...) decoded from codes (n, K): the mean over networks."""
        from lapae.predict.decode import decode

        check_is_fitted(self)
        z = np.asarray(X, dtype=np.float64)
        if z.ndim != 2 or z.shape[1] != self.latent_dim_:
            raise ValueError(f"expected codes (n, {self.latent_dim_}), got an array of shape {z.shape}")
        found = decode(self._method, torch.from_numpy(z), n_samples=self.n_samples, seed=self.seed_)
        return self.space_.to_user(found.mean.numpy())

    def reconstruct(self, X: Any, return_std: bool = False) -> Any:
        """Reconstructions (n, ...), and with `return_std` their deviation over networks (plus a learned noise)."""
        found = self._predict(self._validated(X), ("outputs",))
        x = self.space_.to_user(_numpy(found.x_mean))
        if not return_std:
            return x
        var = _numpy(found.x_var) + (_numpy(found.x_noise) if found.x_learned else 0.0)
        return x, self.space_.to_user(np.sqrt(var), deviation=True)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-likelihood (n,) of each datum under its reconstruction, in the model's space; higher is more normal.

        Missing values are left out.
        """
        return _numpy(self._predict(self._validated(X), ("density",)).log_likelihood)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood: what model selection maximises."""
        return float(np.mean(self.score_samples(X)))

    def decision_function(self, X: Any) -> np.ndarray:
        """`score_samples` minus the threshold: negative is out of distribution."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """-1 for data out of distribution, 1 for the others."""
        return np.where(self.decision_function(X) >= 0, 1, -1)  # a score that is no number is not normal

    def impute(self, X: Any, n_samples: int | None = None) -> np.ndarray:
        """X with its missing values (NaN) filled in, observed ones untouched.

        Without `n_samples` the best guess (n, ...). With it that many plausible completions (n_samples, n, ...), each
        from a network and noise of its own: their spread is the uncertainty of the missing values.
        """
        from lapae.estimator.prediction import complete

        x = self._validated(X)
        filled = self.space_.to_user(complete(self, self.to_model(x), n_samples))
        return np.where(np.isnan(x), filled, x) if x.dtype.kind == "f" else np.broadcast_to(x, filled.shape).copy()

    def sample(self, n_samples: int = 1, random_state: int | None = None) -> np.ndarray:
        """New data (n_samples, ...): from noise, or from the prior over codes where the method has one."""
        from lapae.estimator.prediction import generate

        check_is_fitted(self)
        seed = self.seed_ if random_state is None else int(check_random_state(random_state).randint(2**31 - 1))
        space = self.space_
        shape, n = space.model_shape, int(n_samples)
        made = generate(self._method, shape, self.latent_dim_, n, seed=seed, value_range=space.value_range)
        return space.to_user(made)

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator into a run folder: tensors and plain text, nothing pickled."""
        from lapae.estimator.storage import save

        check_is_fitted(self)
        save(self, path)

    @classmethod
    def load(cls, path: str | Path, *, network: Any = None, likelihood: Any = None) -> LaplacianAutoencoder:
        """The estimator of a run folder. Modules or a likelihood of one's own are not saved: give them here again."""
        from lapae.estimator.storage import load

        return load(cls, path, network=network, likelihood=likelihood)

    def to_model(self, x: np.ndarray) -> Tensor:
        """Validated data (n, ...) in the model's space, (n, *model shape) in the precision of its weights."""
        return torch.from_numpy(self.space_.to_model(x))

    @property
    def _method(self) -> Method:
        return self.model_.method

    def _predict(self, x: np.ndarray, want: tuple[Any, ...]) -> Prediction:
        from lapae.predict import predict

        options = {"predictive": self.predictive, "n_samples": self.n_samples, "seed": self.seed_}
        return predict(self._method, self.to_model(x), want=want, **options)

    def _code_size(self, one: np.ndarray) -> int:
        from lapae.predict import evaluating

        weight = next(self._method.parameters())
        with evaluating(self._method):
            x = self.to_model(one).to(weight.device, weight.dtype)
            return self._method.draw_mean().encode(x[None]).shape[-1]

    def _validated(self, X: Any, *, reset: bool = False) -> np.ndarray:
        if not reset:
            check_is_fitted(self)
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy()
        deep = isinstance(X, np.ndarray) and X.ndim > 2
        x: Any = validate_data(
            self,
            X,  # pyright: ignore[reportArgumentType]
            reset=reset,
            ensure_all_finite="allow-nan",
            ensure_2d=not deep,
            allow_nd=deep,
            ensure_min_samples=MINIMUM if reset else 1,
            dtype=None if deep else "numeric",
        )
        if deep and reset:
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
        return x if x.dtype.kind == "f" or (deep and x.dtype in (np.uint8, np.bool_)) else x.astype(np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags


def _numpy(x: Tensor | None) -> np.ndarray:
    assert x is not None
    return x.numpy()
