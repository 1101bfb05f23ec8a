"""The estimator: scikit-learn's conventions over a `Model`, and nothing else."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils import check_random_state

from lapae.calibrate.calibration import MOST_ROWS
from lapae.estimator.keeping import Keeping
from lapae.estimator.making import Making
from lapae.estimator.parameters import Parameters, check_parameters, configuration
from lapae.estimator.validated import holds_integers, validated
from lapae.space import Column

if TYPE_CHECKING:
    from lapae.calibrate.conformal import Rule
    from lapae.calibrate.drift import DriftAlarm


class LaplacianAutoencoder(
    ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin, Making, Keeping, Parameters
):
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
        epochs: passes over the data at most; 0 fits a posterior to a trained network, which gets X as it is.
        batch_size: data per step.
        learning_rate: of Adam, at the start.
        validation_fraction: share of X held out to steer training; more is held out to calibrate.
        false_alarm_rate: share of new normal rows that `predict` flags: those with a p-value of at most this.
        uncertain: weights that the posterior is over: "all", "encoder", "decoder", or patterns of parameter names.
        temperature: widens (above 1) or narrows the posterior; what predicts held-out data best, where None.
        optimize_prior: prior precision of the post-hoc posterior by marginal likelihood: "scalar", "layer" or "none".
        device: auto, cpu or cuda.
        precision: "32", "tf32" or "bf16".
        random_state: seed, generator or None.
        verbose: whether to show the progress of training.

    Attributes:
        model_: the trained `lapae.model.Model`.
        offset_: the threshold: `decision_function` is `score_samples` minus it; minus infinity where the rows held out
            are too few for `false_alarm_rate`.
        reference_: -`score_samples` of the held-out data that new ones are compared with.
        history_: one record per epoch.
        n_features_in_: number of features, of a table.
        feature_names_in_: names of the columns, of a table that has some.
    """

    def fit(self, X: Any, y: Any = None) -> LaplacianAutoencoder:
        """Learn from data.

        Args:
            X: n data. Some are held out to steer training, others to calibrate.
            y: not looked at.

        Returns:
            The estimator.
        """
        from lapae.curvature.likelihoods import likelihood
        from lapae.data import Data
        from lapae.data.splits import check_enough
        from lapae.fit import fit
        from lapae.train.progress import make_progress

        check_parameters(self)
        x = validated(self, X, reset=True)
        check_enough(len(x))
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
            integers=holds_integers(X),
        )
        return self._settle()

    def set_params(self, **params: Any) -> LaplacianAutoencoder:
        """As in scikit-learn. `false_alarm_rate`, `predictive` and `n_samples` take effect on a fitted one too."""
        super().set_params(**params)
        if "model_" in self.__dict__:
            self._share_rate()  # with the report and the explorer
            self.model_.predicting(predictive=params.get("predictive"), n_samples=params.get("n_samples"))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> LaplacianAutoencoder:
        """Take in the next data of a stream, forgetting old ones at the rate `forgetting`; the first call is `fit`.

        Args:
            X: n data. Most are learned, the others calibrate what is reported, with the newest held out before.
            y: not looked at.

        Returns:
            The estimator.
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
        from lapae.calibrate.drift import DriftAlarm

        return DriftAlarm(self.reference_, every=every)

    def transform(self, X: Any, return_std: bool = False) -> Any:
        """Codes of data.

        Args:
            X: n data.
            return_std: give deviations too.

        Returns:
            Codes (n, K), the mean over networks; with `return_std` a pair with their deviation over networks (n, K).
        """
        z, z_std = self._fitted().encode(self._validated(X))
        z, z_std = z.reshape(len(z), -1), z_std.reshape(len(z), -1)
        return (z, z_std) if return_std else z

    def inverse_transform(self, X: Any, return_std: bool = False) -> Any:
        """Data decoded from codes.

        Args:
            X: codes (n, K).
            return_std: give deviations too.

        Returns:
            Data (n, ...); with `return_std` a pair with their deviation over networks (n, ...).
        """
        model, z = self._fitted(), np.asarray(X, dtype=np.float64)
        if z.ndim != 2 or z.shape[1] != self._n_features_out:
            raise ValueError(f"expected codes (n, {self._n_features_out}), got an array of shape {z.shape}")
        x, x_std = model.decode(z.reshape(len(z), *model.code_shape))
        return (x, x_std) if return_std else x

    def reconstruct(self, X: Any, return_std: bool = False) -> Any:
        """Data as the model sees them.

        Args:
            X: n data.
            return_std: give deviations too.

        Returns:
            An array like X; with `return_std` a pair with the deviation of values from it. ± 1.64 deviations hold 90 %
            of the values of new data of this kind; `predict_interval` has other levels.
        """
        x, x_std = self._fitted().reconstruct(self._validated(X))
        return (x, x_std) if return_std else x

    def score_samples(self, X: Any) -> np.ndarray:
        """How normal each datum is, (n,): minus its surprise, higher is more normal. NaN with nothing observed.

        `score_parts` has what it is made of, and the log-likelihood.
        """
        return -self._fitted().surprise(self._validated(X))[0]

    def score_parts(self, X: Any) -> dict[str, np.ndarray]:
        """The parts of the score and the paper's scores by name, (n,) each; higher is more unusual."""
        return self._fitted().parts(self._validated(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood, which model selection maximises.

        Args:
            X: n data.
            y: not looked at.

        Returns:
            A float.
        """
        return float(np.mean(self._fitted().log_likelihood(self._validated(X))))

    def decision_function(self, X: Any) -> np.ndarray:
        """How far each row is from being flagged, (n,): below 0 if and only if `p_value(X) <= false_alarm_rate`.

        It is `score_samples` minus `offset_`. For rows with missing values, which have a comparison of their own, the
        p-value decides where the two disagree. NaN for rows with nothing observed. Where `offset_` is minus infinity
        it is above 0 for all rows, in the same order as `score_samples`.
        """
        return self._rule().decision(*self._fitted().surprise(self._validated(X)))

    @property
    def offset_(self) -> float:
        """The threshold on `score_samples`: rows below it are flagged, at the rate `false_alarm_rate`."""
        return -self._fitted().rule(self.false_alarm_rate).threshold

    def p_value(self, X: Any) -> np.ndarray:
        """Share (n,) of held-out normal data at least as unusual: uniform on new normal data, small is unusual."""
        return self._fitted().surprise(self._validated(X))[1]

    def predict(self, X: Any) -> np.ndarray:
        """-1 for unusual rows, with `p_value(X) <= false_alarm_rate` or nothing observed, else 1: (n,)."""
        return np.where(self._fitted().surprise(self._validated(X))[1] > self._rule().rate, 1, -1)

    def discoveries(self, X: Any, rate: float = 0.1) -> np.ndarray:
        """Rows to call unusual so that at most `rate` of them are normal, on average (Benjamini-Hochberg).

        Args:
            X: n rows, which are judged together: the more of them are unusual, the more are found.
            rate: share of false discoveries.

        Returns:
            (n,) bool; False for rows with nothing observed.
        """
        return self._fitted().discoveries(self._validated(X), rate)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Where the values of new data of this kind lie, given their code (split conformal prediction).

        Args:
            X: n data.
            level: share of the values of new data that lie within, on average over data.

        Returns:
            low, high: arrays like X.
        """
        return self._fitted().interval(self._validated(X), level)

    def explain(self, X: Any) -> np.ndarray:
        """Contribution of each value to how unusual its datum is: an array like X, at least 0.

        They add up to the surprise, minus `score_samples`, but for a small term. Half of it is what each value adds to
        the parts of the score, half (of tables) by how much less unusual a datum is without the value. What the model
        would have expected in place of a value is said by `counterfactual`.
        """
        return self._fitted().explain(self._validated(X))

    @property
    def reference_(self) -> np.ndarray:
        """Minus `score_samples` (n,) of the held-out data that new ones are compared with."""
        calibration = self._fitted().calibration
        return np.empty(0) if calibration is None else calibration.reference.cpu().numpy()

    def _rule(self) -> Rule:
        """How rows are flagged; warns where none can be."""
        rule = self._fitted().rule(self.false_alarm_rate)
        if message := rule.unmet(most=MOST_ROWS):
            warnings.warn(message, stacklevel=3)
        return rule

    def _share_rate(self) -> None:
        """Let the model have the false alarm rate of the estimator."""
        config, rate = self.model_.config, self.model_.rule(self.false_alarm_rate).rate
        self.model_.config = replace(config, train=replace(config.train, false_alarm_rate=rate))

    def _settle(self) -> LaplacianAutoencoder:
        """What scikit-learn expects of a fitted estimator, from the model."""
        self.history_ = self.model_.history
        self.n_iter_ = max(1, len(self.history_))
        self.latent_dim_ = self._n_features_out = int(np.prod(self.model_.code_shape))
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags
