"""A trained model: the one object behind the estimator, the commands, the tasks, the report and the explorer.

Its verbs take what a user has (arrays, tensors, frames) and give arrays in the user's units and layout; `space` leads
into the model's space and back, and `calibration` makes the numbers hold on new data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.calibration import Calibration, calibrate
from lapae.calibrate.conformal import Rule, discoveries
from lapae.config import Config, MethodConfig
from lapae.curvature.likelihoods import Likelihood
from lapae.generate.sample import from_codes
from lapae.impute.hidden import Hidden
from lapae.impute.recall import Memory, remember
from lapae.impute.table import Filling, filling_of
from lapae.methods import Method
from lapae.networks.threads import few_threads
from lapae.predict import Prediction, evaluating, predict, predict_blocks
from lapae.predict.decode import decode
from lapae.predict.prediction import Inputs, Quantity, numpy
from lapae.space import Space

NORMAL_90 = 1.6448536269514722
"""Deviations to either side of the mean that hold 90 % of a normal distribution."""
BOTH: tuple[Quantity, ...] = ("codes", "outputs")


@dataclass
class Model(Hidden):
    """A method at its best weights, what its data are, and its calibration."""

    method: Method
    config: Config
    space: Space
    """What its data are."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The final numbers of training."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One record per epoch; empty for a model that was loaded."""
    recent: Tensor | None = None
    """Data of a stream that it has learned last; not saved."""
    path: Path | None = None
    """The run folder, where it is in one."""
    calibration: Calibration | None = None
    memory: Memory | None = None
    filling: Filling | None = None
    """Of a table with values hidden in training: learned when the first holes are to be filled."""

    def encode(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Codes of data X (n, *shape), and their deviations over networks: (n, *code) each."""
        found = self.predict(self.tensor(X), ("codes",))
        return numpy(found.z_mean), np.sqrt(numpy(found.z_var))

    def reconstruct(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Reconstructions of data X (n, *shape), with the best guess of what is missing.

        Returns:
            The reconstructions, and the deviation of values from them: (n, *shape) each. ± 1.64 deviations hold 90 % of
            the values of new data.
        """
        x, calibration = self.tensor(X), self._calibrated()
        found, missing = self.predict(x), x.isnan()
        mean = numpy(found.x_mean)
        if missing.any():
            mean = np.where(numpy(missing), numpy(self.complete(x).x_mean), mean)
        deviation = numpy(calibration.spread.deviation(found, x)) * (calibration.radius.at(0.9) / NORMAL_90)
        return self.space.to_user(mean), self.space.to_user(deviation, deviation=True)

    def decode(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Data at codes z (n, *code), and their deviation over networks: (n, *shape) each."""
        n_samples = self.config.method.n_samples or 20
        at_mean = self.space.unit is not None
        found = decode(self.method, torch.as_tensor(z), n_samples=n_samples, seed=self.seed, at_mean=at_mean)
        return self.space.to_user(numpy(found.mean)), self.space.to_user(numpy(found.deviation), deviation=True)

    def surprise(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """How unusual each of the data X (n, *shape) is.

        Returns:
            The surprise, which is larger for more unusual data, and the conformal p-value: (n,) each. NaN, with a
            warning, for rows with nothing observed.
        """
        found, p = self._calibrated().compare(self.predict, self.tensor(X))
        empty = np.flatnonzero(np.isnan(found))
        if len(empty):
            where = f"{len(empty)} of {len(p)} rows, the first is row {empty[0]}"
            warnings.warn(f"nothing observed in {where}: no score and no p-value", stacklevel=3)
        return found, p

    def rule(self, rate: float | None = None) -> Rule:
        """How rows are flagged at a false alarm rate, by default that of the configuration."""
        rate = self.config.train.false_alarm_rate if rate is None else rate
        return Rule(rate, self._calibrated().reference.double().numpy())

    def discoveries(self, X: Any, rate: float = 0.1) -> np.ndarray:
        """Choose the rows to call unusual, by Benjamini-Hochberg over the rows of this call.

        Args:
            X: rows (n, *shape).
            rate: share of normal rows among those that are chosen, at most, on average.

        Returns:
            (n,) bool; False for a row with nothing observed.
        """
        if not 0 < rate < 1:
            raise ValueError(f"rate={rate!r}: expected a number between 0 and 1, such as 0.1")
        return discoveries(self.surprise(X)[1], rate)

    def parts(self, X: Any) -> dict[str, np.ndarray]:
        """What the surprise of data X (n, *shape) is made of, and the paper's scores.

        Returns:
            Arrays (n,) by name; higher is more unusual. `log_likelihood` has its sign turned for that.
        """
        x = self.tensor(X)
        found = self.predict(x, (*BOTH, "density"))
        parts = {name: numpy(part) for name, part in self._calibrated().surprise.named(found, x).items()}
        more = {
            "log_likelihood": -numpy(found.log_likelihood),
            "latent_deviation": numpy(found.z_var).reshape(len(x), -1).clip(0) ** 0.5,
            "output_deviation": numpy(found.x_var).reshape(len(x), -1).clip(0) ** 0.5,
        }
        return parts | {name: value if value.ndim == 1 else value.sum(1) for name, value in more.items()}

    def log_likelihood(self, X: Any) -> np.ndarray:
        """Of each of the data X (n, *shape) under the predictive: (n,). Of a trained network, in its own units."""
        x, space = self.tensor(X), self.space
        found = numpy(self.predict(x, ("density",)).log_likelihood)
        if space.unit is None:
            return found
        log_scale = np.broadcast_to(np.log(np.asarray(space.scale) / space.unit), space.model_shape).ravel()
        return found - ~np.isnan(numpy(x).reshape(len(x), -1)) @ log_scale

    def interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Where the values of new data of this kind lie, given their code.

        Args:
            X: data (n, *shape).
            level: share of values that lie within, on average over data.

        Returns:
            low, high: (n, *shape) each; of a missing value the interval of what is filled in.
        """
        x, calibration = self.tensor(X), self._calibrated()
        found = self.predict(x)
        reach = numpy(calibration.spread.deviation(found, x)) * calibration.radius.at(level)
        ends = self._around(numpy(found.x_mean), reach)
        if not x.isnan().any():
            return ends
        coded = self.space.code(X)
        missing = np.isnan(coded)
        return tuple(np.where(missing, a, b) for a, b in zip(self.impute_interval(coded, level), ends, strict=True))  # pyright: ignore

    def explain(self, X: Any) -> np.ndarray:
        """How much every value of data X (n, *shape) adds to how unusual its datum is.

        Returns:
            (n, *shape), at least 0, and 0 where missing. `counterfactual` says what was expected in its place.
        """
        x, hides = self.tensor(X), self.from_others and self.config.model.hide
        found = numpy(self._calibrated().explain(self.predict, x, bool(hides), self.space.columns))
        return self.space.as_given(np.where(np.isnan(numpy(x)), 0.0, found))

    def sample(self, n: int, seed: int | None = None, *, noise: bool | None = None) -> np.ndarray:
        """New data (n, *shape): codes from their density, decoded by drawn networks.

        Args:
            n: how many.
            seed: of codes, networks and noise.
            noise: add noise to what networks make of a code, with the residuals of held-out data. Default: to all but
                images.

        Returns:
            (n, *shape), in the user's units.
        """
        seed = self.seed if seed is None else seed
        noise = self.space.kind != "image" if noise is None else noise
        rows = self._calibrated().rows if noise else None
        known = None if self.filling is None else torch.cat([self.filling.train, self.filling.valid])
        made = from_codes(self.method, self._remembers(), n, rows=rows, known=known, seed=seed)
        if self.space.kind == "image":
            made = made.clamp(*self.space.value_range)
        return self.space.to_user(numpy(made))

    @property
    def likelihood(self) -> Likelihood:
        return self.method.likelihood

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one datum in the model."""
        return self.space.model_shape

    @property
    def code_shape(self) -> tuple[int, ...]:
        """Of one code."""
        weight = next(self.method.parameters())
        with evaluating(self.method):
            one = torch.zeros(1, *self.shape, dtype=weight.dtype, device=weight.device)
            return tuple(self.method.draw_mean().encode(one[None]).shape[2:])

    @property
    def seed(self) -> int:
        return self.config.train.seed

    def tensor(self, X: Any) -> Tensor:
        """What a user hands over in the model's space: float32 (n, *model_shape) on the CPU."""
        weight = next(self.method.parameters())
        return torch.from_numpy(self.space.to_model(self.space.code(X))).to(weight.dtype)

    def predict(self, x: Inputs, want: tuple[Quantity, ...] = BOTH, **how: Any) -> Prediction:
        """What the networks say about data, in the way that the configuration asks for.

        Args:
            x: data (n, *model_shape) in the model's space, or batches of them; NaN is missing.
            want: what to compute: "codes", "covariance", "outputs", "density", "error".
            how: `predictive`, `n_samples`, `seed` and others of `lapae.predict.predict`, to predict in another way.

        Returns:
            A `Prediction`: among others `z_mean`, `z_var` (n, *code), `x_mean`, `x_var` (n, *model_shape) and
            `log_likelihood` (n,); None where not wanted.
        """
        return predict(self.method, x, want=want, **self._how | how)

    def blocks(self, x: Inputs, want: tuple[Quantity, ...] = BOTH, **how: Any) -> Iterator[Prediction]:
        """As `predict`, a block of data at a time, for what is reduced right away.

        Args:
            x: data (n, *model_shape) in the model's space, or batches of them.
            want: what to compute.
            how: in which way, as in `predict`.
        """
        return predict_blocks(self.method, x, want=want, **self._how | how)

    @property
    def _how(self) -> dict[str, Any]:
        options = self.config.method.options
        how = {"predictive": options.predictive or "mc", "n_samples": options.n_samples or 20, "seed": self.seed}
        return how | {"at_mean": self.space.unit is not None}  # a trained network says what it says by itself

    def predicting(
        self, *, predictive: str | None = None, n_samples: int | None = None, seed: int | None = None
    ) -> Model:
        """Predict in another way from now on. What new data are compared with is predicted in that way too, so that
        p-values and intervals hold.

        Args:
            predictive: moments, mc or linearized; as before where not given.
            n_samples: networks drawn by mc; as before where not given.
            seed: of these; as before where not given.

        Returns:
            The model itself.
        """
        method, train = self.config.method, self.config.train
        given = {"predictive": predictive, "n_samples": n_samples}
        method = MethodConfig(method.method, method.options, **{k: v for k, v in given.items() if v is not None})
        train = train if seed is None else replace(train, seed=seed)
        config = replace(self.config, method=method, train=train)
        if config != self.config:
            before, self.config = self.config, config
            try:
                self.calibration = self.calibration and self.calibration.anew(self.predict)
            except ValueError:
                self.config = before
                raise
        return self

    def settle(self) -> Model:
        """Ready to predict: tables in 64 bits on a CPU, so that a datum's score does not depend on its batch."""
        self.method.eval().requires_grad_(False)
        if self.space.kind == "table" and next(self.method.parameters()).device.type == "cpu":
            self.method.double()
        return self

    def calibrate(self, train: Tensor, valid: Tensor, calib: Tensor, many: Tensor | None = None, **how: Any) -> None:
        """Fit what makes the numbers hold on new data, with data in the model's space.

        Args:
            train: some of those that training has seen.
            valid: those that steered it.
            calib: others, which it has not seen.
            many: more of `train`, where there are.
            how: `learned` of `lapae.calibrate.calibration.calibrate`.
        """
        self.memory = remember(self.method, train if many is None else many, valid)
        self.filling = filling_of(self.method, train, valid, self.space)
        how |= {"predict": self.predict, "table": self.space.kind == "table"}
        how |= {"keep": self.filling is None}  # which has rows of its own
        with few_threads(self.method, self.config.train.batch_size or 1):
            self.calibration = calibrate(train=train, valid=valid, rows=calib, **how)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Model:
        """The model of a run.

        Args:
            path: the run folder.
            options: those of `lapae.storage.load_run`: a `network` or a `likelihood` of one's own, and the `device`.
        """
        from lapae.storage import load_run

        return load_run(path, **options)
