"""What every imputer does: the best guess of missing values, completions, and prediction intervals that hold.

An imputer is fitted once, to values that were hidden from the network, and saved with the model. How wide its intervals
are depends on how much a row lacks: for tables one radius is kept for rows that lack up to 1, 2, 4, … columns; images
and series are compared with held-out samples that lack the same values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.calibration import Calibration, Predict, fit_radius
from lapae.calibrate.conformal import LEVELS, Radius
from lapae.methods import Method
from lapae.predict.deviation import Deviation
from lapae.predict.prediction import Prediction
from lapae.predict.rows import copies, distinct, hide, several
from lapae.score.latent_codes import LatentCodes
from lapae.space import Space

COPIES = 2000
"""Rows of a table to hide values of; fewer are hidden several times over."""
ITERATED = 32
"""Samples of other kinds to hide values of: to fill these in takes many passes, and each has many values."""
MOST_SIZES = 8
"""Numbers of missing columns for which a radius is kept, at most: those of a table of 128 columns."""


@dataclass(frozen=True)
class Trained:
    """The trained network that an imputer asks.

    Attributes:
        method: the trained method.
        predict: predictions of samples (n, *model_shape) in the way that the model predicts.
        space: what the data are.
        codes: codes of training samples.
        seed: seed of networks and noise.
    """

    method: Method
    predict: Predict
    space: Space
    codes: LatentCodes
    seed: int

    @property
    def widths(self) -> list[int]:
        """Number of features of each column of a table that the network sees."""
        columns = self.space.columns
        every = [1] * self.space.model_shape[0] if columns is None else [column.width for column in columns]
        return [width for width in every if width]


@dataclass(frozen=True)
class ImputerRows:
    """Rows that an imputer is fitted to.

    Attributes:
        train: training rows in the model's space, NaN where missing, (n, *features).
        valid: rows to hide values of and to learn from how far guesses are off, (m, *features).
        scarce: whether these are too few for deviations that fall with what the model calls ignorance.
    """

    train: Tensor
    valid: Tensor
    scarce: bool


@dataclass(frozen=True)
class Imputer(ABC):
    """Best guesses, completions and intervals of missing values.

    Attributes:
        deviation: standard deviation of values that are missing from their best guess.
        radii: radii of the intervals of a table by the number of columns that a row lacks (`sizes`), (S, L, *features);
            None for other data.
    """

    deviation: Deviation
    radii: np.ndarray | None

    @classmethod
    @abstractmethod
    def fit(cls, trained: Trained, rows: ImputerRows, calibration: Calibration) -> Self:
        """Fit to rows, without radii (`with_radii`)."""

    @abstractmethod
    def guess(self, trained: Trained, x: Tensor, *, held: bool = False, whole: Tensor | None = None) -> Prediction:
        """Predict samples with the best guess of what is missing.

        Args:
            trained: the trained network.
            x: samples (n, *model_shape); NaN is missing.
            held: whether they were held out of training: then they are not filled in from themselves.
            whole: x before values were hidden, from which these are not to be filled in either.

        Returns:
            A `Prediction`, whose `x_mean` (n, *model_shape) has the guesses.
        """

    @abstractmethod
    def draw(self, trained: Trained, x: Tensor, n: int, seed: int, *, held: bool = False) -> Tensor:
        """Return n completions (n, N, *model_shape) of samples x (N, *model_shape); `held` as in `guess`."""

    def with_radii(self, trained: Trained, held_out: Tensor) -> Self:
        """Return the imputer with the radii of a table's intervals, from `held_out` rows (n, D)."""
        if trained.space.kind != "table":
            return self
        found = [self._radius(trained, held_out, *span).table for span in sizes(len(trained.widths))]
        return replace(self, radii=np.stack(found))

    def interval(
        self, trained: Trained, x: Tensor, level: float, held_out: Tensor, *, whole: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the best guess of samples x, and how far intervals reach to either side of it.

        Args:
            trained: the trained network.
            x: samples (n, *model_shape); NaN is missing.
            level: share of missing values that lie within.
            held_out: samples to compare with, if the data are no table.
            whole: x before values were hidden, as in `guess`.

        Returns:
            Guesses and reach, (n, *model_shape) each.
        """
        found = self.guess(trained, x, whole=whole)
        reach = self.deviation(found, x)
        for members, radius in self._radii(trained, x, held_out):
            wide = reach[members].double() * torch.from_numpy(radius.at(level)) + 1e-6  # values went in as 32 bits
            reach[members] = wide.to(reach.dtype)
        return found.x_mean, reach

    def _radii(self, trained: Trained, x: Tensor, held_out: Tensor) -> Iterator[tuple[np.ndarray, Radius]]:
        """Yield the radii for missing values of x, each with the rows (m,) it is for; none depends on other rows."""
        missing = x.isnan().flatten(1)
        if self.radii is None:
            for members, mask in distinct(missing):
                if mask.any():
                    hidden = mask.reshape(x.shape[1:]).expand(ITERATED, *x.shape[1:])
                    yield members, self._hidden_radius(trained, held_out, hidden, shared=True)
            return
        lacking = missing[:, np.cumsum([0, *trained.widths[:-1]])].sum(1).numpy()
        for (low, high), table in zip(sizes(len(trained.widths)), self.radii, strict=True):
            members = np.flatnonzero((lacking > low) & (lacking <= high))
            if len(members):
                yield members, Radius(LEVELS, table)

    def _radius(self, trained: Trained, held_out: Tensor, low: int, high: int) -> Radius:
        """Fit the radius for rows of a table that lack more than `low` and at most `high` columns."""
        widths = np.array(trained.widths)
        rng = np.random.default_rng(round(math.log2(high)) if high & (high - 1) == 0 else math.ceil(math.log2(high)))
        own = several(held_out, COPIES).isnan()[:, np.cumsum([0, *widths[:-1]])].numpy()
        lacking = rng.integers(low + 1, min(high, len(widths)) + 1, COPIES)
        order = np.where(own, 2.0, rng.random(own.shape)).argsort(1).argsort(1)
        hidden = (order < np.maximum(1, lacking - own.sum(1))[:, None]) & ~own
        return self._hidden_radius(trained, held_out, torch.from_numpy(np.repeat(hidden, widths, axis=1)))

    def _hidden_radius(self, trained: Trained, held_out: Tensor, mask: Tensor, *, shared: bool = False) -> Radius:
        """Fit the radius of intervals for missing values.

        Args:
            trained: the trained network.
            held_out: held-out rows (m, *features).
            mask: what to hide of each of n of these rows, (n, *features).
            shared: one radius for all features.
        """
        chosen = copies(len(held_out), len(mask))
        rows = held_out[chosen]
        seen, truth = torch.where(mask, torch.nan, rows), torch.where(mask, rows, torch.nan)
        found = self.guess(trained, seen, held=True)
        return fit_radius(found, seen, truth, self.deviation, rows=chosen.numpy(), shared=shared)


def sizes(n_columns: int) -> list[tuple[int, int]]:
    """Return spans (low, high] of the number of columns that a row lacks, for each of which a radius is kept."""
    most = math.ceil(math.log2(n_columns)) if n_columns > 1 else 0
    powers = np.unique(np.linspace(0, most, min(most + 1, MOST_SIZES)).round().astype(int)).tolist()
    return list(zip([0, *(2**power for power in powers[:-1])], (2**power for power in powers), strict=True))


def fit_hidden(complete: Callable[[Tensor], Prediction], rows: ImputerRows, n: int) -> Deviation:
    """Fit the standard deviation of values that were hidden from the network, at several shares of hidden values.

    Args:
        complete: predicts rows with the best guess of what is missing.
        rows: rows to hide values of.
        n: how many of them, at most.
    """
    generator = torch.Generator().manual_seed(0)
    (given, theirs), (seen, truth) = (hide(several(part, n), generator) for part in (rows.train, rows.valid))
    least = 0.0 if rows.scarce else -math.inf
    return Deviation.fit(complete(given), theirs, complete(seen), seen, truth, least=least)
