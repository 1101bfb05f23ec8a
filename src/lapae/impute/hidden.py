"""What a model says of values that it does not see: missing ones, and ones that are hidden to know what it expected.

`Hidden` are these verbs of `lapae.model.Model`. Data are (n, *shape) in the user's units, x is (n, *model_shape) in the
model's space; NaN is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.calibration import COPIES, ITERATED, Calibration
from lapae.calibrate.conformal import Radius
from lapae.calibrate.patterns import distinct
from lapae.curvature.likelihoods import Likelihood
from lapae.errors import RunError
from lapae.impute.network import complete, completions
from lapae.impute.recall import Memory, draw_completions
from lapae.impute.table import Filling, put_back
from lapae.methods import Method
from lapae.predict.prediction import Prediction, numpy
from lapae.space import Space

VALUES = 2**18
"""Of data with one value hidden each, that are completed at a time."""


class Hidden:
    """Missing values filled in, and values hidden one by one."""

    method: Method
    space: Space
    calibration: Calibration | None
    memory: Memory | None
    filling: Filling | None

    if TYPE_CHECKING:  # what `Model` brings

        @property
        def likelihood(self) -> Likelihood: ...
        @property
        def seed(self) -> int: ...
        def tensor(self, X: Any) -> Tensor: ...
        def predict(self, x: Tensor) -> Prediction: ...
        def explain(self, X: Any) -> np.ndarray: ...
        def reconstruct(self, X: Any) -> tuple[np.ndarray, np.ndarray]: ...
        def interval(self, X: Any, level: float) -> tuple[np.ndarray, np.ndarray]: ...

    def impute(self, X: Any, n_samples: int | None = None) -> np.ndarray:
        """X with its missing values filled in.

        Args:
            X: data (n, *shape); NaN is missing.
            n_samples: completions of each datum; the best guess where not given.

        Returns:
            (n, *shape), or completions (n_samples, n, *shape). Observed values are as they were.
        """
        coded = self.space.code(X)
        x = self.tensor(coded)
        if n_samples is not None:
            return put_back(self.space, self.completions(x, n_samples, self.seed), coded)
        return put_back(self.space, torch.where(x.isnan(), self.complete(x).x_mean, x), coded)

    def impute_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Where missing values lie.

        Args:
            X: data (n, *shape); NaN is missing.
            level: share of missing values that lie within.

        Returns:
            low, high: (n, *shape) each; an observed value is its own interval.
        """
        coded = self.space.code(X)
        if not np.isnan(coded).any():
            return coded.copy(), coded.copy()
        return self._filled(coded, level)[1:]

    def counterfactual(
        self, X: Any, top: int | None = None, level: float = 0.9, *, contribution: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What would have been expected in place of each value, with an interval.

        In a table that is what the other values of the row say: each value is hidden in its turn, and filled in as a
        missing one is, because a network reproduces an odd value that it is shown. The value that contributes most to
        how unusual the row is is hidden from the others, too, as it would mislead. Of images, series and arrays, and of
        tables whose likelihood takes no missing values, it is the reconstruction, which is drawn from all values.

        Args:
            X: data (n, *shape).
            top: ask only about so many values of each datum, those that contribute most; about all where not given.
            level: share of the values of normal data that lie within.
            contribution: what `explain` says of X, where that is known already.

        Returns:
            expected, low, high: (n, *shape) each, NaN where not asked about. A word is its own interval.
        """
        if top is not None and top < 1:
            raise ValueError(f"top={top}: expected at least 1")
        coded = self.space.code(X)
        contribution = self.explain(coded) if contribution is None else contribution
        asked = np.ones(coded.shape, bool) if top is None else leading(contribution, top)
        if not self.from_others:
            found = (self.reconstruct(coded)[0], *self.interval(coded, level))
            return tuple(np.where(asked, part, np.nan) for part in found)  # pyright: ignore
        out, first = np.full((3, *coded.shape), np.nan), leading(contribution, 1)
        rows, columns = np.nonzero(asked)
        size = max(1, VALUES // coded.shape[1])
        for start in range(0, len(rows), size):
            i, j = rows[start : start + size], columns[start : start + size]
            whole, without, at = coded[i].astype(float), np.where(first[i], np.nan, coded[i]), np.arange(len(i))
            without[at, j] = np.nan
            out[:, i, j] = np.stack(self._filled(without, level, whole))[:, at, j]
        return out[0], out[1], out[2]

    @property
    def from_others(self) -> bool:
        """Whether what is expected of a value is what the others of its datum say, and not the reconstruction."""
        return self.space.kind == "table" and self.likelihood.missing

    def completions(self, x: Tensor, n: int, seed: int) -> Tensor:
        """Several completions of data in the model's space.

        Args:
            x: data (N, *model_shape); NaN is missing.
            n: completions of each.
            seed: of networks and noise.

        Returns:
            (n, N, *model_shape).
        """
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

    def complete(self, x: Tensor, *, held: bool = False, whole: Tensor | None = None) -> Prediction:
        """Predictions with the best guess of what is missing.

        Args:
            x: data (n, *model_shape); NaN is missing.
            held: whether they were held out of training: then they are not filled in from themselves.
            whole: (n, *model_shape): x before values were hidden, from which these are not to be filled in either.

        Returns:
            A `Prediction`, whose `x_mean` (n, *model_shape) has the guesses.
        """
        if self.filling is not None and x.isnan().any():
            self._for_holes()
            return self.filling.complete(self.predict(x), x, held=held, whole=whole)
        memory = None if self.space.kind == "table" else self._remembers()
        return complete(self.method, self.predict, x, memory=memory, seed=self.seed, value_range=self.space.value_range)

    def _filled(
        self, coded: np.ndarray, level: float, whole: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the best guess, low and high (n, *shape) of what is missing in `coded` (n, *shape).

        `whole` are the rows before values were hidden, if some were.
        """
        x = self.tensor(coded)
        calibration = self._for_holes()
        found = self.complete(x, whole=None if whole is None else self.tensor(whole))
        assert calibration.hidden is not None
        reach = numpy(calibration.hidden.deviation(found, x))
        for members, radius in self._radii(x):
            reach[members] = reach[members] * radius.at(level) + 1e-6  # values went in as 32 bits
        ends = self._around(numpy(found.x_mean), reach, clip=self.space.kind == "image")
        low, high = (np.where(np.isnan(coded), end, coded) for end in ends)
        return put_back(self.space, torch.where(x.isnan(), found.x_mean, x), coded), low, high

    def _held_out(self, x: Tensor) -> Prediction:
        return self.complete(x, held=True)

    def _radii(self, x: Tensor) -> Iterator[tuple[np.ndarray, Radius]]:
        """Yield the radii of intervals for missing values of x (n, *model_shape), each with the rows (m,) it is for.

        That of a table's row depends on how many columns it lacks; that of others on which values. Neither depends on
        the other rows.
        """
        missing = x.isnan().flatten(1)
        if self.space.kind != "table":
            for members, mask in distinct(missing):
                if mask.any():
                    hidden = mask.reshape(x.shape[1:]).expand(ITERATED, *x.shape[1:])
                    yield members, self._for_holes().hidden_radius(self._held_out, hidden, shared=True)
            return
        lacking = missing[:, np.cumsum([0, *self._widths[:-1]])].sum(1).numpy()
        sizes = np.ceil(np.log2(np.maximum(lacking, 1))).astype(int)
        for size in np.unique(sizes[lacking > 0]).tolist():
            yield np.flatnonzero((sizes == size) & (lacking > 0)), self._radius(size)

    def _radius(self, size: int) -> Radius:
        """Return the radius of intervals for rows of a table that lack 2^size columns, or more than half as many."""
        found = self._for_holes()
        if size not in found.few:
            rng, widths = np.random.default_rng(size), np.array(self._widths)
            own = found.held(COPIES)[0].isnan()[:, np.cumsum([0, *widths[:-1]])].numpy()
            lacking = rng.integers(2**size // 2 + 1, min(2**size, len(widths)) + 1, COPIES)
            order = np.where(own, 2.0, rng.random(own.shape)).argsort(1).argsort(1)
            hidden = (order < np.maximum(1, lacking - own.sum(1))[:, None]) & ~own
            mask = torch.from_numpy(np.repeat(hidden, widths, axis=1))
            found = replace(found, few={**found.few, size: found.hidden_radius(self._held_out, mask)})
            self.calibration = found
        return found.few[size]

    @property
    def _widths(self) -> list[int]:
        """Features of each column of a table."""
        columns = self.space.columns
        return [1] * self.space.model_shape[0] if columns is None else [column.width for column in columns]

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

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise RunError("this model has no calibration: it was saved before its training was finished")
        return self.calibration

    def _remembers(self) -> Memory:
        if self.memory is None:
            raise RunError("this model has no density of codes: it was saved before its training was finished")
        return self.memory


def leading(contribution: np.ndarray, n: int) -> np.ndarray:
    """Which n values of each datum contribute most, (N, *shape) bool; never one that contributes nothing."""
    flat = contribution.reshape(len(contribution), -1)
    chosen = np.zeros(flat.shape, bool)
    np.put_along_axis(chosen, np.argsort(-flat, axis=1, kind="stable")[:, :n], True, axis=1)
    return (chosen & (flat > 0)).reshape(contribution.shape)
