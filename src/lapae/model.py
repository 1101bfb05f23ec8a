"""A trained model: the object behind the estimator, the commands, the tasks, the report and the explorer.

It is an immutable value composed of fitted parts. Its methods take the user's data (arrays, tensors, frames) and return
arrays in the user's units and layout. `space` converts to the model's space and back, and `calibration` makes the
numbers hold on new data. Samples X are (n, *shape) in the user's units, x is (n, *model_shape) in the model's space;
NaN is missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.adaptive import AdaptiveThreshold
from lapae.calibrate.calibration import ROUNDING, Calibration, Predict
from lapae.calibrate.confidence import confidence
from lapae.calibrate.conformal import Rule
from lapae.calibrate.stream import Stream
from lapae.config import Config, MethodConfig
from lapae.curvature.likelihoods import Likelihood
from lapae.errors import UNFINISHED, ConfigError, RunError
from lapae.generate.geometry import Geometry
from lapae.generate.rows import MOST_COLUMNS, RowSampler
from lapae.generate.sample import from_codes
from lapae.impute import Imputer, ImputerRows, Trained, choose_imputer, fit_imputer
from lapae.methods import Method
from lapae.methods.laplace import Laplace
from lapae.predict import Prediction, Predictive, evaluating
from lapae.predict.decode import decode
from lapae.predict.linearized_lowrank import variance_of_values
from lapae.predict.once import Once
from lapae.predict.prediction import Inputs, Progress, Quantity, numpy
from lapae.score.explain import explain
from lapae.score.latent_codes import LatentCodes
from lapae.score.patches import to_pixels
from lapae.space import Space
from lapae.space.columns import PRESENCE
from lapae.space.possible import Possible

NORMAL_90 = 1.6448536269514722
"""Number of standard deviations to either side of the mean that contain 90 % of a normal distribution."""
BOTH: tuple[Quantity, ...] = ("codes", "outputs")
Guess = Literal["median", "mean"]
"""Best guess of missing numbers in a table: minimises the absolute or the squared error."""
DRAWN = 50
"""Number of completions in which levels are counted if there are no probabilities for them."""
VALUES_AT_ONCE = 2**18
"""Number of values of rows, each with one value hidden, that are filled in at a time."""


@dataclass(frozen=True)
class Judgement:
    """How unusual n samples are.

    Attributes:
        anomaly_score: (n,), higher is more unusual.
        p_value: conformal p-value, (n,).
        log_likelihood: (n,); None if not asked for.
        contribution: what each value adds to the score, (n, *shape), see `Model.explain`; None if not asked for.
    """

    anomaly_score: np.ndarray
    p_value: np.ndarray
    log_likelihood: np.ndarray | None = None
    contribution: np.ndarray | None = None


@dataclass(frozen=True)
class Model:
    """A method at its best weights, a description of its data, and the parts fitted to them.

    Attributes:
        method: network and posterior.
        config: the options that it was trained with.
        space: description of its data.
        calibration: calibrates its numbers; None if training has not finished.
        codes: codes of the training samples and their density.
        rows: rows to which an imputer is fitted.
        imputer: fills in missing values; None until it has been fitted (`with_imputer`).
        sampler: rows from which new rows of a table are drawn; None for other data, which use `rows`.
        metrics: final numbers of training.
        history: one record per epoch; empty for a model that was loaded.
        recent: rows of a stream that it learned last; not saved.
        path: its run folder, if it has one.
        as_saved: whether it predicts as the model in its run folder does.
    """

    method: Method
    config: Config
    space: Space
    calibration: Calibration | None = None
    codes: LatentCodes | None = None
    rows: ImputerRows | None = None
    imputer: Imputer | None = None
    sampler: RowSampler | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    recent: Tensor | None = None
    path: Path | None = None
    as_saved: bool = True

    # ------------------------------------------------------------------ embeddings and reconstructions

    def encode(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the latent codes of samples X (n, *shape), and their standard deviations: (n, *code) each."""
        found = self.predict(self.tensor(X), ("codes",))
        return numpy(found.z_mean), np.sqrt(numpy(found.z_var))

    def reconstruct(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Reconstruct samples X (n, *shape), with the best guess of what is missing.

        Returns:
            The reconstructions, and the standard deviation of values around them: (n, *shape) each. ± 1.64 standard
                deviations contain 90 % of the values of new samples.
        """
        x, calibration = self.tensor(X), self._calibrated
        found = self.predict(x, calibration.deviation.needs)
        deviation = numpy(calibration.deviation(found, x)) * (calibration.intervals.radius.at(0.9) / NORMAL_90)
        return self._completed(found, x), self.space.to_user(deviation, deviation=True)

    def _completed(self, found: Prediction, x: Tensor) -> np.ndarray:
        """Return reconstructions like X of samples x (n, *model_shape), with the best guess of what is missing."""
        missing, mean = x.isnan(), numpy(found.x_mean)
        if missing.any():
            mean = np.where(numpy(missing), numpy(self.complete(x).x_mean), mean)
        return self.space.to_user(mean)

    def decode(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Decode latent codes z (n, *code): samples and their standard deviation over networks, (n, *shape) each."""
        n_samples = self.config.method.n_samples or 20
        at_mean = self.space.unit is not None
        found = decode(self.method, torch.as_tensor(z), n_samples=n_samples, seed=self.seed, at_mean=at_mean)
        return self.space.to_user(numpy(found.mean)), self.space.to_user(numpy(found.deviation), deviation=True)

    def interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return prediction intervals of the values of samples X (n, *shape), given their code.

        Args:
            X: samples (n, *shape).
            level: share of values that the intervals contain, on average over samples.

        Returns:
            low, high: (n, *shape) each. In a table the ends are possible values of the columns
                (`lapae.space.possible`), and the interval of a word is the word itself. For a missing value it is the
                interval of the imputed one.
        """
        coded = self.space.known(self.space.code(X))
        x = self.tensor(coded)
        return self._interval(self.predict(x, self._calibrated.deviation.needs), x, coded, level)

    def expected(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return reconstructions of samples X (n, *shape) and the ends of their prediction intervals, each like X.

        Args:
            X: samples (n, *shape), which are predicted only once.
            level: of the intervals, see `interval`.
        """
        coded = self.space.known(self.space.code(X))
        x = self.tensor(coded)
        found = self.predict(x, self._calibrated.deviation.needs)
        return self._completed(found, x), *self._interval(found, x, coded, level)

    def _interval(self, found: Prediction, x: Tensor, coded: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.ends(found, x, level)
        if not x.isnan().any():
            return low, high
        missing, filled = np.isnan(coded), self.impute_interval(coded, level)
        return np.where(missing, filled[0], low), np.where(missing, filled[1], high)

    def ends(self, found: Prediction, x: Tensor, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of prediction intervals of samples that have already been predicted, (n, *shape) each.

        Args:
            found: the prediction of x, with the quantities that `Deviation.needs`.
            x: samples in the model's space, (n, *model_shape); for missing values the intervals differ from `interval`.
            level: share of values that the intervals contain.
        """
        calibration = self._calibrated
        reach = numpy(calibration.deviation(found, x)) * calibration.intervals.radius.at(level) + ROUNDING
        return self._around(numpy(found.x_mean), reach, reach)

    # ------------------------------------------------------------------ how unusual samples are

    def anomaly_score(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return how unusual each of the samples X (n, *shape) is.

        Returns:
            The anomaly score, higher is more unusual, and the conformal p-value: (n,) each. NaN, with a warning, for
            rows with nothing observed.
        """
        found = self.judge(X)
        return found.anomaly_score, found.p_value

    def judge(self, X: Any, *, log_likelihood: bool = False, reasons: bool = False) -> Judgement:
        """Return how unusual each of the samples X (n, *shape) is, and why; each is predicted only once.

        Args:
            X: samples (n, *shape).
            log_likelihood: whether to return log-likelihoods too.
            reasons: whether to return contributions too.
        """
        (x, surprises), calibration, predict = self.tensors(X), self._calibrated, self.for_score
        found = None
        if log_likelihood or reasons:
            found = self.predict(
                x, (*calibration.score.needs, "density") if log_likelihood else calibration.score.needs
            )
            predict = Once(predict, x, found)
        scores, p = calibration.compare(predict, x, surprises)
        empty = np.flatnonzero(np.isnan(scores))
        if len(empty):
            where = f"{len(empty)} of {len(p)} rows, the first is row {empty[0]}"
            warnings.warn(f"nothing observed in {where}: no score and no p-value", stacklevel=4)
        likely = self._log_likelihood(found, x) if log_likelihood and found is not None else None
        return Judgement(scores, p, likely, self._contribution(predict, x, surprises) if reasons else None)

    def confidence(self, X: Any, rate: float | None = None) -> np.ndarray:
        """Return the share of 100 networks drawn from the posterior that agree with the verdict on each sample.

        Args:
            X: samples (n, *shape).
            rate: false alarm rate of the verdict; default: that of the configuration.

        Returns:
            (n,) from 0 to 1; NaN for samples with nothing observed.
        """
        (x, surprises), rate = self.tensors(X), self.rule(rate).rate
        return confidence(self.method, self._calibrated, self.for_score, x, rate, surprises=surprises)

    def rule(self, rate: float | None = None) -> Rule:
        """Return the rule by which rows are flagged at a false alarm rate; default: that of the configuration."""
        rate = self.config.train.false_alarm_rate if rate is None else rate
        return Rule(rate, self._calibrated.reference.scores.double().numpy())

    def step_rule(self, rate: float | None = None) -> Rule:
        """Return the rule by which steps of a series and samples of a stream are flagged.

        It uses the held-out scores as they are, without the wider tail with which single windows are compared: the
        score of a step is a mean over windows, which varies less, and a stream finds its own threshold.
        """
        rule, plain = self.rule(rate), self._calibrated.reference.plain
        return rule if plain is None else Rule(rule.rate, plain.double().numpy())

    def stream(
        self,
        *,
        rate: float | None = None,
        overlap: int | None = None,
        every: int = 10_000,
        state: str | Path | None = None,
    ) -> Stream:
        """Return a stream, which judges samples in their order by a threshold that follows slow change.

        Args:
            rate: false alarm rate; default: that of the configuration.
            overlap: number of consecutive samples that share data; default: that of windows as far apart as in
                training, and 1 for other data.
            every: minimum number of samples without common data between two false drift alarms, on average.
            state: file written by `Stream.save`, to continue from, with its rate, overlap and every.
        """
        rule = self.step_rule(rate)
        if overlap is None:
            overlap = -(-self.space.shape[0] // self.space.stride) if self.space.stride else 1
        new = Stream(self.anomaly_score, self.space.shape, rule.held_out, self.threshold(rule, overlap, every))
        return new if state is None else new.load(state)

    def threshold(self, rule: Rule, overlap: int, every: int = 10_000) -> AdaptiveThreshold:
        """Return an adaptive threshold for anomaly scores in its initial state.

        Args:
            rule: the false alarm rate and held-out scores, see `step_rule`.
            overlap: number of consecutive scores that share data.
            every: as in `stream`.
        """
        logarithmic = self._calibrated.score.logarithmic
        return AdaptiveThreshold(rule, overlap=overlap, every=every, seed=self.seed, logarithmic=logarithmic)

    def parts(self, X: Any) -> dict[str, np.ndarray]:
        """Return the parts of the anomaly scores of samples X (n, *shape), and the paper's scores.

        Returns:
            Arrays (n,) by name; higher is more unusual. `unseen` is the surprise, in nats, of levels that are not in
            the training data or that contradict the column that determines them.
        """
        x, surprises = self.tensors(X)
        found = self.predict(x, (*BOTH, "density"))
        parts = {name: numpy(part) for name, part in self._calibrated.score.named(found, x).items()}
        more = {
            **({} if surprises is None else {"unseen": numpy(surprises.sum(1))}),
            "negative_log_likelihood": -numpy(found.log_likelihood),
            "latent_deviation": numpy(found.z_var).reshape(len(x), -1).clip(0) ** 0.5,
            "output_deviation": numpy(found.x_var).reshape(len(x), -1).clip(0) ** 0.5,
        }
        return parts | {name: value if value.ndim == 1 else value.sum(1) for name, value in more.items()}

    def log_likelihood(self, X: Any) -> np.ndarray:
        """Return the log-likelihood (n,) of samples X (n, *shape) under the predictive; for a network that was already
        trained, in its own units."""
        x = self.tensor(X)
        return self._log_likelihood(self.predict(x, ("density",)), x)

    def _log_likelihood(self, prediction: Prediction, x: Tensor) -> np.ndarray:
        found, space = numpy(prediction.log_likelihood), self.space
        if space.unit is None:
            return found
        log_scale = np.broadcast_to(np.log(np.asarray(space.scale) / space.unit), space.model_shape).ravel()
        return found - ~np.isnan(numpy(x).reshape(len(x), -1)) @ log_scale

    def explain(self, X: Any) -> np.ndarray:
        """Return how much every value of samples X (n, *shape) adds to the anomaly score.

        Returns:
            (n, *shape), at least 0, and 0 where missing. `counterfactual` says what was expected in its place.
        """
        return self._contribution(self.for_score, *self.tensors(X))

    def _contribution(self, predict: Predict, x: Tensor, surprises: Tensor | None) -> np.ndarray:
        widths = self._trained.widths if self.hides else None
        found = numpy(explain(self._calibrated.score, predict, x, widths))
        if self.space.features is not None:
            pixels = to_pixels(torch.from_numpy(found.sum(-1)), self.space.features.image[1:])
            share = pixels.flatten(1).sum(1)[:, None, None].clamp_min(1e-12)
            return numpy(pixels / share) * found.sum((1, 2, 3))[:, None, None]
        found = self.space.as_given(np.where(np.isnan(numpy(x)), 0.0, found))
        calibration = self._calibrated
        if surprises is not None and calibration.unseen is not None and calibration.score.tail is not None:
            for i, part in zip(calibration.unseen.blamed, surprises.T, strict=True):
                found[:, i] += numpy(calibration.score.tail * part)
        return found

    def pixel_scores(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return how unusual each pixel of images X is, for a model with `features`.

        Returns:
            The anomaly score, higher is more unusual, and the p-value: (n, H, W) each. On average over new normal
            images, at most about a share p of the pixels has a p-value of at most p.
        """
        patches, features = self._calibrated.score.patches, self.space.features
        if patches is None or features is None:
            raise ConfigError("scores of pixels need a model with features=...; explain(X) gives contributions")
        found = patches(self.tensor(X))
        size = features.image[1:]
        return numpy(to_pixels(found, size)), numpy(to_pixels(patches.p_values(found), size))

    def counterfactual(
        self,
        X: Any,
        top: int | None = None,
        level: float = 0.9,
        *,
        contribution: np.ndarray | None = None,
        asked: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what would have been expected in place of each value, with an interval.

        In a table it is predicted from the other values of the row: each value in turn is hidden and filled in like a
        missing one, because a network reproduces an odd value that it is shown. The value that contributes most to the
        anomaly score is hidden as well, because it would be misleading. For images, series and arrays, and for tables
        whose likelihood does not accept missing values, it is the reconstruction, which depends on all values.

        Args:
            X: samples (n, *shape).
            top: ask only about this many values of each sample, those that contribute most; default: all.
            level: share of the values of normal samples that the intervals contain.
            contribution: the result of `explain(X)`, if it is already known.
            asked: ask about these values, (n, *shape) bool, instead of the `top`.

        Returns:
            expected, low, high: (n, *shape) each, NaN for values that were not asked about. The interval of a word is
                the word itself.
        """
        if top is not None and not (isinstance(top, Integral) and top >= 1):
            raise ValueError(f"top={top!r}: expected a whole number, at least 1")
        coded = self.space.code(X)
        contribution = self.explain(coded) if contribution is None else contribution
        coded = self.space.known(coded)
        if asked is None:
            asked = np.ones(coded.shape, bool) if top is None else leading(contribution, top)
        if not self.from_others:
            expected, low, high = (np.where(asked, part, np.nan) for part in self.expected(coded, level))
            return expected, low, high
        out, first = np.full((3, *coded.shape), np.nan), leading(contribution, 1)
        columns, rows = np.nonzero(asked.T)  # values of one column have the same donors
        size = max(1, VALUES_AT_ONCE // coded.shape[1])
        for start in range(0, len(rows), size):
            i, j = rows[start : start + size], columns[start : start + size]
            whole, without, at = coded[i].astype(float), np.where(first[i], np.nan, coded[i]), np.arange(len(i))
            without[at, j] = np.nan
            out[:, i, j] = np.stack(self._filled(without, level, whole, j))[:, at, j]
        return out[0], out[1], out[2]

    @property
    def hides(self) -> bool:
        """Whether `explain` hides one column after another to see how much the score falls without it."""
        return self.from_others and bool(self.config.model.hide)

    @property
    def from_others(self) -> bool:
        """Whether a value is expected from the other values of its row, instead of from the reconstruction."""
        return self.space.kind == "table" and self.likelihood.missing

    # ------------------------------------------------------------------ missing values and new samples

    def impute(self, X: Any, n_samples: int | None = None, guess: Guess = "median") -> np.ndarray:
        """Fill in the missing values of X.

        Args:
            X: samples (n, *shape); NaN is missing.
            n_samples: number of completions of each sample; default: return the best guess.
            guess: best guess of numbers in a table: "median", which minimises the absolute error, or "mean", which
                minimises the squared error and may not be a whole number. For other data, and for tables that the
                network alone fills in, both are the mean; for a category or a boolean in words, the most likely level.

        Returns:
            (n, *shape), or completions (n_samples, n, *shape). Observed values are unchanged; a level that is not in
            the training data counts as missing.
        """
        check_guess(guess)
        coded = self.space.known(self.space.code(X))
        x = self.tensor(coded)
        if n_samples is not None:
            return self.space.put_back(numpy(self.completions(x, n_samples, self.seed)), coded, self._possible)
        found = self.complete(x)
        best = found.x_mean if guess == "median" else found.values.get("x_average", found.x_mean)
        made = numpy(torch.where(x.isnan(), best, x))
        return self.space.put_back(made, coded, self._possible, whole=guess == "median")

    def impute_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return prediction intervals of missing values.

        Args:
            X: samples (n, *shape); NaN is missing.
            level: share of missing values that the intervals contain.

        Returns:
            low, high: (n, *shape) each; for an observed value both are the value itself. In a table the ends are values
                that its columns can have (`lapae.space.possible`): whole numbers for a count, false to true for a
                boolean that may be either. The interval of a category is its level: see `impute_levels`.
        """
        coded = self.space.known(self.space.code(X))
        if not np.isnan(coded).any():
            return coded.copy(), coded.copy()
        return self._filled(coded, level)[1:]

    def impute_levels(self, X: Any, level: float = 0.9) -> dict[int, list[dict[int, float]]]:
        """Return the levels that missing values of categories and booleans may have, with their probabilities.

        Args:
            X: rows (n, F); NaN is missing.
            level: share of missing values whose level is among them, on average.

        Returns:
            By the index of a category or boolean, a dictionary of probabilities by code for each row, the greatest
            first; empty for observed values. If the network sees a category as one number, or not at all, its levels
            are those of `DRAWN` completions and not a calibrated set.
        """
        if self.space.kind != "table":
            raise ValueError(f"impute_levels is for tables: this model was fitted to {self.space.kind} data")
        coded = self.space.known(self.space.code(X)).astype(float)
        chosen = [j for j, column in enumerate(self.space.numbered) if column.kind in ("category", "boolean")]
        found: dict[int, list[dict[int, float]]] = {j: [{} for _ in coded] for j in chosen}
        rows = np.flatnonzero(np.isnan(coded[:, chosen]).any(1))
        if not len(rows):
            return found
        lacking = coded[rows]
        x = self.tensor(lacking)
        made, reach, _ = self._imputer.interval(self._trained, x, level, self._calibrated.held_out)
        best = self.space.put_back(numpy(torch.where(x.isnan(), made.x_mean, x)), lacking)
        sure = ~np.isnan(self.space.implied(lacking))
        every = self.space.probabilities(numpy(made.x_mean).astype(float))
        bounds = self.space.probabilities(numpy(reach).astype(float))
        drawn = None
        for j in chosen:
            name = self.space.numbered[j].name
            if name not in every and drawn is None:
                drawn = self.impute(lacking, DRAWN)
            for i in np.flatnonzero(np.isnan(lacking[:, j])):
                if sure[i, j]:
                    likely = {int(best[i, j]): 1.0}
                elif name in every:
                    p = every[name][i]
                    kept = (1 - p <= bounds[name][i, -1]) | (np.arange(len(p)) == best[i, j])
                    likely = {int(k): float(p[k]) for k in np.flatnonzero(kept)}
                else:
                    assert drawn is not None
                    codes, count = np.unique(drawn[:, i, j], return_counts=True)
                    likely = {int(k): float(n) / DRAWN for k, n in zip(codes, count, strict=True)}
                found[j][rows[i]] = dict(sorted(likely.items(), key=lambda pair: -pair[1]))
        return found

    def complete(self, x: Tensor, *, held: bool = False) -> Prediction:
        """Predict samples x (n, *model_shape) with the best guess of missing values.

        Args:
            x: samples; NaN is missing.
            held: whether they were held out of training; if so, they are not filled in from themselves.
        """
        return self.predict(x) if not x.isnan().any() else self._imputer.guess(self._trained, x, held=held)

    def completions(self, x: Tensor, n: int, seed: int, *, held: bool = False) -> Tensor:
        """Complete samples in the model's space several times.

        Args:
            x: samples (N, *model_shape); NaN is missing.
            n: number of completions of each sample.
            seed: seed of networks and noise.
            held: as in `complete`.

        Returns:
            (n, N, *model_shape).
        """
        if n < 1:
            raise ValueError(f"n_samples={n}: expected at least 1")
        if not x.isnan().any():
            return x.expand(n, *x.shape).clone()
        return self._imputer.draw(self._trained, x, n, seed, held=held)

    def sample(
        self,
        n: int,
        seed: int | None = None,
        *,
        noise: bool | None = None,
        given: Mapping[Any, Any] | None = None,
        missing: bool | None = None,
    ) -> np.ndarray:
        """Generate samples (n, *shape).

        Rows of a table are drawn column by column from similar rows (`lapae.generate.rows`); everything else, and
        tables of more than 128 columns, by decoding codes drawn from their density.

        Args:
            n: how many.
            seed: seed of codes, networks and noise; default: that of the configuration.
            noise: whether to add the residuals of held-out samples to decoded codes; default: yes, except for images.
                False decodes codes without noise, for tables too.
            given: values that all samples have, by the name of their column; the others are drawn given these. None is
                a missing value. A value outside the range of the rows causes a warning.
            missing: whether samples of a table have missing values as its rows do; default: if its columns have names.

        Returns:
            (n, *shape), in the user's units.
        """
        if n < 1:
            raise ValueError(f"n={n}: expected at least 1")
        if self.space.features is not None:
            raise ConfigError("a model with features=... does not generate images: train one without")
        seed = self.seed if seed is None else seed
        noise = self.space.kind != "image" if noise is None else noise
        by_rows = noise and self.space.kind == "table" and self.space.shape[0] <= MOST_COLUMNS and self.rows is not None
        if by_rows:
            lacking = self.space.columns is not None if missing is None else missing
            made = self._sampler(self.space.numbered, n, seed, self.space.code_given(given or {}), missing=lacking)
            empty = [i for i, column in enumerate(self.space.numbered) if column.format == PRESENCE]
            made[:, empty] = np.where(made[:, empty] == 0, np.nan, made[:, empty])
            return made
        if given or missing:
            why = "expected a table of at most 128 columns, with its noise"
            raise ValueError(f"{'given' if given else 'missing'}: {why}")
        rows = self._calibrated.reference.rows if noise else None
        known = None
        if self.rows is not None and choose_imputer(self.method, self.space, self.rows) == "neighbours":
            known = torch.cat([self.rows.train, self.rows.valid])
        made = from_codes(self.method, self._codes, n, rows=rows, known=known, seed=seed)
        if self.space.kind == "image":
            made = made.clamp(*self.space.value_range)
        return self.space.to_user(numpy(made))

    @property
    def _sampler(self) -> RowSampler:
        """The rows from which new ones are drawn; for a model that was saved without them, those of its imputer."""
        if self.sampler is not None:
            return self.sampler
        assert self.rows is not None
        known = numpy(torch.cat([self.rows.train, self.rows.valid])).astype(np.float64)
        return RowSampler(torch.from_numpy(self.space.to_user(known)))

    # ------------------------------------------------------------------ latent geometry

    @cached_property
    def geometry(self) -> Geometry:
        """Expected metric of the stochastic decoder, for codes as float64 tensors; see `lapae.generate.geometry`."""
        return Geometry.of(self.method, self._codes.codes, seed=self.seed)

    def distance(self, a: Any, b: Any) -> np.ndarray:
        """Return the lengths of shortest paths between codes, measured by how much the stochastic decoder's output
        changes.

        Args:
            a: codes (n, *code), as `encode` returns them, not samples.
            b: codes of the same shape.

        Returns:
            (n,), in standard deviations of the noise of the data: the decoded samples of distant codes are easy to tell
            apart.
        """
        first, second = self._code_pair(a, b)
        return numpy(self.geometry.distance(first, second))

    def geodesic(self, a: Any, b: Any, n_points: int = 50) -> np.ndarray:
        """Return shortest paths between codes, as in `distance`.

        Args:
            a: codes (n, *code) where paths begin.
            b: codes (n, *code) where they end.
            n_points: number of points of a path, at equal distances along it, including both ends.

        Returns:
            Codes (n, n_points, *code), which `decode` turns into samples.
        """
        if n_points < 2:
            raise ValueError(f"n_points={n_points}: expected at least 2")
        first, second = self._code_pair(a, b)
        return numpy(self.geometry.geodesic(first, second, n_points)).reshape(-1, n_points, *self.code_shape)

    def _code_pair(self, a: Any, b: Any) -> tuple[Tensor, Tensor]:
        """Return codes a and b, (n, K) each, in 64 bits on the device of the method."""
        shape, device = self.code_shape, next(self.method.parameters()).device
        given = [np.asarray(codes, dtype=np.float64) for codes in (a, b)]
        for name, codes in zip("ab", given, strict=True):
            if codes.shape[1:] != shape or codes.ndim != 1 + len(shape):
                wanted = ", ".join(["n", *map(str, shape)])
                raise ValueError(
                    f"{name} has shape {codes.shape}: expected latent codes ({wanted}), as transform returns them"
                )
            if not np.isfinite(codes).all():
                raise ValueError(f"{name} has codes that are not finite numbers")
        if len(given[0]) != len(given[1]):
            raise ValueError(f"{len(given[0])} codes in a and {len(given[1])} in b: expected pairs, one of each")
        first, second = (torch.from_numpy(codes).flatten(1).to(device) for codes in given)
        return first, second

    def with_imputer(self) -> Model:
        """Return the model with a fitted imputer, which is kept in its run folder, if it has one."""
        if self.imputer is not None:
            return self
        return replace(self, imputer=self._imputer)

    # ------------------------------------------------------------------ in the model's space

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the method."""
        return self.method.likelihood

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample in the model."""
        return self.space.model_shape

    @property
    def code_shape(self) -> tuple[int, ...]:
        """Shape of one latent code."""
        weight = next(self.method.parameters())
        with evaluating(self.method):
            one = torch.zeros(1, *self.shape, dtype=weight.dtype, device=weight.device)
            return tuple(self.method.draw_mean().encode(one[None]).shape[2:])

    @property
    def seed(self) -> int:
        """Seed of training and of what is drawn by default."""
        return self.config.train.seed

    def tensor(self, X: Any) -> Tensor:
        """Convert the user's samples to the model's space: (n, *model_shape) on the CPU. Levels that are not in the
        training data are missing."""
        return self._as_tensor(self.space.known(self.space.code(X)))

    def tensors(self, X: Any) -> tuple[Tensor, Tensor | None]:
        """Convert samples to the model's space to be scored: (n, *model_shape), and the surprises (n, S) of levels that
        are not in the training data (None if the model treats these as missing)."""
        unseen, coded = self._calibrated.unseen, self.marked(self.space.code(X))
        return self._as_tensor(coded), None if unseen is None else unseen.surprises(coded)

    def marked(self, coded: np.ndarray) -> np.ndarray:
        """Return codes (n, *shape) to be scored: levels that are not in the training data are `UNSEEN`, or NaN if the
        model treats these as missing."""
        unseen = self._calibrated.unseen
        return self.space.known(coded) if unseen is None else unseen.marked(coded)

    def _as_tensor(self, coded: np.ndarray) -> Tensor:
        return torch.from_numpy(self.space.to_model(coded)).to(next(self.method.parameters()).dtype)

    @property
    def predictive(self) -> Predictive:
        """How the model predicts, as the configuration says."""
        options = self.config.method.options
        at_mean = self.space.unit is not None
        return Predictive(options.predictive or "mc", options.n_samples or 20, self.seed, at_mean)

    def predict(
        self,
        x: Inputs,
        want: tuple[Quantity, ...] = BOTH,
        predictive: Predictive | None = None,
        progress: Progress | None = None,
    ) -> Prediction:
        """Predict samples.

        Args:
            x: samples (n, *model_shape) in the model's space, or batches of them; NaN is missing.
            want: what to compute: "means", "codes", "covariance", "outputs", "density", "error".
            predictive: how to predict; default: as the model does.
            progress: called with the number of (network, sample) pairs done.

        Returns:
            A `Prediction`: among others `z_mean`, `z_var` (n, *code), `x_mean`, `x_var` (n, *model_shape) and
            `log_likelihood` (n,).
        """
        return (predictive or self.predictive)(self.method, x, want, progress)

    def blocks(
        self,
        x: Inputs,
        want: tuple[Quantity, ...] = BOTH,
        predictive: Predictive | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Prediction]:
        """Yield predictions block by block, for results that are reduced right away.

        Args:
            x: samples, as in `predict`.
            want: what to compute.
            predictive: how to predict; default: as the model does.
            progress: called with the number of (network, sample) pairs done.
        """
        return (predictive or self.predictive).blocks(self.method, x, want, progress)

    def predicting(
        self, *, predictive: str | None = None, n_samples: int | None = None, seed: int | None = None
    ) -> Model:
        """Return the model with another way to predict. The held-out samples are predicted in the same way, so that
        p-values and intervals hold.

        Args:
            predictive: moments, mc or linearized; default: unchanged.
            n_samples: number of networks that mc draws; default: unchanged.
            seed: seed of these networks; default: unchanged.
        """
        method, train = self.config.method, self.config.train
        given = {"predictive": predictive, "n_samples": n_samples}
        method = MethodConfig(method.method, method.options, **{k: v for k, v in given.items() if v is not None})
        train = train if seed is None else replace(train, seed=seed)
        config = replace(self.config, method=method, train=train)
        if config == self.config:
            return self
        found = replace(self, config=config, as_saved=False)
        if self.calibration is None:
            return found
        found = replace(found, calibration=self.calibration.anew(found.predict))
        if self.imputer is None:
            return found
        imputer = self.imputer.with_radii(found._trained, found._calibrated.held_out)
        return replace(found, imputer=imputer)

    # ------------------------------------------------------------------ what the verbs share

    def for_score(self, x: Tensor) -> Prediction:
        """Predict the quantities that the anomaly score needs."""
        return self.predict(x, self._calibrated.score.needs)

    @property
    def natural(self) -> bool:
        """Whether the variance over networks has its natural size: that of a posterior with covariances, linearised."""
        has_covariances = isinstance(self.method, Laplace) and self.method.form == "lowrank"
        return has_covariances and self.predictive.kind == "linearized"

    @property
    def _trained(self) -> Trained:
        if not self.natural:
            return Trained(self.method, self.predict, self.space, self._codes, self.seed)

        def means(x: Tensor) -> Prediction:
            found = self.predict(x, ("means",))
            return found.replace(z_var=torch.zeros_like(found.z_mean), x_var=torch.zeros_like(found.x_mean))

        def variance(x: Tensor, at: Tensor | None) -> Tensor:
            if at is None or not isinstance(self.method, Laplace):
                return self.predict(x, ("outputs",)).x_var
            return variance_of_values(self.method, x, at)[:, None]

        return Trained(self.method, means, self.space, self._codes, self.seed, variance)

    @cached_property
    def _imputer(self) -> Imputer:
        """The imputer, fitted on first use and then kept in the run folder."""
        if self.imputer is not None:
            return self.imputer
        if self.space.features is not None:
            raise ConfigError("a model with features=... does not fill in missing pixels: train one without")
        if self.rows is None:
            raise RunError("this model has nothing to impute from: it was saved before its training was finished")
        found = fit_imputer(self._trained, self.rows, self._calibrated)
        if self.path is not None and self.as_saved:
            from lapae.storage import keep_imputer

            keep_imputer(self, found)
        return found

    @property
    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise RunError(UNFINISHED)
        return self.calibration

    @property
    def _codes(self) -> LatentCodes:
        if self.codes is None:
            raise RunError("this model has no density of codes: it was saved before its training was finished")
        return self.codes

    def _filled(
        self, coded: np.ndarray, level: float, whole: np.ndarray | None = None, column: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the best guess, low and high (n, *shape) of the missing values of `coded` (n, *shape).

        Args:
            coded: rows as codes.
            level: of the intervals.
            whole: the rows before values were hidden, if some were.
            column: (n,) the column of each row that is wanted, default all; what others hold is then not meant.
        """
        x = self.tensor(coded)
        before = None if whole is None else self.tensor(whole)
        at = None if column is None else torch.from_numpy(self.space.feature_of(column))
        found, *reach = self._imputer.interval(self._trained, x, level, self._calibrated.held_out, whole=before, at=at)
        guess = found.x_mean
        beyond = self._imputer.beyond(found, level)

        def whole_rows(values: Tensor) -> np.ndarray:
            return numpy(values if at is None else torch.zeros_like(guess).scatter_(1, at[:, None], values.to(guess)))

        best = self.space.put_back(numpy(torch.where(x.isnan(), guess, x)), coded, self._possible)
        sure = self.space.limits(coded)
        limits = None
        if beyond is not None:
            limits = tuple(self.space.rounded(self.space.to_user(whole_rows(end), whole=False)) for end in beyond)
        down, up = map(whole_rows, reach)
        low, high = self._around(numpy(guess), down, up, best=best, sure=sure, limits=limits)
        low, high = (np.where(np.isnan(coded), end, coded) for end in (low, high))
        return best, low, high

    def _around(
        self,
        mean: np.ndarray,
        down: np.ndarray,
        up: np.ndarray,
        *,
        best: np.ndarray | None = None,
        sure: tuple[np.ndarray, np.ndarray] | None = None,
        limits: tuple[np.ndarray, ...] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return intervals of possible values in the user's units.

        Args:
            mean: (n, *model_shape).
            down: how far intervals reach downward, like `mean`.
            up: how far they reach upward.
            best: the imputed values (n, *shape), for intervals of missing values; then a boolean may be either.
            sure: the least and the greatest of values that another column determines, (n, *shape) each; else NaN.
            limits: how far intervals may reach beyond the values of the rows, downward and upward, (n, *shape).
        """
        filled = best is not None
        clip = filled and self.space.kind == "image"
        ends = (np.clip(end, 0, 1) if clip else end for end in (mean - down, mean + up))
        low, high = (self.space.to_user(end, whole=False) for end in ends)
        if self._possible is None:
            return low, high
        ends = self.space.rounded(low), self.space.rounded(high)
        low, high = self._possible.interval(*ends, filled=filled, limits=limits)
        words = [column.kind in ("category", "boolean") for column in self.space.numbered]
        if any(words):
            word = self.space.to_user(mean) if best is None else best
            low, high = np.where(words, word, low), np.where(words, word, high)
        if best is None or sure is None:
            return low, high
        for j, p, reach in self.space.booleans(mean, up):
            low[:, j] = np.where(p <= reach, 0.0, low[:, j])
            high[:, j] = np.where(1 - p <= reach, 1.0, high[:, j])
        least, most = sure
        return np.where(np.isnan(least), np.fmin(low, best), least), np.where(np.isnan(most), np.fmax(high, best), most)

    @cached_property
    def _possible(self) -> Possible | None:
        """Values that the columns of a table can have, as far as the rows show; None for other data."""
        if self.space.kind != "table":
            return None
        if self.sampler is None and self.rows is None:
            return Possible.fit(np.full((1, *self.space.shape), np.nan), self.space.columns)
        rows = numpy(self._sampler.rows).astype(float)
        # rows of older models were rounded to 32 bits
        return Possible.fit(self.space.rounded(rows) if self.sampler is None else rows, self.space.columns)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Model:
        """Load the model of a run.

        Args:
            path: the run folder.
            options: options of `lapae.storage.load_run`, such as `network`, `likelihood` and `device`.
        """
        from lapae.storage import load_run

        return load_run(path, **options)


def settle(method: Method, space: Space) -> Method:
    """Prepare a trained method for prediction: tables in 64 bits on a CPU, so that the score of a row does not depend
    on its batch."""
    method.eval().requires_grad_(False)
    if space.kind == "table" and next(method.parameters()).device.type == "cpu":
        method.double()
    return method


def check_guess(guess: str) -> None:
    """Raise ConfigError (a ValueError) if there is no such guess of missing values."""
    if guess not in get_args(Guess):
        raise ConfigError(f"guess={guess!r}: expected {' or '.join(map(repr, get_args(Guess)))}")


def leading(contribution: np.ndarray, n: int) -> np.ndarray:
    """Return which n values of each sample contribute most, (N, *shape) bool; values that contribute nothing are left
    out."""
    flat = contribution.reshape(len(contribution), -1)
    chosen = np.zeros(flat.shape, bool)
    np.put_along_axis(chosen, np.argsort(-flat, axis=1, kind="stable")[:, :n], True, axis=1)
    return (chosen & (flat > 0)).reshape(contribution.shape)
