"""The scikit-learn estimator: a `Model` behind the conventions of scikit-learn.

scikit-learn's rules hold: `__init__` only stores its arguments, `fit` sets attributes that end in an underscore, and
`get_params`, `set_params` and `clone` work. A run folder stores a fitted estimator as its model and its parameters
(estimator.json).
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from lapae.calibrate.calibration import MOST_CALIBRATION_ROWS
from lapae.calibrate.conformal import check_rate, discoveries
from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.config.names import FEATURES
from lapae.curvature.likelihoods import Gaussian, likelihood
from lapae.errors import ConfigError, RunError
from lapae.runs import ABOUT, CONFIG, HISTORY, Run
from lapae.runs.files import make_folder, whole_folder, write_whole
from lapae.runs.toml import read_config, write_config
from lapae.space import Column
from lapae.space.columns import unique_names
from lapae.space.frames import as_frame, is_frame, unnamed, without_rows

if TYPE_CHECKING:
    from lapae.calibrate.conformal import Rule
    from lapae.calibrate.drift import DriftAlarm
    from lapae.calibrate.stream import Stream
    from lapae.cross import CrossCalibration
    from lapae.model import Guess, Model

CalibrationName = Literal["split", "cross"]
METHOD = (
    *("hessian", "update", "forgetting", "prior_precision", "predictive", "n_samples", "uncertain", "temperature"),
    "optimize_prior",
)
TRAIN = ("epochs", "batch_size", "learning_rate", "false_alarm_rate", "unseen", "device")
"""Parameters that are options of the method, and of training, under the same name."""
OWN = {"own": True}
"""Stands for modules or a likelihood of the user, which are code and are not saved."""


class LaplacianAutoencoder(ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin, BaseEstimator):
    """An autoencoder that knows what it does not know.

    It learns embeddings with a posterior over its weights, finds unusual samples, fills in missing values and generates
    new samples. Its p-values and intervals are calibrated on held-out samples of X.

    X is a table (n, F), as an array or as a frame (pandas, polars, Arrow) with numbers, categories, booleans, dates and
    missing values; images (n, H, W), (n, C, H, W) or (n, H, W, C) of uint8 or floats; or windows of a series (n, T,
    channels). Missing values are NaN, in `fit` too. Results are in the units of X, and are frames if X is one. The
    default of an argument that is None depends on the data.

    Args:
        latent_dim: size K of the latent code.
        network: "mlp", "conv", a network of the paper by name, a pair (encoder, decoder) of `torch.nn.Module`s, or one
            module that has `encode` and `decode`.
        features: learn features of images instead of their pixels: "efficientnet_lite0" (pip install lapae[images]), or
            a trained module that takes images (B, 3, H, W) in [0, 1] and returns one or several feature maps (B, C, h,
            w); it is not changed.
        method: online (the paper's), posthoc, ae, ae-var, vae, dropout, ensemble, online-ensemble or bbb.
        hessian: curvature of the posterior: lowrank (default), sketch (default for images and networks of your own),
            approx, exact, mixed, mc, bottleneck, block or kfac.
        likelihood: "gaussian" (its noise is learned), "student" (for training data with outliers), "bernoulli",
            "categorical", or an object such as `Gaussian(sigma=0.5)`, whose noise is fixed.
        update: update of the online precision: laplacian, redux, van or nng.
        forgetting: the α of the online update; default: the learning rate.
        prior_precision: precision of the Gaussian prior over weights.
        predictive: how uncertainty is computed: moments (one pass), mc (sampled networks) or linearized.
        n_samples: number of networks that mc draws for a prediction.
        epochs: maximum number of passes over the data; 0 fits a posterior to a trained network, which gets X as it is.
        batch_size: samples per step.
        learning_rate: initial learning rate of Adam.
        validation_fraction: share of X used as the validation set; further samples are held out for calibration.
        false_alarm_rate: share of new normal samples that `predict` flags: those with a p-value of at most this.
        unseen: how to treat categories of new rows that are not in X: as "unusual" (rarer than any category in X) or as
            "missing".
        uncertain: weights that have a posterior: "all", "encoder", "decoder", or patterns of parameter names.
        temperature: widens (above 1) or narrows the posterior; default: the one that predicts held-out samples best.
        optimize_prior: choose the prior precision of the post-hoc posterior by marginal likelihood: "scalar", "layer"
            or "none".
        device: auto, cpu or cuda.
        precision: "32", "tf32" or "bf16".
        random_state: seed, generator or None.
        verbose: whether to show the progress of training.

    Attributes:
        model_: the trained `lapae.model.Model`.
        offset_: the threshold: `decision_function` is `score_samples` minus it; minus infinity if too few samples are
            held out for `false_alarm_rate`.
        reference_: anomaly scores (minus `score_samples`) of the held-out samples that new ones are compared with.
        history_: one record per epoch.
        learned_columns_: names of the columns of a table that are learned (their positions if it has no names);
            constants, identifiers and free text are not.
        n_features_in_: number of features of a table.
        feature_names_in_: names of the columns of a table, if it has names.

    Examples:
        A table in which the second column is twice the first, and the third its negative. The examples of the methods
        continue with it.

        >>> import numpy as np
        >>> from lapae import LaplacianAutoencoder
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((300, 1)) * [1.0, 2.0, -1.0] + 0.1 * rng.standard_normal((300, 3))
        >>> model = LaplacianAutoencoder(latent_dim=1, epochs=5, random_state=0, device="cpu").fit(X)
        >>> model.predict([[1.0, 2.0, -1.0], [1.0, -2.0, -1.0]])
        array([ 1, -1])
        >>> model.impute([[1.0, np.nan, -1.0]]).round()
        array([[ 1.,  2., -1.]])
    """

    seed_: int
    model_: Model
    _cross: CrossCalibration | None = None
    """Models for cross-conformal p-values, once they have been requested."""
    _names: list[str] | None = None
    """Names of all columns of the frame that was fitted."""
    _labels: list[str | int] | None = None
    """Their labels in that frame, which may be whole numbers."""
    _like: Any = None
    """The learned columns of that frame, without rows."""
    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        *,
        latent_dim: int | None = None,
        network: Any = None,
        features: Any = None,
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
        unseen: str = "unusual",
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
        self.features = features
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
        self.unseen = unseen
        self.uncertain = uncertain
        self.temperature = temperature
        self.optimize_prior = optimize_prior
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def from_trained(cls, encoder: Any, decoder: Any = None, **parameters: Any) -> Self:
        """Wrap a trained network in an estimator, whose `fit` does not train but fits a posterior and the calibration.

        The network gets X as it is, whatever its units: floats unchanged, integer images divided by 255. `reconstruct`
        returns the output of the network. Weights with `requires_grad=False` are treated as known.

        Args:
            encoder: a module that is called on samples, or a model with `encode` and `decode`; it is not changed.
            decoder: a module that is called on codes; it is not changed either.
            parameters: further arguments of the constructor.

        Examples:
            >>> import torch
            >>> encoder, decoder = torch.nn.Linear(3, 1), torch.nn.Linear(1, 3)
            >>> LaplacianAutoencoder.from_trained(encoder, decoder).method
            'posthoc'
        """
        if encoder is None or isinstance(encoder, str):  # these mean a new network, which nothing would train
            raise ConfigError(f"encoder={encoder!r}: expected a trained torch.nn.Module, or a model that has both")
        network = encoder if decoder is None else (encoder, decoder)
        return cls(network=network, **{"method": "posthoc", "epochs": 0, **parameters})

    # ------------------------------------------------------------------ learning

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> LaplacianAutoencoder:
        """Learn from samples.

        Args:
            X: n samples. Some are held out as a validation set, others for calibration.
            y: ignored.
            groups: group of each sample (n,), such as a customer, patient or machine. The samples of a group are held
                out together, and one of each group is used for calibration, so that p-values hold for new groups.
                Default: no groups.

        Returns:
            The estimator.

        Examples:
            >>> other = LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(X)
            >>> other.learned_columns_
            array([0, 1, 2])

            Rows 0 to 2 belong to one machine, rows 3 to 5 to the next:

            >>> other = other.fit(X, groups=np.arange(300) // 3)
        """
        from lapae.data import Data
        from lapae.data.splits import check_enough
        from lapae.fit import fit
        from lapae.train.progress import make_progress

        check_parameters(self)
        x = validated(self, X, reset=True)
        check_enough(len(x))
        seed = self.random_state
        self.seed_ = int(seed) if isinstance(seed, Integral) else int(check_random_state(seed).randint(2**31 - 1))
        if self.features is not None:
            from lapae.space.features import Features

            features = Features.of(x, self.features)
            x = features(x)
            data = Data.of(x, groups=groups, validation=self.validation_fraction)
            data = replace(data, space=replace(data.space, features=features))
        else:
            data = Data.of(x, groups=groups, validation=self.validation_fraction)
        names = None if is_frame(x) else getattr(self, "feature_names_in_", None)
        if names is not None:
            data = replace(data, space=replace(data.space, columns=tuple(Column(str(name)) for name in names)))
        self._names = None if not is_frame(X) else unique_names(as_frame(X).columns)  # pyright: ignore
        self._labels = None if not is_frame(X) else [_label(label) for label in as_frame(X).columns]  # pyright: ignore
        self.model_ = fit(
            configuration(self, x),
            data,
            network=None if isinstance(self.network, str) else self.network,
            likelihood=None if isinstance(self.likelihood, str) else likelihood(self.likelihood),
            observers=[make_progress(sys.stderr)] if self.verbose else [],
            integers=holds_integers(X),
        )
        self._cross, names = None, self.model_.space.names
        self._like = without_rows(X, names) if is_frame(X) and is_frame(x) and names is not None else None
        return self._settle()

    def partial_fit(self, X: Any, y: Any = None) -> LaplacianAutoencoder:
        """Learn from the next samples of a stream, forgetting old ones at the rate `forgetting`; the first call is
        `fit`.

        Args:
            X: n samples. Most are learned; the others, with the newest of those held out before, are used for
                calibration.
            y: ignored.

        Returns:
            The estimator.
        """
        from lapae.fit import learn_on

        if not hasattr(self, "model_"):
            return self.fit(X)
        self.model_, self._cross = learn_on(self.model_, self._validated(X)), None
        return self._settle()

    def set_params(self, **params: Any) -> LaplacianAutoencoder:
        """Set parameters. `false_alarm_rate`, `predictive` and `n_samples` take effect on a fitted estimator too."""
        super().set_params(**params)
        if "model_" in self.__dict__:
            self._share_rate()  # with the report and the explorer
            how = {name: params.get(name) for name in ("predictive", "n_samples")}
            self.model_ = self.model_.predicting(**how)
        return self

    # ------------------------------------------------------------------ embeddings and reconstructions

    def transform(self, X: Any, return_std: bool = False) -> Any:
        """Embed samples.

        Args:
            X: n samples.
            return_std: return standard deviations too.

        Returns:
            Latent codes (n, K), the mean over networks; with `return_std` a pair with their standard deviation over
            networks (n, K).

        Examples:
            >>> z, z_std = model.transform(X, return_std=True)
            >>> z.shape, z_std.shape
            ((300, 1), (300, 1))
            >>> bool(abs(np.corrcoef(z[:, 0], X[:, 1])[0, 1]) > 0.9)  # the code is what the columns have in common
            True
        """
        z, z_std = self._fitted().encode(self._validated(X))
        z, z_std = z.reshape(len(z), -1), z_std.reshape(len(z), -1)
        return (z, z_std) if return_std else z

    def inverse_transform(self, X: Any, return_std: bool = False) -> Any:
        """Decode latent codes.

        Args:
            X: codes (n, K).
            return_std: return standard deviations too.

        Returns:
            Samples (n, ...); with `return_std` a pair with their standard deviation over networks (n, ...).

        Examples:
            >>> model.inverse_transform(model.transform(X)).shape
            (300, 3)
        """
        model, z = self._fitted(), np.asarray(X, dtype=np.float64)
        if z.ndim != 2 or z.shape[1] != self._n_features_out:
            raise ValueError(f"expected codes (n, {self._n_features_out}), got an array of shape {z.shape}")
        x, x_std = model.decode(z.reshape(len(z), *model.code_shape))
        return (x, x_std) if return_std else x

    def reconstruct(self, X: Any, return_std: bool = False) -> Any:
        """Reconstruct samples.

        Args:
            X: n samples.
            return_std: return standard deviations too.

        Returns:
            Samples like X; with `return_std` a pair with the standard deviation of values around them. ± 1.64 standard
            deviations contain 90 % of the values of new samples; for other levels use `predict_interval`.

        Examples:
            >>> x, x_std = model.reconstruct(X, return_std=True)
            >>> bool(np.abs(x - X).mean() < 0.3), bool((x_std > 0).all())
            (True, True)
        """
        x, x_std = self._fitted().reconstruct(self._validated(X))
        x = self._values(x, X)
        return (x, self._numbers(x_std, X)) if return_std else x

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Any, Any]:
        """Return prediction intervals of the values of new samples, given their code (split conformal prediction).

        Args:
            X: n samples.
            level: share of the values of new samples that the intervals contain, on average over samples.

        Returns:
            low, high: like X.

        Examples:
            >>> low, high = model.predict_interval(X, level=0.9)
            >>> bool(((low <= X) & (X <= high)).mean() > 0.8)
            True
        """
        low, high = self._fitted().interval(self._validated(X), level)
        return self._values(low, X), self._values(high, X)

    # ------------------------------------------------------------------ unusual samples

    def score_samples(self, X: Any) -> np.ndarray:
        """Return how normal each sample is, (n,): minus its anomaly score, higher is more normal.

        NaN for a sample with nothing observed. `score_parts` returns its parts and the log-likelihood.

        Examples:
            >>> usual, unusual = model.score_samples([[1.0, 2.0, -1.0], [1.0, -2.0, -1.0]])
            >>> bool(usual > unusual)
            True
        """
        return -self._fitted().anomaly_score(self._validated(X))[0]

    def score_parts(self, X: Any) -> dict[str, np.ndarray]:
        """Return the parts of the anomaly score and the paper's scores by name, (n,) each; higher is more unusual."""
        return self._fitted().parts(self._validated(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood, which model selection maximises.

        Args:
            X: n samples.
            y: ignored.
        """
        return float(np.mean(self._fitted().log_likelihood(self._validated(X))))

    def p_value(self, X: Any, calibration: CalibrationName = "split") -> np.ndarray:
        """Return the share (n,) of held-out samples that are at least as unusual: uniform on new normal samples.

        Args:
            X: n samples.
            calibration: "split": samples are compared with those that `fit` held out, and on average at most a share α
                of new normal samples has p <= α. "cross", for tables: samples are compared with all rows, each scored
                by a model trained without it. The smallest possible p-value is smaller, and the bound is slightly more
                than 2 α (`lapae.cross`), in practice about α. The first call trains 5 models, which `save` keeps.

        Examples:
            >>> model.p_value([[1.0, 2.0, -1.0], [1.0, -2.0, -1.0]]) <= 0.05
            array([False,  True])
            >>> model.p_value([[1.0, 2.0, -1.0], [1.0, -2.0, -1.0]], calibration="cross") <= 0.01
            array([False,  True])
        """
        x = self._validated(X)
        if calibration == "cross":
            return self._cross_calibration().p_values(self.model_, x)
        if calibration != "split":
            raise ValueError(f"calibration={calibration!r}: expected 'split' or 'cross'")
        return self.model_.anomaly_score(x)[1]

    def predict(self, X: Any) -> np.ndarray:
        """Return -1 for unusual samples, with `p_value(X) <= false_alarm_rate` or nothing observed, else 1: (n,).

        Examples:
            >>> model.predict([[1.0, 2.0, -1.0], [1.0, -2.0, -1.0]])
            array([ 1, -1])
        """
        return np.where(self._fitted().anomaly_score(self._validated(X))[1] > self._rule().rate, 1, -1)

    def predict_confidence(self, X: Any) -> np.ndarray:
        """Return how certain each verdict of `predict` is, (n,) from 0 to 1: the share of 100 networks drawn from the
        posterior, linearised in their weights, that give the same verdict.

        NaN for samples with nothing observed. Methods without a posterior (ae, vae, ensemble, …) raise ValueError.

        Examples:
            >>> model.predict_confidence([[1.0, 2.0, -1.0], [1.0, -2.0, -1.0]]) > 0.9
            array([ True,  True])
        """
        return self._fitted().confidence(self._validated(X), self.false_alarm_rate)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return how far each sample is from being flagged, (n,): below 0 if and only if `predict` flags it.

        It is `score_samples` minus `offset_`. Rows with missing values are compared separately, so the p-value decides
        if the two disagree. NaN for rows with nothing observed. If `offset_` is minus infinity, it is above 0 for all
        rows, in the same order as `score_samples`.

        Examples:
            >>> model.decision_function([[1.0, 2.0, -1.0], [1.0, -2.0, -1.0]]) < 0
            array([False,  True])
        """
        return self._rule().decision(*self._fitted().anomaly_score(self._validated(X)))

    @property
    def offset_(self) -> float:
        """Threshold on `score_samples`: samples below it are flagged, at the rate `false_alarm_rate`."""
        return -self._fitted().rule(self.false_alarm_rate).threshold

    @property
    def reference_(self) -> np.ndarray:
        """Minus `score_samples` (n,) of the held-out samples that new ones are compared with."""
        calibration = self._fitted().calibration
        return np.empty(0) if calibration is None else calibration.reference.scores.cpu().numpy()

    def score_pixels(self, X: Any) -> np.ndarray:
        """Return how normal each pixel of images is, (n, H, W), higher is more normal; for a model with `features`."""
        return -self._fitted().pixel_scores(self._validated(X))[0]

    def p_value_pixels(self, X: Any) -> np.ndarray:
        """Return p-values of the pixels of images, (n, H, W), for a model with `features`.

        On average over new normal images, at most about a share p of the pixels has a p-value of at most p.
        """
        return self._fitted().pixel_scores(self._validated(X))[1]

    def discoveries(self, X: Any, rate: float = 0.1, calibration: CalibrationName = "split") -> np.ndarray:
        """Choose samples to call unusual, of which at most a share `rate` is normal, on average (Benjamini-Hochberg).

        Args:
            X: n samples, which are judged together: the more of them are unusual, the more easily they are found.
            rate: share of false discoveries.
            calibration: which p-values to use, as in `p_value`. "cross" finds more, because samples are compared with
                all rows; that the rate holds is then measured (`benchmarks/power.md`) but not proven.

        Returns:
            (n,) bool; False for samples with nothing observed.

        Examples:
            >>> rows = np.concatenate([X[:20], np.tile([[1.0, -2.0, -1.0]], (5, 1))])
            >>> model.discoveries(rows, rate=0.1)[20:]
            array([ True,  True,  True,  True,  True])
        """
        check_rate(rate)
        return discoveries(self.p_value(X, calibration), rate)

    def drift_alarm(self, every: int = 10_000) -> DriftAlarm:
        """Return an alarm that takes anomaly scores (`-score_samples(X)`) and says when samples have changed.

        Args:
            every: minimum number of samples between two false alarms, on average.
        """
        from lapae.calibrate.drift import DriftAlarm

        return DriftAlarm(self._fitted().step_rule(self.false_alarm_rate).held_out, every=every)

    def stream(self, *, overlap: int = 1, every: int = 10_000, state: str | Path | None = None) -> Stream:
        """Return a stream: `update(x)` judges the next sample, or samples, by a threshold that follows slow change.

        It returns `(anomaly_score, p_value, p_adaptive, flagged, drift)`; a higher score is more unusual. `p_value` is
        the same as without a stream; in the long run, `p_adaptive` is at most `false_alarm_rate` for that share of the
        samples. During a drift alarm the threshold does not adapt, so that a fault is not learned.

        Args:
            overlap: number of consecutive samples that share data, such as length / distance of windows of a series.
            every: minimum number of samples without common data between two false drift alarms, on average.
            state: file written by `save` of a stream, to continue from.

        Examples:
            >>> stream = model.stream()
            >>> stream.update(X[0]).drift
            False
        """
        return self._fitted().stream(rate=self.false_alarm_rate, overlap=overlap, every=every, state=state)

    def explain(self, X: Any) -> Any:
        """Return the contribution of each value to the anomaly score of its sample: like X, at least 0, and NaN in
        columns that are not learned; for a model with `features` one number per pixel, (n, H, W).

        They add up to the anomaly score, except for a small term. Half of a contribution is what the value adds to the
        parts of the score, the other half (for tables) how much less unusual the row is without the value.
        `counterfactual` says what the model would have expected in place of a value.

        Examples:
            >>> model.explain([[1.0, -2.0, -1.0]]).argmax(1)  # the second column is to blame
            array([1])
        """
        return self._numbers(self._fitted().explain(self._validated(X)), X)

    def counterfactual(self, X: Any, top: int | None = None, level: float = 0.9) -> tuple[Any, ...]:
        """Return what the model would have expected in place of each value, with an interval.

        In a table it is predicted from the other values of the row: each value in turn is hidden and filled in, as
        `impute` does, without the value that `explain` names first, which would be misleading. For images and series it
        is the reconstruction, which an unusual value influences.

        Args:
            X: n samples.
            top: ask only about this many values of each sample, those that `explain` names first; default: all.
            level: share of the values of normal samples that the intervals contain.

        Returns:
            expected, low, high: like X; NaN for values that were not asked about.

        Examples:
            >>> expected, low, high = model.counterfactual([[1.0, -2.0, -1.0]], top=1)
            >>> expected.round()
            array([[nan,  2., nan]])
        """
        found = self._fitted().counterfactual(self._validated(X), top, level)
        return tuple(self._values(part, X, keep=False) for part in found)

    def reasons(self, X: Any) -> Any:
        """Return the value that makes each row of a table unusual, and what was expected there.

        It is one of the values that `explain` names first, and differs from what the other values of its row suggest.

        Args:
            X: n rows.

        Returns:
            A pandas frame (n, 7) with the index of X: `value`, `feature`, `share` of the anomaly score, `expected`, the
            ends of its 90 % interval `low` and `high` (as text), and `unseen`, levels that are not in the training
            data. Empty if no single value is unusual.

        Examples:
            >>> model.reasons([[1.0, -2.0, -1.0]])["feature"].tolist()
            ['1']
        """
        import pandas as pd

        from lapae.view.reasons import REASONS, find_reasons, never_seen

        model, x = self._fitted(), self._validated(X)
        if model.space.kind != "table":
            raise ValueError(f"reasons are for tables: this model was fitted to {model.space.kind} data")
        words: dict[tuple[int, int], str] = {}
        coded = model.space.code(x, words=words)
        found = find_reasons(model, coded)
        made = found.texts(model.space.numbered, words) | {"share": found.share}
        frame = pd.DataFrame({name: made[name] for name in REASONS} | {"unseen": never_seen(model, coded, words)})
        return frame.set_index(X.index) if isinstance(X, pd.DataFrame) else frame

    # ------------------------------------------------------------------ missing values and new samples

    def impute(self, X: Any, n_samples: int | None = None, guess: Guess = "median") -> Any:
        """Fill in the missing values (NaN) of X; observed values stay as they are.

        Args:
            X: n samples.
            n_samples: number of completions to draw for each sample; default: return the best guess.
            guess: best guess of numbers in a table: "median", which minimises the absolute error and keeps whole
                numbers whole, or "mean", which minimises the squared error. Categories are always filled in with the
                most likely one, images and series with the mean.

        Returns:
            The best guess (n, ...), or completions (n_samples, n, ...), each drawn with a network (or bootstrap of the
            rows) and noise of its own: their spread is the uncertainty of the missing values. For a frame, a frame or a
            list of completed frames.

        Examples:
            >>> model.impute([[1.0, np.nan, -1.0]]).round()
            array([[ 1.,  2., -1.]])
            >>> model.impute([[1.0, np.nan, -1.0]], guess="mean").round()
            array([[ 1.,  2., -1.]])
            >>> model.impute([[1.0, np.nan, -1.0]], n_samples=5).shape
            (5, 1, 3)
        """
        filled = self._fitted().impute(self._validated(X), n_samples, guess)
        return self._values(filled, X, observed=True)

    def impute_interval(self, X: Any, level: float = 0.9) -> tuple[Any, Any]:
        """Return prediction intervals of missing values (NaN).

        Args:
            X: n samples.
            level: share of missing values that the intervals contain.

        Returns:
            low, high: like X; for an observed value both are the value itself. In a table the ends are values that the
                column can have: they lie within the range of the training rows unless the row is far from these, are
                whole numbers for a count, and reach further towards the side where values scatter more. The interval of
                a boolean that may be either is false to true; for sets of levels use `impute_levels`.

        Examples:
            >>> low, high = model.impute_interval([[1.0, np.nan, -1.0]], level=0.9)
            >>> bool(low[0, 1] < 2 < high[0, 1]), bool(low[0, 0] == high[0, 0] == 1)
            (True, True)
        """
        low, high = self._fitted().impute_interval(self._validated(X), level)
        return self._values(low, X, observed=True), self._values(high, X, observed=True)

    def impute_levels(self, X: Any, level: float = 0.9) -> Any:
        """Return the levels that missing values of categories and booleans of a table may have.

        Args:
            X: n rows.
            level: share of missing values whose level is among those returned, on average over rows (conformal, except
                for categories with very many levels).

        Returns:
            A frame for a frame, else an array (n, F) of objects, with one column for each category and boolean that is
            learned: a dictionary of probabilities by level, the most probable first; None for observed values.
        """
        found = self._fitted().impute_levels(self._validated(X), level)
        columns = self.model_.space.numbered
        made = np.full((len(X), len(found)), None, dtype=object)
        for k, (j, rows) in enumerate(found.items()):
            levels = columns[j].categories or (False, True)
            for i, likely in enumerate(rows):
                made[i, k] = {levels[code]: p for code, p in likely.items()} or None
        if not is_frame(X):
            return made
        import pandas as pd

        index = X.index if isinstance(X, pd.DataFrame) else None
        return pd.DataFrame(made, index=index, columns=[self._label_of(columns[j].name) for j in found])

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        given: Mapping[Any, Any] | None = None,
        missing: bool | None = None,
        noise: bool | None = None,
    ) -> Any:
        """Generate samples: rows of a table column by column from similar rows; images and series from codes drawn from
        their density, decoded by networks drawn from the posterior.

        Args:
            n_samples: number of samples.
            random_state: seed or generator; default: the seed of `fit`.
            given: values of columns of a table that all samples have, such as `{"color": "red"}`; the other columns are
                drawn given these. None is a missing value; a value outside the range of `fit` causes a warning.
            missing: whether samples have missing values as the rows of the table do; default: only for a frame.
            noise: whether to add the residuals of held-out samples; default: yes, except for images.

        Returns:
            (n_samples, ...), a frame of the learned columns if X of `fit` was a frame.

        Examples:
            >>> made = model.sample(200, random_state=0)
            >>> made.shape
            (200, 3)
            >>> np.corrcoef(made.T).round()
            array([[ 1.,  1., -1.],
                   [ 1.,  1., -1.],
                   [-1., -1.,  1.]])
        """
        if not isinstance(n_samples, Integral) or n_samples < 1:
            raise ValueError(f"n_samples={n_samples!r}: expected a whole number, at least 1")
        seed = None if random_state is None else int(check_random_state(random_state).randint(2**31 - 1))
        made = self._fitted().sample(int(n_samples), seed, noise=noise, given=given, missing=missing)
        space = self.model_.space
        if self._like is not None or space.kind != "table" or not is_frame(frame := space.uncode(made)):
            return space.uncode(made, self._like)
        return frame.set_axis(self.learned_columns_, axis=1)

    def distance(self, a: Any, b: Any) -> np.ndarray:
        """Return distances between latent codes in the geometry of the stochastic decoder.

        It is the length of the shortest path from each code of a to that of b, measured by how much the output of
        decoders drawn from the posterior changes along it. Unlike a Euclidean distance it does not depend on the
        coordinates of the latent space.

        Args:
            a: codes (n, latent_dim), as `transform` returns them, not samples.
            b: codes of the same shape.

        Returns:
            (n,), in standard deviations of the noise of the data.

        Examples:
            >>> z = model.transform([[-1.0, -2.0, 1.0], [0.0, 0.0, 0.0], [1.0, 2.0, -1.0]])
            >>> half, whole = model.distance(z[[0, 0]], z[[1, 2]])
            >>> bool(half < whole)
            True
        """
        return self._fitted().distance(a, b)

    def geodesic(self, a: Any, b: Any, n_points: int = 50) -> np.ndarray:
        """Return the shortest paths between latent codes, as in `distance`.

        Args:
            a: codes (n, latent_dim) where paths begin.
            b: codes (n, latent_dim) where they end.
            n_points: number of points of a path, at equal distances along it, including both ends.

        Returns:
            Codes (n, n_points, latent_dim); `model_.decode(path)` turns the codes of one path into samples.

        Examples:
            >>> z = model.transform(X[:2])
            >>> model.geodesic(z[:1], z[1:], n_points=5).shape
            (1, 5, 1)
        """
        return self._fitted().geodesic(a, b, n_points)

    # ------------------------------------------------------------------ folders, graphs and pages

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted estimator into a run folder: tensors and plain text, nothing pickled.

        An existing folder is replaced in one step by the new one.

        Args:
            path: the folder.
            overwrite: whether to replace an existing estimator.

        Examples:
            >>> import tempfile
            >>> from pathlib import Path
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save(Path(folder) / "mine")
            ...     again = LaplacianAutoencoder.load(Path(folder) / "mine")
            >>> bool((again.p_value(X) == model.p_value(X)).all())
            True
        """
        from lapae.storage import save

        check_is_fitted(self)
        place = Path(path)
        taken = place.exists() and (not place.is_dir() or any(place.iterdir()))
        if taken and not overwrite:
            raise RunError(f"{place} exists: choose another folder, or save(path, overwrite=True)")
        if taken and not (place / ABOUT).exists():
            raise RunError(f"{place} contains something other than an estimator: choose another folder")
        make_folder(place.absolute().parent)
        with whole_folder(place, replace=True) as folder:
            run, history = Run(folder), self.model_.history
            write_whole(run / CONFIG, write_config(self.model_.config).encode())
            write_whole(run / HISTORY, "".join(json.dumps(record) + "\n" for record in history).encode())
            save(self.model_, run)
            if self._cross is not None:
                self._cross.keep(run)
            about = {"params": _plain(self.get_params(deep=False))}
            run.write_json(ABOUT, about | ({} if self._names is None else {"columns": self._labels}))
        self.model_ = replace(self.model_, path=place, as_saved=True)

    @classmethod
    def load(cls, path: str | Path, *, network: Any = None, likelihood: Any = None, features: Any = None) -> Self:
        """Load the estimator of a run folder, including those written by `lapae train`.

        Args:
            path: the folder.
            network: the modules of your own that it was fitted with, which are not saved.
            likelihood: the likelihood of your own, which is not saved either.
            features: the module of your own whose features are learned, which is not saved either; not needed if
                `features` was a name.

        Returns:
            A fitted estimator.
        """
        from lapae.storage import load_run
        from lapae.train.devices import choose_device

        run = Run.open(path)
        params = _saved_params(run, network=network, likelihood=likelihood, features=features)
        try:
            estimator = cls(**params)
            estimator.seed_ = 0
            check_parameters(estimator)
            configuration(estimator, np.empty(0))
        except (TypeError, ValueError) as error:
            raise RunError(f"{run / ABOUT} is damaged: {error}") from error
        device = choose_device("cpu" if estimator.device == "cpu" else "auto")  # a model of a GPU works without one
        own = None if isinstance(estimator.likelihood, str) else estimator.likelihood
        model = load_run(run.path, network=network, likelihood=own, features=features, device=device)
        estimator.model_ = model = replace(model, history=run.read_history())
        estimator.seed_, estimator._cross = model.seed, None
        if model.calibration is not None:
            estimator._share_rate()
        if model.space.kind == "table":
            estimator._labels = _saved_columns(run, model.space)
            estimator._names = None if estimator._labels is None else unique_names(estimator._labels)
            estimator.n_features_in_ = len(estimator._names or range(model.space.shape[0]))
            if estimator._names is not None and not unnamed(estimator._names):
                estimator.feature_names_in_ = np.asarray(estimator._names, dtype=object)
        return estimator._settle()

    def export(self, path: str | Path) -> None:
        """Write one ONNX graph: raw samples in; reconstruction, intervals, deviation, code, score and p-value out.

        onnxruntime and numpy are enough to run it; `lapae.export` describes its inputs and outputs.
        """
        from lapae.export import export

        export(self._fitted(), path)

    def report(self, X: Any, y: Any = None, *, path: str | Path = "report.html") -> Path:
        """Write one HTML page about samples: what is unusual and why, errors, calibration, the latent map.

        Args:
            X: n samples, as in `fit`.
            y: (n,) classes to colour the map by.
            path: path of the page, a self-contained file.

        Returns:
            The path.
        """
        from lapae.view.pages import report

        return report(self._fitted(), self._validated(X), y, path=path)

    def explore(self, X: Any = None, y: Any = None, **options: Any) -> None:
        """Explore samples in the browser, until Ctrl-C.

        Args:
            X: n samples, as in `fit`; default: samples that the model generates.
            y: (n,) classes to colour the map by.
            options: `host`, `port` and `open`, see `lapae.view.pages.explore`.
        """
        from lapae.view.pages import explore

        explore(self._fitted(), None if X is None else self._validated(X), y, **options)

    # ------------------------------------------------------------------ what the methods share

    def _fitted(self) -> Model:
        check_is_fitted(self)
        return self.model_

    def _cross_calibration(self) -> CrossCalibration:
        """Return what cross-conformal p-values need, from the run folder, or else fit it now and keep it there."""
        from lapae.cross import CrossCalibration, as_fitted

        model = self._fitted()
        run = Run(model.path) if model.path is not None and model.as_saved else None
        if self._cross is None and run is not None:
            self._cross = CrossCalibration.load(run, next(model.method.parameters()).device)
        if self._cross is None:
            if not (self.network is None or isinstance(self.network, str)):
                raise ValueError("calibration='cross' trains models anew: expected 'split' for a network of your own")
            config = configuration(self, as_fitted(model))
            own = None if isinstance(self.likelihood, str) else likelihood(self.likelihood)
            self._cross = CrossCalibration.fit(model, config, likelihood=own)
            if run is not None:
                with suppress(OSError):  # a folder that cannot be written to stays as it is
                    self._cross.keep(run)
        return self._cross

    def _validated(self, X: Any) -> Any:
        check_is_fitted(self)
        x = validated(self, X)
        places = None if is_frame(x) else self._places()
        return x if places is None else x[:, places]

    @property
    def learned_columns_(self) -> np.ndarray:
        """Names of the columns of a table that are learned, (F,); their positions if they have no names."""
        space = self._fitted().space
        if space.kind != "table":
            raise AttributeError(f"learned_columns_ is for tables: this model was fitted to {space.kind} data")
        if space.names is None:
            return np.arange(space.shape[0])
        return np.asarray([self._label_of(name) for name in space.names], dtype=object)

    def _label_of(self, name: str) -> str | int:
        """Return the label that a column has in frames, by its name."""
        labels, names = getattr(self, "_labels", None), getattr(self, "_names", None)
        return labels[names.index(name)] if labels and names and name in names else name

    def _values(self, x: np.ndarray, X: Any, *, keep: bool = True, observed: bool = False) -> Any:
        """Return values (…, n, F) of the learned columns like X: a frame for a frame.

        With `keep` other columns are as in X, else NaN; with `observed` values that are not missing are as in X, too.
        """
        space = self.model_.space
        if is_frame(X):
            return space.uncode(x, X, observed=observed, others=keep)
        return self._spread(x, np.asarray(X) if keep else np.nan)

    def _numbers(self, x: np.ndarray, X: Any) -> Any:
        """Return a number for each value (n, F) of the learned columns like X, NaN for those of other columns."""
        return self.model_.space.numbers(x, X) if is_frame(X) else self._spread(x, np.nan)

    def _spread(self, x: np.ndarray, others: Any) -> np.ndarray:
        """Return values (…, F) of the learned columns among `others`, an array of all columns, or a number."""
        places = self._places()
        if places is None:
            return x
        out = np.empty((*x.shape[:-1], self.n_features_in_))
        out[...] = others
        out[..., places] = x
        return out

    def _places(self) -> list[int] | None:
        """Return the places of the learned columns among those of `fit`; None if they are all the columns."""
        space, names = self.model_.space, getattr(self, "_names", None)
        if space.kind != "table" or not names or space.names is None or len(names) == len(space.names):
            return None
        return [names.index(name) for name in space.names]

    def _rule(self) -> Rule:
        """Return the rule by which samples are flagged; warn if none can be."""
        rule = self._fitted().rule(self.false_alarm_rate)
        if message := rule.unmet(most=MOST_CALIBRATION_ROWS):
            warnings.warn(message, stacklevel=3)
        return rule

    def _share_rate(self) -> None:
        """Give the model the false alarm rate of the estimator."""
        config, rate = self.model_.config, self.model_.rule(self.false_alarm_rate).rate
        self.model_ = replace(self.model_, config=replace(config, train=replace(config.train, false_alarm_rate=rate)))

    def _settle(self) -> Self:
        """Set the attributes that scikit-learn expects of a fitted estimator, from the model."""
        self.history_ = self.model_.history
        self.n_iter_ = max(1, len(self.history_))
        self.latent_dim_ = self._n_features_out = int(np.prod(self.model_.code_shape))
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags


def validated(estimator: Any, X: Any, *, reset: bool = False) -> Any:
    """Return X as the library takes it; `reset` is for `fit`, which notes the number and the names of the features."""
    own = not (estimator.network is None or isinstance(estimator.network, str))
    if is_frame(X) and not (own and only_numbers(X)):  # columns are learned by their types, if they are suitable
        frame = as_frame(X)
        assert frame is not None
        if reset:
            estimator.n_features_in_ = frame.shape[1]
            estimator.__dict__.pop("feature_names_in_", None)
            if not unnamed(unique_names(frame.columns)):
                estimator.feature_names_in_ = np.asarray([str(name) for name in frame.columns], dtype=object)
        return frame
    X = _without_na(X)
    if hasattr(X, "detach"):
        X = X.detach().cpu()
        X = (X.float() if str(X.dtype) == "torch.bfloat16" else X).numpy()  # numpy has no such type
    deep = isinstance(X, np.ndarray) and X.ndim > 2
    try:
        x: Any = validate_data(
            estimator,
            X,  # pyright: ignore[reportArgumentType]
            reset=reset,
            ensure_all_finite="allow-nan",
            ensure_2d=not deep,
            allow_nd=deep,
            dtype=None if deep else "numeric",
        )
    except ValueError as error:
        if "inhomogeneous shape" in str(error):
            raise ValueError(
                "X is a list of samples of different shapes: expected samples of one shape, as one array (n, …); "
                "lapae train FOLDER brings images to one size"
            ) from error
        if not str(error).startswith("could not convert string"):
            raise
        raise ValueError(
            f"X contains text, {error}: expected numbers, or a frame, whose columns may be text"
        ) from error
    if deep and reset:
        for name in ("n_features_in_", "feature_names_in_"):
            estimator.__dict__.pop(name, None)
    return x if x.dtype.kind == "f" or (deep and x.dtype in (np.uint8, np.bool_)) else x.astype(np.float64)


def _without_na(X: Any) -> Any:
    """Return lists or an array of objects with NaN for None and pandas' missing values; everything else as it is."""
    if not (isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and X.dtype == object)):
        return X
    try:
        x = np.asarray(X)
    except ValueError:  # rows of several lengths
        return X
    if x.dtype != object:
        return X
    lacks = np.vectorize(lambda value: value is None or type(value).__name__ in ("NAType", "NaTType"), otypes=[bool])
    return np.where(lacks(x), np.nan, x) if x.size else X


def holds_integers(X: Any) -> bool:
    """Return whether the type of an array or a tensor is one of whole numbers, not counting booleans."""
    return str(getattr(X, "dtype", "")).removeprefix("torch.").startswith(("int", "uint"))


def only_numbers(X: Any) -> bool:
    """Return whether all columns of a frame have numeric types."""
    kinds = as_frame(X).dtypes  # pyright: ignore[reportOptionalMemberAccess]
    return all(str(kind).lower().startswith(("float", "int", "uint")) for kind in kinds)


def configuration(given: LaplacianAutoencoder, x: np.ndarray) -> Config:
    """Return the configuration of an estimator for samples x; what is None is chosen later from the data."""
    noise = likelihood(given.likelihood)
    sigma = None if isinstance(given.likelihood, str) else getattr(noise, "sigma", None)
    frame = not isinstance(x, np.ndarray)
    # later rows may have missing values even if these have none
    lacking = not frame and x.dtype.kind == "f" and bool(np.isnan(x).any())
    allow_nan = lacking or ((frame or x.dtype.kind == "f") and noise.takes_missing and given.features is None)
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
    """Return the parameters of an estimator that correspond to a configuration, such as that of `lapae train`."""
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


def check_parameters(given: LaplacianAutoencoder) -> None:
    """Raise ValueError if a parameter that is not an option of a run is invalid."""
    held_out = given.validation_fraction
    if held_out is not None and not (isinstance(held_out, Real) and 0 <= float(held_out) < 1):
        raise ValueError(f"validation_fraction={held_out!r}: expected a number from 0 to below 1")
    features = given.features
    module = features is None or callable(getattr(features, "state_dict", None))
    if not module and (not isinstance(features, str) or features not in FEATURES):
        expected = f"expected {', '.join(map(repr, FEATURES))}, a torch.nn.Module or None"
        raise ValueError(f"features={features!r}: {expected}")


def _saved_params(run: Run, **again: Any) -> dict[str, Any]:
    """Return the constructor's arguments, with those that the user passes again."""
    if not (run / ABOUT).exists():
        params = _params_of_config(run)
    else:
        about = run.read_json(ABOUT)
        if not isinstance(about.get("params"), dict):
            raise RunError(f"{run / ABOUT} is damaged: it has no parameters of an estimator")
        params = _renamed(about["params"], run)
    for name, given in again.items():
        if given is not None:
            params[name] = given
        elif params.get(name) == OWN:
            raise RunError(f"{run.path} was trained with a {name} of your own: give it again, load(path, {name}=...)")
        elif name == "likelihood" and isinstance(params.get(name), dict):
            try:
                params[name] = Gaussian(**params[name])
            except (TypeError, ValueError) as error:
                raise RunError(f"{run / ABOUT} is damaged: {error}") from error
        elif not isinstance(params.get(name, ""), str | None):
            raise RunError(f"{run / ABOUT} is damaged: {name} = {params[name]!r}")
    return params


def _label(label: Any) -> str | int:
    """Return the label of a column as it is saved: a whole number as it is, else its text."""
    return int(label) if isinstance(label, Integral) and not isinstance(label, bool) else str(label)


def _saved_columns(run: Run, space: Any) -> list[str | int] | None:
    """Return the labels of all columns of the frame that was fitted, or of the learned ones if no others are known."""
    names = run.read_json(ABOUT).get("columns") if (run / ABOUT).exists() else None
    if names is None:
        return None if space.names is None else list(space.names)
    if not isinstance(names, list) or not {*(space.names or ())} <= {*unique_names(names)}:
        raise RunError(f"{run / ABOUT} is damaged: its columns are not those of the model")
    return list(map(_label, names))


def _renamed(saved: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return parameters under their present names: false_alarm_rate was contamination."""
    params = dict(saved)
    if "contamination" in params:
        rate = params.pop("contamination")
        params |= {} if rate == "auto" else {"false_alarm_rate": rate}
        if rate == "auto":
            said = "contamination='auto' is now a method, discoveries(X): predict flags p-values of at most 0.05"
            warnings.warn(f"{run.path}: {said}", stacklevel=5)
    return params


def _params_of_config(run: Run) -> dict[str, Any]:
    """Return the options of `lapae train`, or the defaults if its file cannot be read: the model does not need it."""
    try:
        return parameters(read_config(run / CONFIG).resolved())
    except ConfigError:
        return {}


def _plain(params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as plain JSON."""
    out = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    for name in ("network", "features"):
        if out[name] is not None and not isinstance(out[name], str):
            out[name] = OWN
    which = out["likelihood"]
    if not isinstance(which, str):
        sigma = getattr(which, "sigma", None)
        known = {"gaussian": {"sigma": sigma} if isinstance(sigma, float) else OWN}
        out["likelihood"] = (known | {name: name for name in ("bernoulli", "categorical")}).get(which.name, OWN)
    if not isinstance(out["random_state"], int):
        out["random_state"] = None  # the state of a generator is not kept, but the seed drawn from it is
    return out
