"""A trained model: the one object behind the estimator, the commands, the tasks, the report and the explorer.

Its verbs take what a user has (arrays, tensors, frames) and give arrays in the user's units and layout; `space` leads
into the model's space and back, and `calibration` makes the numbers hold on new data.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.config import Config, MethodConfig
from lapae.curvature.likelihoods import Likelihood
from lapae.errors import RunError
from lapae.methods import Method
from lapae.models.threads import few_threads
from lapae.predict import Prediction, evaluating, predict
from lapae.predict.calibrate import Calibration, calibrate
from lapae.predict.conformal import threshold
from lapae.predict.decode import decode
from lapae.predict.fill import complete, completions
from lapae.predict.filling import Filling, filling_of, put_back
from lapae.predict.generate import from_codes
from lapae.predict.memory import Memory, draw_completions, remember
from lapae.predict.prediction import Quantity
from lapae.space import Space

NORMAL_90 = 1.6448536269514722
"""Deviations to either side of the mean that hold 90 % of a normal distribution."""
BOTH: tuple[Quantity, ...] = ("codes", "outputs")


@dataclass
class Model:
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
        """Codes (n, *code) and their deviations over networks."""
        found = self.predict(self.tensor(X), ("codes",))
        return numpy(found.z_mean), np.sqrt(numpy(found.z_var))

    def reconstruct(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Reconstructions (n, *shape) and the deviation of values from them: ± 1.64 of it holds 90 % of new values."""
        x, calibration = self.tensor(X), self._calibrated()
        found, missing = self.predict(x), x.isnan()
        mean = numpy(found.x_mean)
        if missing.any():
            mean = np.where(numpy(missing), numpy(self.complete(x).x_mean), mean)
        deviation = numpy(calibration.spread.deviation(found, x)) * (calibration.radius.at(0.9) / NORMAL_90)
        return self.space.to_user(mean), self.space.to_user(deviation, deviation=True)

    def decode(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Data (n, *shape) at codes (n, *code), and their deviation over networks."""
        n_samples = self.config.method.n_samples or 20
        found = decode(self.method, torch.as_tensor(z), n_samples=n_samples, seed=self.seed)
        return self.space.to_user(numpy(found.mean)), self.space.to_user(numpy(found.deviation), deviation=True)

    def surprise(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """How unusual each datum is, and its conformal p-value: (n,) each. NaN, with a warning, for empty data."""
        found, p = self._calibrated().compare(self.predict, self.tensor(X))
        empty = np.flatnonzero(np.isnan(found))
        if len(empty):
            warnings.warn(f"{len(empty)} data without any value, row {empty[0]} first: they get no score", stacklevel=3)
        return found, p

    def threshold(self, rate: float) -> float:
        """The surprise above which new normal data lie at `rate`."""
        return threshold(numpy(self._calibrated().reference), rate)

    def parts(self, X: Any) -> dict[str, np.ndarray]:
        """What `surprise` is made of, and the paper's scores, by name: (n,) each, higher is more unusual."""
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
        """Of each datum under the predictive, (n,)."""
        return numpy(self.predict(self.tensor(X), ("density",)).log_likelihood)

    def interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Where the values of new data of this kind lie, given their code: (low, high), each (n, *shape)."""
        x, calibration = self.tensor(X), self._calibrated()
        found = self.predict(x)
        reach = numpy(calibration.spread.deviation(found, x)) * calibration.radius.at(level)
        ends = self._around(numpy(found.x_mean), reach)
        if not x.isnan().any():
            return ends
        coded = self.space.code(X)
        missing = np.isnan(coded)
        return tuple(np.where(missing, a, b) for a, b in zip(self.impute_interval(coded, level), ends, strict=True))  # pyright: ignore

    def impute(self, X: Any, n_samples: int | None = None) -> np.ndarray:
        """X with its missing values filled in: the best guess, or `n_samples` completions (n_samples, n, *shape)."""
        coded = self.space.code(X)
        x = self.tensor(coded)
        if n_samples is not None:
            return put_back(self.space, self.completions(x, n_samples, self.seed), coded)
        guess = self.complete(x).x_mean
        assert guess is not None
        return put_back(self.space, torch.where(x.isnan(), guess, x), coded)

    def completions(self, x: Tensor, n: int, seed: int) -> Tensor:
        """n completions (n, N, *model_shape) of data x (N, *model_shape) in the model's space, NaN where missing."""
        if n < 1:
            raise ValueError(f"n_samples={n}: expected at least 1")
        if self.space.kind != "table" and x.isnan().any():
            noise = None if self.space.kind == "image" else self._calibrated().spread.noise  # images are looked at
            return draw_completions(self.method, self._remembers(), x, n, seed=seed, noise=noise)
        if self.filling is not None and x.isnan().any():
            self._for_holes()
            return self.filling.draw(self.predict(x), x, n, seed)
        how = {"seed": seed, "value_range": self.space.value_range}
        return completions(self.method, self._for_holes(), self.predict, x, n, **how)

    def impute_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Where missing values lie: (low, high), each (n, *shape); an observed value is its own interval."""
        coded = self.space.code(X)
        x = self.tensor(coded)
        missing = x.isnan()
        if not missing.any():
            return coded.copy(), coded.copy()
        calibration, found = self._for_holes(), self.complete(x)
        assert calibration.hidden is not None
        radius = calibration.hidden_radius(lambda x: self.complete(x, held=True), missing)
        reach = numpy(calibration.hidden.deviation(found, x)) * radius.at(level) + 1e-6  # values went in as 32 bits
        low, high = self._around(numpy(found.x_mean), reach, clip=self.space.kind == "image")
        return np.where(np.isnan(coded), low, coded), np.where(np.isnan(coded), high, coded)

    def explain(self, X: Any) -> np.ndarray:
        """Contribution of every value to how unusual its datum is: (n, *shape), at least 0, 0 where missing."""
        x, hides = self.tensor(X), self.space.kind == "table" and self.likelihood.missing and self.config.model.hide
        found = numpy(self._calibrated().explain(self.predict, x, bool(hides), self.space.columns))
        return self.space.as_given(np.where(np.isnan(numpy(x)), 0.0, found))

    def sample(self, n: int, seed: int | None = None, *, noise: bool | None = None) -> np.ndarray:
        """New data (n, *shape): codes from their density, decoded by drawn networks.

        Args:
            n: how many.
            seed: of codes, networks and noise.
            noise: add the noise of the likelihood to what networks make of a code: to all but images, where not given.
        """
        seed = self.seed if seed is None else seed
        noise = self.space.kind != "image" if noise is None else noise
        made = from_codes(self.method, self._remembers(), n, noise=noise, seed=seed)
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

    def predict(self, x: Tensor, want: tuple[Quantity, ...] = BOTH) -> Prediction:
        """What the networks say about data x (n, *model_shape) in the model's space, as the configuration asks."""
        options = self.config.method.options
        how = {"predictive": options.predictive or "mc", "n_samples": options.n_samples or 20}
        return predict(self.method, x, seed=self.seed, want=want, **how)

    def predicting(
        self, *, predictive: str | None = None, n_samples: int | None = None, seed: int | None = None
    ) -> Model:
        """The model, from now on predicting in another way, where given: what new data are compared with is predicted
        in that way too, so that p-values and intervals hold."""
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

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise RunError("this model has no calibration: it was saved before its training was finished")
        return self.calibration

    def _remembers(self) -> Memory:
        if self.memory is None:
            raise RunError("this model has no density of codes: it was saved before its training was finished")
        return self.memory

    def complete(self, x: Tensor, *, held: bool = False) -> Prediction:
        """Predictions of x with the best guess of what is missing; `held`: of data that were held out of training."""
        if self.filling is not None and x.isnan().any():
            self._for_holes()
            return self.filling.complete(self.predict(x), x, held=held)
        memory = None if self.space.kind == "table" else self._remembers()
        return complete(self.method, self.predict, x, memory=memory, seed=self.seed, value_range=self.space.value_range)

    def _for_holes(self) -> Calibration:
        """The calibration, which knows how far values that are filled in are off from now on."""
        found, filling = self._calibrated(), self.filling
        if found.hidden is None:
            found = found.with_hidden(self.complete) if filling is None else filling.learn(self.predict, found)
        self.calibration = found
        return found

    def _around(self, mean: np.ndarray, reach: np.ndarray, *, clip: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Intervals in the user's units, with `clip` within the range of images; that of a word is the word itself."""
        for kind, start, stop in self.space.parts:
            reach[:, start:stop] *= kind not in ("bernoulli", "categorical")
        low, high = (np.clip(end, 0, 1) if clip else end for end in (mean - reach, mean + reach))
        return self.space.to_user(low, whole=False), self.space.to_user(high, whole=False)

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
            how: `others`, `learned` of `lapae.predict.calibrate.calibrate`.
        """
        self.memory = remember(self.method, train if many is None else many, valid)
        self.filling = filling_of(self.method, train, valid, self.space)
        how |= {"predict": self.predict, "table": self.space.kind == "table"}
        how |= {"trained": self.config.train.epochs != 0, "keep": self.filling is None}  # which has rows of its own
        with few_threads(self.method, self.config.train.batch_size or 1):
            self.calibration = calibrate(train=train, valid=valid, rows=calib, **how)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Model:
        """The model of a run folder; `options` are those of `lapae.storage.load_run`."""
        from lapae.storage import load_run

        return load_run(path, **options)


def numpy(x: Tensor | None) -> np.ndarray:
    assert x is not None
    return x.detach().cpu().numpy()
