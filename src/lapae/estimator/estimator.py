"""The estimator: scikit-learn's conventions over a `Model`, and nothing else."""

from __future__ import annotations

import sys
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from lapae.estimator.parameters import Parameters, check_parameters, configuration
from lapae.estimator.validated import is_mixed, validated
from lapae.predict.conformal import discoveries
from lapae.space import Column

if TYPE_CHECKING:
    from lapae.model import Model
    from lapae.predict.drift import DriftAlarm

FALSE_DISCOVERIES = 0.1
"""Share of the flagged data that may be normal, with contamination="auto"."""


class LaplacianAutoencoder(ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin, Parameters):
    """An autoencoder that knows what it does not know.

    It learns codes of data with a posterior over its weights, finds what is unusual, fills in what is missing and
    generates new data; what it says about uncertainty is calibrated on data held out of X.

    X is a table (n, F): an array, or a pandas or polars frame with numbers, categories, booleans, dates and missing
    cells; images (n, H, W), (n, C, H, W) or (n, H, W, C) of uint8 or floats; or windows of a series (n, T, channels).
    Missing values are NaN, in `fit` too. What comes back is in the units of X. Where an argument is None, the data
    choose.

    Args:
        latent_dim: size K of the code.
        network: "mlp", "conv", a network of the paper by name, a pair (encoder, decoder) of `torch.nn.Module`s, or one
            module that has `encode` and `decode`.
        method: online (the paper's), posthoc, ae, ae-var, vae, dropout, ensemble, online-ensemble or bbb.
        hessian: curvature of the posterior: sketch, approx, exact, mixed, mc, bottleneck, block or kfac.
        likelihood: "gaussian" (its noise is learned), "student" (training data with outliers), "bernoulli",
            "categorical", or an object such as `Gaussian(sigma=0.5)`, whose noise is kept.
        update: of the online precision: laplacian, redux, van or nng.
        forgetting: the α of the online update; the learning rate where None.
        prior_precision: of the Gaussian prior over weights.
        predictive: moments (one pass), mc (sampled networks) or linearized.
        n_samples: networks drawn for a prediction by mc.
        epochs: passes over the data at most; 0 fits a posterior to a trained network.
        batch_size: data per step.
        learning_rate: of Adam, at the start.
        validation_fraction: share of X held out to steer training; more is held out to calibrate.
        contamination: rate at which `predict` flags new normal data, or "auto": then at most a tenth of what is flagged
            in a call is expected to be normal (Benjamini-Hochberg).
        uncertain: weights that the posterior is over: "all", "encoder", "decoder", or patterns of parameter names.
        temperature: widens (above 1) or narrows the posterior; what predicts held-out data best, where None.
        optimize_prior: prior precision of the post-hoc posterior by marginal likelihood: "scalar", "layer" or "none".
        device: auto, cpu or cuda.
        precision: "32", "tf32" or "bf16".
        random_state: seed, generator or None.
        verbose: whether to show the progress of training.

    Attributes:
        model_: the trained `lapae.model.Model`.
        offset_: the threshold: `decision_function` is `score_samples` minus it.
        reference_: -`score_samples` of the held-out data that new ones are compared with.
        history_: one record per epoch.
        n_features_in_: number of features, of a table.
        feature_names_in_: names of the columns, of a table that has some.
    """

    def fit(self, X: Any, y: Any = None) -> LaplacianAutoencoder:
        """Learn from X; y is not looked at."""
        from lapae.curvature.likelihoods import likelihood
        from lapae.data import Data
        from lapae.fit import fit
        from lapae.train.progress import make_progress

        check_parameters(self)
        x = validated(self, X, reset=True)
        seed = self.random_state
        self.seed_ = int(seed) if isinstance(seed, Integral) else int(check_random_state(seed).randint(2**31 - 1))
        data = Data.of(x, validation=self.validation_fraction)
        names = None if x is X else getattr(self, "feature_names_in_", None)
        if names is not None:
            data = replace(data, space=replace(data.space, columns=tuple(Column(str(name)) for name in names)))
        self.model_ = fit(
            configuration(self, x),
            data,
            network=None if isinstance(self.network, str) else self.network,
            likelihood=None if isinstance(self.likelihood, str) else likelihood(self.likelihood),
            observers=[make_progress(sys.stderr)] if self.verbose else [],
        )
        return self._settle()

    def set_params(self, **params: Any) -> LaplacianAutoencoder:
        """As in scikit-learn. `contamination`, `predictive` and `n_samples` also take effect on a fitted estimator."""
        super().set_params(**params)
        if "model_" in self.__dict__:
            self.model_.predicting(predictive=params.get("predictive"), n_samples=params.get("n_samples"))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> LaplacianAutoencoder:
        """Take in the next data of a stream, forgetting old ones at the rate `forgetting`; the first call is `fit`.

        Most of X are learned, the others calibrate what is reported, with the newest that were held out before.
        """
        from lapae.fit import learn_on

        if not hasattr(self, "model_"):
            return self.fit(X)
        learn_on(self.model_, self._validated(X))
        return self._settle()

    def drift_alarm(self, every: int = 10_000) -> DriftAlarm:
        """An alarm that is told of `-score_samples(X)` of new data, and says when they have changed.

        Args:
            every: data between two false alarms, on average, at least.
        """
        from lapae.predict.drift import DriftAlarm

        return DriftAlarm(self.reference_, every=every)

    def transform(self, X: Any, return_std: bool = False) -> Any:
        """Codes (n, K), the mean over networks; with `return_std` also their deviation over networks (n, K)."""
        z, z_std = self._fitted().encode(self._validated(X))
        z, z_std = z.reshape(len(z), -1), z_std.reshape(len(z), -1)
        return (z, z_std) if return_std else z

    def inverse_transform(self, X: Any, return_std: bool = False) -> Any:
        """Data (n, ...) decoded from codes (n, K); with `return_std` also their deviation over networks."""
        model, z = self._fitted(), np.asarray(X, dtype=np.float64)
        if z.ndim != 2 or z.shape[1] != self._n_features_out:
            raise ValueError(f"expected codes (n, {self._n_features_out}), got an array of shape {z.shape}")
        x, x_std = model.decode(z.reshape(len(z), *model.code_shape))
        return (x, x_std) if return_std else x

    def reconstruct(self, X: Any, return_std: bool = False) -> Any:
        """Reconstructions (n, ...); with `return_std` also the deviation of values from them.

        x ± 1.64 deviations holds 90 % of the values of new data of this kind; `predict_interval` has other levels.
        """
        x, x_std = self._fitted().reconstruct(self._validated(X))
        return (x, x_std) if return_std else x

    def score_samples(self, X: Any) -> np.ndarray:
        """How normal each datum is, (n,): minus its surprise, higher is more normal. NaN for data without any value.

        `score_parts` has what it is made of, and the log-likelihood.
        """
        return -self._fitted().surprise(self._validated(X))[0]

    def score_parts(self, X: Any) -> dict[str, np.ndarray]:
        """The parts of the score and the paper's scores by name, (n,) each; higher is more unusual."""
        return self._fitted().parts(self._validated(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of X, which model selection maximises."""
        return float(np.mean(self._fitted().log_likelihood(self._validated(X))))

    def decision_function(self, X: Any) -> np.ndarray:
        """`score_samples` minus the threshold: negative is out of distribution."""
        return self.score_samples(X) - self.offset_

    @property
    def offset_(self) -> float:
        """The threshold on `score_samples`, at the rate `contamination`."""
        rate = FALSE_DISCOVERIES if self.contamination == "auto" else self.contamination
        return -self._fitted().threshold(float(rate))

    def p_value(self, X: Any) -> np.ndarray:
        """Share (n,) of held-out normal data at least as unusual: uniform on new normal data, small is unusual."""
        return self._fitted().surprise(self._validated(X))[1]

    def predict(self, X: Any) -> np.ndarray:
        """-1 for data out of distribution, else 1: new normal data are flagged at the rate `contamination`."""
        surprise, p = self._fitted().surprise(self._validated(X))
        flagged = discoveries(p, FALSE_DISCOVERIES) if self.contamination == "auto" else -surprise < self.offset_
        return np.where(flagged, -1, 1)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Where the values of new data of this kind lie, given their code: (low, high), arrays like X.

        A share `level` of the values of new data lies within, on average over data (split conformal prediction).
        """
        return self._fitted().interval(self._validated(X), level)

    def impute(self, X: Any, n_samples: int | None = None) -> np.ndarray:
        """X with its missing values (NaN) filled in, observed ones untouched.

        Without `n_samples` the best guess (n, ...). With it that many plausible completions (n_samples, n, ...), each
        from a network and noise of its own: their spread is the uncertainty of the missing values.
        """
        filled = self._fitted().impute(self._validated(X), n_samples)
        return self.model_.space.uncode(filled, X) if hasattr(X, "columns") and is_mixed(X) else filled

    def impute_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Where missing values (NaN) lie: (low, high), arrays like X; an observed value is its own interval."""
        return self._fitted().impute_interval(self._validated(X), level)

    def explain(self, X: Any) -> np.ndarray:
        """Contribution of each value to how unusual its datum is: an array like X, at least 0.

        They add up to the surprise, minus `score_samples`, but for a small term. Half of it is what each value adds to
        the parts of the score, half (of tables) by how much less unusual a datum is without the value. What the model
        would have expected in place of a value is `reconstruct`, with `predict_interval` around it.
        """
        return self._fitted().explain(self._validated(X))

    def sample(self, n_samples: int = 1, random_state: Any = None, *, noise: bool | None = None) -> np.ndarray:
        """New data (n_samples, ...): codes from their density, decoded by networks drawn from the posterior.

        `noise` adds the noise of single values, which was learned: to all but images, where not given.
        """
        if int(n_samples) < 1:
            raise ValueError(f"n_samples={n_samples}: expected at least 1")
        seed = None if random_state is None else int(check_random_state(random_state).randint(2**31 - 1))
        made, space = self._fitted().sample(int(n_samples), seed, noise=noise), self.model_.space
        return space.uncode(made) if any(column.kind != "number" for column in space.columns or ()) else made

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted estimator into a run folder: tensors and plain text, nothing pickled.

        `overwrite` replaces an estimator that is there, all at once.
        """
        from lapae.estimator.storage import save_estimator

        check_is_fitted(self)
        save_estimator(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, network: Any = None, likelihood: Any = None) -> LaplacianAutoencoder:
        """The estimator of a run folder, also of one that `lapae train` wrote.

        Modules or a likelihood of one's own are not saved: give them here again.
        """
        from lapae.estimator.storage import load_estimator

        return load_estimator(cls, path, network=network, likelihood=likelihood)

    def export(self, path: str | Path) -> None:
        """Write one ONNX graph: raw data in; reconstruction, intervals, deviation, code, score and p-value out.

        onnxruntime and numpy are enough to run it; `lapae.predict.export` says what goes in and comes out.
        """
        from lapae.predict.export import export

        export(self._fitted(), path)

    def report(self, X: Any, y: Any = None, *, path: str | Path = "report.html") -> Path:
        """Write one HTML page about X: what is unusual and why, errors, calibration, the latent map; y colours it."""
        from lapae.view.pages import report

        return report(self._fitted(), self._validated(X), y, path=path)

    def explore(self, X: Any = None, y: Any = None, **options: Any) -> None:
        """Look at X in the browser, until Ctrl-C; y colours it, `options` are `host`, `port` and `open`."""
        from lapae.view.pages import explore

        explore(self._fitted(), None if X is None else self._validated(X), y, **options)

    @property
    def reference_(self) -> np.ndarray:
        """Minus `score_samples` (n,) of the held-out data that new ones are compared with."""
        calibration = self._fitted().calibration
        return np.empty(0) if calibration is None else calibration.reference.cpu().numpy()

    def _settle(self) -> LaplacianAutoencoder:
        """What scikit-learn expects of a fitted estimator, from the model."""
        self.history_ = self.model_.history
        self.n_iter_ = max(1, len(self.history_))
        self.latent_dim_ = self._n_features_out = int(np.prod(self.model_.code_shape))
        return self

    def _fitted(self) -> Model:
        check_is_fitted(self)
        return self.model_

    def _validated(self, X: Any) -> Any:
        check_is_fitted(self)
        return validated(self, X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags
