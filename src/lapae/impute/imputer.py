"""The protocol of all imputers: the best guess of missing values, completions, and calibrated prediction intervals.

An imputer is fitted once, to values that were hidden from the network, and saved with the model. How well the observed
values of a row determine a missing one shows in the width of its distribution: the values of a column whose
distributions are narrow have radii of their own, and so have those whose distributions are wide, if each are enough
(Mondrian conformal prediction, Vovk et al. 2005). Images and series are compared with held-out samples that lack the
same values.

The ends of an interval are scores of the distribution of a missing value (`lapae.impute.spread`). For a value of a
table the interval extends further to the side where values lie further from their guess: with the standard deviation d
and the share u of the squared deviation that lies above the guess, it extends by r · d · sqrt(2 (1 - u)) downward and
by r · d · sqrt(2 u) upward; for values from donors it has the shape of the donors' distribution. The conformal radius r
is that of held-out values, one for both ends or, with donors, one for each. Levels of a category have no distances: the
radius is the quantile of 1 - p, with p the probability of the level that was hidden, and all levels that are at least
as probable are in the set (Sadinle et al. 2019).
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
from lapae.calibrate.conformal import LEVELS, SURE, Radius
from lapae.impute.spread import Spread
from lapae.methods import Method
from lapae.predict.deviation import Deviation
from lapae.predict.prediction import Prediction, join
from lapae.predict.rows import copies, distinct, hide, several
from lapae.score.latent_codes import LatentCodes
from lapae.space import Space

COPIES = 2000
"""Number of rows of a table in which values are hidden; if there are fewer rows, each is used several times."""
HIDDEN, OF_COLUMN = 20_000, 150
"""Fewer copies suffice if this number of values is hidden in total, and the second number in each column."""
ITERATED = 32
"""Number of samples of other kinds in which values are hidden: filling them in takes many passes, and each has many
values."""
LEAST_SIDE = 0.04
"""Smallest share of the squared deviation of values that is assumed to lie to one side of the guess."""
PRIOR = 10.0
"""Weight, in values, of a prior without skew in the share of a column."""
MOST_SIZES = 6
"""Maximum number of spans of the number of columns that are hidden from a row: those of a table of 32 columns."""
ENDS = (0.05, 0.95)
"""Quantiles of the log widths of the distributions of a column halfway between which the narrow ones end."""


AT_ONCE = 2**15
"""Number of values of a table whose distributions are in memory at a time."""
ONE_AT_ONCE = 2**17
"""Number of values of rows in memory at a time if only one value of each row is filled in."""
LINE = ("x_line", "x_line_deviation")
"""What a straight line through the table expects of missing values, and its standard deviation."""
Kinds = tuple[tuple[str, int, int], ...]
"""Likelihood, start and stop of the features of each column."""


@dataclass(frozen=True)
class Trained:
    """The trained network that an imputer uses.

    Attributes:
        method: the trained method.
        predict: returns predictions of samples (n, *model_shape), as the model predicts. If `variance` is given, their
            variances are 0.
        space: what the data are.
        codes: codes of training samples.
        seed: seed of networks and noise.
        variance: variance of the reconstructions of samples over networks, at its natural size: it is added to the
            squared standard deviation of missing values. It is given the samples, and optionally one feature of each
            (n,) whose variance is wanted, (n, 1). None for posteriors without one.
    """

    method: Method
    predict: Predict
    space: Space
    codes: LatentCodes
    seed: int
    variance: Callable[[Tensor, Tensor | None], Tensor] | None = None

    @property
    def groups(self) -> tuple[Tensor, Tensor]:
        """The column of each feature (D,), and whether that column is a category or a boolean (D,)."""
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
        valid: rows in which values are hidden to learn the errors of guesses, (m, *features).
        scarce: whether these are too few to let deviations decrease with the uncertainty of the model.
    """

    train: Tensor
    valid: Tensor
    scarce: bool


@dataclass(frozen=True)
class Imputer(ABC):
    """Best guesses, completions and intervals of missing values.

    Attributes:
        deviation: standard deviation of missing values around their best guess; None for values from donors, which
            have that of the donors' values.
        radii: radii of the intervals of a table, downward and upward, for narrow and for wide distributions,
            (2, 2, L, *features); None for other data.
        narrow: log width up to which distributions are narrow, (*features).
        upper: share of the squared deviation of values from their guess that lies above it, (*features); None for data
            other than tables, and for values from donors.
    """

    deviation: Deviation | None
    radii: np.ndarray | None
    narrow: np.ndarray | None
    upper: Tensor | None

    @classmethod
    @abstractmethod
    def fit(cls, trained: Trained, rows: ImputerRows, calibration: Calibration) -> Self:
        """Fit to rows, without radii (`with_radii`)."""

    @abstractmethod
    def guess(
        self,
        trained: Trained,
        x: Tensor,
        *,
        held: bool = False,
        whole: Tensor | None = None,
        shape: bool = False,
        at: Tensor | None = None,
    ) -> Prediction:
        """Predict samples with the best guess of missing values.

        Args:
            trained: the trained network.
            x: samples (n, *model_shape); NaN is missing.
            held: whether they were held out of training, so that they must not be filled in from themselves.
            whole: x before values were hidden; it must not be used to fill them in either.
            shape: whether to return the shapes of distributions, too.
            at: fill in only one column of each row of a table, that of these features (n,); default: all. Other values
                may be the output of the network.

        Returns:
            A `Prediction`, whose `x_mean` (n, *model_shape) has the guesses; if these are medians, `x_average` has the
            means. `x_points` (n, *model_shape, Q) are quantiles of values with donors, NaN for others; with `at`,
            (n, 1, Q).
        """

    @abstractmethod
    def draw(self, trained: Trained, x: Tensor, n: int, seed: int, *, held: bool = False) -> Tensor:
        """Return n completions (n, N, *model_shape) of samples x (N, *model_shape); `held` as in `guess`."""

    def with_radii(self, trained: Trained, held_out: Tensor) -> Self:
        """Return the imputer with the radii of a table's intervals, from `held_out` rows (n, D)."""
        if trained.space.kind != "table":
            return self
        every = (self._hidden_scores(trained, held_out, mask) for mask in masks(trained, held_out))
        score, width, rows = map(np.concatenate, zip(*every, strict=True))
        narrow = np.nanquantile(np.where(np.isnan(width).all(0), 0.0, width), ENDS, axis=0).mean(0)
        groups = width <= narrow, width > narrow
        few = np.minimum(*(_distinct(rows, ~np.isnan(score) & group) for group in groups)) < SURE
        words = trained.groups[1].numpy()
        radii = np.zeros((2, 2, len(LEVELS), score.shape[1]))
        for i, group in enumerate(groups):
            for some in (words, ~words):
                own = np.where(group | few, score, np.nan)[:, some]
                one_sided = self.has_shapes and not words[some].any()
                for j, sign in enumerate((-1, 1)) if some.any() else ():
                    ratio = sign * own if one_sided else np.abs(own)
                    part = Radius.fit(ratio, rows=rows, one_sided=one_sided, shared=score.shape[1] > SHARED).table
                    radii[j, i][:, some] = part
        return replace(self, radii=radii, narrow=narrow)

    def interval(
        self,
        trained: Trained,
        x: Tensor,
        level: float,
        held_out: Tensor,
        *,
        whole: Tensor | None = None,
        at: Tensor | None = None,
    ) -> tuple[Prediction, Tensor, Tensor]:
        """Predict samples x with the best guess of missing values, and return how far intervals extend from it.

        Args:
            trained: the trained network.
            x: samples (n, *model_shape); NaN is missing.
            level: share of missing values that lie inside.
            held_out: samples to compare with, if the data are not a table.
            whole: x before values were hidden, as in `guess`.
            at: fill in only one column of each row, as in `guess`.

        Returns:
            The prediction, and the reach downward and upward, (n, *model_shape) each, or with `at` (n, 1). For the
            features of a category or a boolean of a table both are 1 minus the smallest probability of a level in the
            set.
        """
        size = max(1, (AT_ONCE if at is None else ONE_AT_ONCE) // x[0].numel()) if len(x) else 1
        if self.radii is not None and len(x) > size:
            more = ([None] * len(x) if part is None else part.split(size) for part in (whole, at))
            every = zip(x.split(size), *more, strict=False)
            parts = [self.interval(trained, part, level, held_out, whole=w, at=a) for part, w, a in every]
            guesses, downs, ups = zip(*parts, strict=True)
            return join(guesses), torch.cat(downs), torch.cat(ups)
        found = self.guess(trained, x, whole=whole, shape=True, at=at)
        spread = self.spread(trained, found, x, at)
        reach = spread.reach(*self._radii(trained, x, held_out, spread, level, at))
        down, up = ((ends + 1e-6).to(spread.up.dtype) for ends in reach)  # values were converted to 32 bits
        kept = {name: value for name, value in found.values.items() if name in ("x_mean", *LINE)}
        return Prediction(found.n_draws, kept), down, up

    def spread(self, trained: Trained, found: Prediction, x: Tensor, at: Tensor | None = None) -> Spread:
        """Return the distributions of missing values; for probabilities of levels, a scale of 1. With `at`, those of
        one feature of each row, (n, 1)."""
        assert self.deviation is not None
        deviation = self.deviation(found, x, at)
        words = of_each(trained.groups[1], at) if trained.space.kind == "table" else None
        if trained.variance is not None:
            numbers = None if words is None or at is None else (~words[:, 0]).nonzero()[:, 0]
            more = _variance(trained.variance, x, at, numbers)
            deviation = (deviation.square() + more).sqrt()
        if words is None:
            return Spread(deviation, deviation)
        down = up = torch.where(words, 1.0, deviation)
        if self.upper is not None:
            upper = of_each(self.upper, at).clamp(LEAST_SIDE, 1 - LEAST_SIDE)
            down, up = (torch.where(words, 1.0, deviation * (2 * share).sqrt()) for share in (1 - upper, upper))
        return Spread(down, up)

    def beyond(self, found: Prediction, level: float) -> tuple[Tensor, Tensor] | None:
        """Return how far intervals of missing values may extend beyond the values of the rows, downward and upward.

        Args:
            found: the prediction that `interval` returned with their reach.
            level: share of missing values that lie inside.

        Returns:
            Two tensors like the reach; None if they may not.
        """
        return None

    @property
    def has_shapes(self) -> bool:
        """Whether distributions have shapes, so that each end of an interval has a radius of its own."""
        return False

    def _radii(
        self, trained: Trained, x: Tensor, held_out: Tensor, spread: Spread, level: float, at: Tensor | None
    ) -> list[Tensor]:
        """Return the radii of missing values of x, downward and upward, (n, *features) each, or with `at` (n, 1); those
        of a row do not depend on other rows."""
        if self.radii is not None and self.narrow is not None:
            wide = spread.width().log() > of_each(torch.from_numpy(self.narrow), at)
            at_level = [[torch.from_numpy(Radius(LEVELS, table).at(level)) for table in of] for of in self.radii]
            every = [[of_each(radius, at) for radius in of] for of in at_level]
            return [torch.where(wide, of_wide, of_narrow) for of_narrow, of_wide in every]
        radius, missing = torch.zeros(x.shape, dtype=torch.float64), x.isnan().flatten(1)
        for members, mask in distinct(missing):
            if mask.any():
                hidden = mask.reshape(x.shape[1:]).expand(ITERATED, *x.shape[1:])
                found = self._hidden_radius(trained, held_out, hidden)
                radius[torch.as_tensor(members)] = torch.from_numpy(found.at(level))
        return [radius, radius]

    def _hidden_radius(self, trained: Trained, held_out: Tensor, mask: Tensor) -> Radius:
        """Fit the radius of intervals for missing values of samples, one for all features; arguments as below."""
        score, _, rows = self._hidden_scores(trained, held_out, mask)
        return Radius.fit(np.abs(score), rows=rows, shared=True)

    def _hidden_scores(self, trained: Trained, held_out: Tensor, mask: Tensor) -> tuple[np.ndarray, ...]:
        """Hide values of held-out rows and find how far out they lie in their distributions.

        Args:
            trained: the trained network.
            held_out: held-out rows (m, *features).
            mask: the values to hide in each of n of these rows, (n, *features).

        Returns:
            Scores (n, *features), NaN for values that were not hidden; the log widths of their distributions,
            (n, *features); and which of the rows they are of, (n,).
        """
        chosen = copies(len(held_out), len(mask))
        rows = held_out[chosen]
        seen, truth = torch.where(mask, torch.nan, rows), torch.where(mask, rows, torch.nan)
        found = self.guess(trained, seen, held=True, shape=True)
        spread = self.spread(trained, found, seen)
        score = spread.score(truth - found.x_mean)
        if trained.space.kind == "table":
            groups, words = trained.groups
            for j in groups[words].unique().tolist():
                of = (groups == j).nonzero()[:, 0]
                if len(of) > 1:  # one minus the probability of the level that was hidden
                    score[:, of] = (1 - (truth[:, of] * found.x_mean[:, of]).sum(1))[:, None]
        width = torch.where(score.isnan(), torch.nan, spread.width().log())
        return score.numpy(), width.numpy(), chosen.numpy()


def masks(trained: Trained, held_out: Tensor) -> Iterator[Tensor]:
    """Yield which values (n, D) to hide in copies of `held_out` rows (m, D): in some few columns, in others most."""
    widths = np.array(trained.widths)
    for i, (low, high) in enumerate(sizes(len(widths))):
        rng, most = np.random.default_rng(i), min(high, len(widths))
        n = n_copies(len(widths), (low + 1 + most) / 2)
        own = several(held_out, n).isnan()[:, np.cumsum([0, *widths[:-1]])].numpy()
        lacking = rng.integers(low + 1, most + 1, n)
        order = np.where(own, 2.0, rng.random(own.shape)).argsort(1).argsort(1)
        hidden = (order < np.maximum(1, lacking - own.sum(1))[:, None]) & ~own
        yield torch.from_numpy(np.repeat(hidden, widths, axis=1))


def _distinct(rows: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return the number of different rows (D,) among the indices `rows` (n,) for which `there` (n, D) is true."""
    each = np.zeros((rows.max() + 1, there.shape[1]), bool)
    np.logical_or.at(each, rows, there)
    return each.sum(0)


def n_copies(n_columns: int, lacking: float) -> int:
    """Return the number of rows in which to hide values, given the mean number of columns that are hidden in a row."""
    return min(COPIES, math.ceil(max(HIDDEN, OF_COLUMN * n_columns) / lacking))


def sizes(n_columns: int) -> list[tuple[int, int]]:
    """Return spans (low, high] of the number of columns that are hidden from a row."""
    most = math.ceil(math.log2(n_columns)) if n_columns > 1 else 0
    powers = np.unique(np.linspace(0, most, min(most + 1, MOST_SIZES)).round().astype(int)).tolist()
    return list(zip([0, *(2**power for power in powers[:-1])], (2**power for power in powers), strict=True))


def columns(parts: Kinds, n_features: int) -> tuple[Tensor, Tensor]:
    """Return the column of each feature (D,), and whether that column is a category or a boolean (D,)."""
    groups, words = torch.arange(n_features), torch.zeros(n_features, dtype=torch.bool)
    for name, start, stop in parts:
        words[start:stop] = name in ("bernoulli", "categorical")
        if name == "categorical":
            groups[start:stop] = start
    return torch.unique(groups, return_inverse=True)[1], words


def of_each(values: Tensor, at: Tensor | None) -> Tensor:
    """Return values (D,), one for each feature, or those of one feature of each row, (n, 1)."""
    return values if at is None or not values.ndim else values[at, None]


def _variance(
    variance: Callable[[Tensor, Tensor | None], Tensor], x: Tensor, at: Tensor | None, numbers: Tensor | None
) -> Tensor:
    """Return the variance of values of x over networks; with `at`, of features that are `numbers`, 0 for others."""
    if at is None or numbers is None:
        return variance(x, at)
    out = x.new_zeros(len(x), 1)
    return out.index_copy_(0, numbers, variance(x[numbers], at[numbers])) if len(numbers) else out


def share_above(gap: Tensor) -> Tensor:
    """Return the share (D,) of the sum of squares of `gap` (n, D), NaN where missing, that is due to positive ones."""
    square = gap.nan_to_num().square()
    prior = PRIOR * square.sum(0) / (~gap.isnan()).sum(0).clamp_min(1) + 1e-12
    return (torch.where(gap > 0, square, 0.0).sum(0) + prior / 2) / (square.sum(0) + prior)


def fit_hidden(
    complete: Callable[[Tensor], Prediction], rows: ImputerRows, n: int, *, table: bool = False
) -> tuple[Deviation, Tensor | None]:
    """Fit the standard deviation of values that were hidden from the network, at several shares of hidden values.

    Args:
        complete: predicts rows with the best guess of missing values.
        rows: rows in which to hide values.
        n: maximum number of them.
        table: whether the data are a table.

    Returns:
        The standard deviation, and for a table the share of the squared deviation that lies above the guess,
        (*features).
    """
    generator = torch.Generator().manual_seed(0)
    (given, theirs), (seen, truth) = (hide(several(part, n), generator) for part in (rows.train, rows.valid))
    least = 0.0 if rows.scarce else -math.inf
    found = complete(seen)
    deviation = Deviation.fit(complete(given), theirs, found, seen, truth, least=least)
    return deviation, share_above(truth - found.x_mean) if table else None
