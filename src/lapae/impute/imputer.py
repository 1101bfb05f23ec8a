"""What every imputer does: the best guess of missing values, completions, and prediction intervals that hold.

An imputer is fitted once, to values that were hidden from the network, and saved with the model. How wide its intervals
are depends on how much a row lacks: for tables one radius is kept for rows that lack up to 1, 2, 4, … columns; images
and series are compared with held-out samples that lack the same values.

An interval of a table's value reaches further to the side where values lie further from their guess: with the standard
deviation d, and the share u of the squared deviation that lies above the guess, r · d · sqrt(2 (1 - u)) down and
r · d · sqrt(2 u) up. The conformal radius r is the one of held-out values, each by the side that it lies on. Levels
of a category have no distances: the radius is the quantile of 1 - p of what was hidden, with p its probability, and
levels that are as probable are in the set (Sadinle et al. 2019).
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

from lapae.calibrate.calibration import SHARED, Calibration, Predict
from lapae.calibrate.conformal import LEVELS, Radius
from lapae.methods import Method
from lapae.predict.deviation import Deviation
from lapae.predict.prediction import Prediction
from lapae.predict.rows import copies, distinct, hide, several
from lapae.score.latent_codes import LatentCodes
from lapae.space import Space

COPIES = 2000
"""Rows of a table to hide values of; fewer are hidden several times over."""
HIDDEN, OF_COLUMN = 20_000, 150
"""Values of a table that are hidden, from which on fewer copies do, if this many of each column are hidden."""
ITERATED = 32
"""Samples of other kinds to hide values of: to fill these in takes many passes, and each has many values."""
LEAST_SIDE = 0.04
"""Smallest share of the squared deviation of values that is taken to lie to one side of the guess."""
PRIOR = 10.0
"""Weight, in values, of no skew in the share of a column."""
MOST_SIZES = 6
"""Numbers of missing columns for which a radius is kept, at most: those of a table of 32 columns."""


Kinds = tuple[tuple[str, int, int], ...]
"""Likelihood, start and stop of the features of each column."""


@dataclass(frozen=True)
class Trained:
    """The trained network that an imputer asks.

    Attributes:
        method: the trained method.
        predict: predictions of samples (n, *model_shape) in the way that the model predicts. If `variance` is given,
            their variances are 0.
        space: what the data are.
        codes: codes of training samples.
        seed: seed of networks and noise.
        variance: variance of the reconstructions of samples over networks, at its natural size: it is added to the
            squared standard deviation of missing values. None for posteriors without one.
    """

    method: Method
    predict: Predict
    space: Space
    codes: LatentCodes
    seed: int
    variance: Callable[[Tensor], Tensor] | None = None

    @property
    def groups(self) -> tuple[Tensor, Tensor]:
        """The column of each feature (D,), and whether it is that of a category or a boolean (D,)."""
        return columns(self.space.parts, self.space.model_shape[0])

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
        upper: share of the squared deviation of values from their guess that lies above it, (*features); None for data
            that are no table, and imputers of older versions: then intervals are symmetric.
    """

    deviation: Deviation
    radii: np.ndarray | None
    upper: Tensor | None

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
            A `Prediction`, whose `x_mean` (n, *model_shape) has the guesses; where these are medians, `x_average` has
            the means.
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
    ) -> tuple[Prediction, Tensor, Tensor]:
        """Predict samples x with the best guess of what is missing, and say how far intervals reach from it.

        Args:
            trained: the trained network.
            x: samples (n, *model_shape); NaN is missing.
            level: share of missing values that lie within.
            held_out: samples to compare with, if the data are no table.
            whole: x before values were hidden, as in `guess`.

        Returns:
            The prediction, and the reach downward and upward, (n, *model_shape) each. For the features of a category or
            a boolean of a table both are 1 minus the least probability of a level of the set.
        """
        found = self.guess(trained, x, whole=whole)
        down, up = self.sides(trained, found, x)
        for members, radius in self._radii(trained, x, held_out):
            at = torch.from_numpy(radius.at(level))
            for reach in (down, up):
                wide = reach[members].double() * at + 1e-6  # values went in as 32 bits
                reach[members] = wide.to(reach.dtype)
        return found, down, up

    def sides(self, trained: Trained, found: Prediction, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what radii count in, downward and upward, (n, *model_shape) each: standard deviations of values, and 1
        for probabilities of levels."""
        deviation = torch.maximum(self.deviation(found, x), self.least)
        if trained.variance is not None:
            deviation = (deviation.square() + trained.variance(x)).sqrt()
        if self.upper is None:
            return deviation, deviation.clone()
        upper = found.values.get("x_upper", self.upper).clamp(LEAST_SIDE, 1 - LEAST_SIDE)
        words = trained.groups[1]
        down, up = ((deviation * (2 * share).sqrt()) for share in (1 - upper, upper))
        return torch.where(words, 1.0, down), torch.where(words, 1.0, up)

    @property
    def least(self) -> Tensor:
        """Least standard deviations of values, for their intervals: (*features), or one for all."""
        return torch.zeros(())

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
        n = n_copies(len(widths), (low + 1 + min(high, len(widths))) / 2)
        own = several(held_out, n).isnan()[:, np.cumsum([0, *widths[:-1]])].numpy()
        lacking = rng.integers(low + 1, min(high, len(widths)) + 1, n)
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
        down, up = self.sides(trained, found, seen)
        gap = truth - found.x_mean
        ratio = gap.abs() / torch.where(gap < 0, down, up)
        shared = shared or ratio[0].numel() > SHARED
        if self.upper is None or shared:
            return Radius.fit(ratio.numpy(), rows=chosen.numpy(), shared=shared)
        groups, words = trained.groups
        table = np.zeros((len(LEVELS), ratio.shape[1]))
        for j in groups[words].unique().tolist():
            of = (groups == j).nonzero()[:, 0]
            if len(of) > 1:  # one minus the probability of the level that was hidden
                ratio[:, of] = (1 - (truth[:, of] * found.x_mean[:, of]).sum(1))[:, None]
        for some in (words.numpy(), ~words.numpy()):
            if some.any():
                part = Radius.fit(ratio[:, some].numpy(), rows=chosen.numpy()).table
                table[:, some] = np.broadcast_to(part, (len(LEVELS), int(some.sum())))
        return Radius(LEVELS, table)


def n_copies(n_columns: int, lacking: float) -> int:
    """Return how many rows to hide values of, if so many of a row's columns are hidden, on average."""
    return min(COPIES, math.ceil(max(HIDDEN, OF_COLUMN * n_columns) / lacking))


def sizes(n_columns: int) -> list[tuple[int, int]]:
    """Return spans (low, high] of the number of columns that a row lacks, for each of which a radius is kept."""
    most = math.ceil(math.log2(n_columns)) if n_columns > 1 else 0
    powers = np.unique(np.linspace(0, most, min(most + 1, MOST_SIZES)).round().astype(int)).tolist()
    return list(zip([0, *(2**power for power in powers[:-1])], (2**power for power in powers), strict=True))


def columns(parts: Kinds, n_features: int) -> tuple[Tensor, Tensor]:
    """Return the column of each feature (D,), and whether it is that of a category or a boolean (D,)."""
    groups, words = torch.arange(n_features), torch.zeros(n_features, dtype=torch.bool)
    for name, start, stop in parts:
        words[start:stop] = name in ("bernoulli", "categorical")
        if name == "categorical":
            groups[start:stop] = start
    return torch.unique(groups, return_inverse=True)[1], words


def share_above(gap: Tensor) -> Tensor:
    """Return the share (D,) of the squares of `gap` (n, D), NaN where missing, that belongs to positive ones."""
    square = gap.nan_to_num().square()
    prior = PRIOR * square.sum(0) / (~gap.isnan()).sum(0).clamp_min(1) + 1e-12
    return (torch.where(gap > 0, square, 0.0).sum(0) + prior / 2) / (square.sum(0) + prior)


def fit_hidden(
    complete: Callable[[Tensor], Prediction], rows: ImputerRows, n: int, *, table: bool = False
) -> tuple[Deviation, Tensor | None]:
    """Fit the standard deviation of values that were hidden from the network, at several shares of hidden values.

    Args:
        complete: predicts rows with the best guess of what is missing.
        rows: rows to hide values of.
        n: how many of them, at most.
        table: whether the data are a table.

    Returns:
        The standard deviation, and for a table the share of the squared deviation that lies above, (*features).
    """
    generator = torch.Generator().manual_seed(0)
    (given, theirs), (seen, truth) = (hide(several(part, n), generator) for part in (rows.train, rows.valid))
    least = 0.0 if rows.scarce else -math.inf
    found = complete(seen)
    deviation = Deviation.fit(complete(given), theirs, found, seen, truth, least=least)
    return deviation, share_above(truth - found.x_mean) if table else None
