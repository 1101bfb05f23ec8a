"""Missing values of a table from donors, and completions that vary as much as the true values.

The donors' distributions may be too narrow, as they were fitted to the training rows. Values that were hidden in
held-out rows show at which places (ranks) true values lie in their distributions. Completions are drawn at such places
(Kuleshov et al. 2018), as far as these differ from uniform ones by more than chance. Values of a row that are missing
together are drawn one after the other, each given those before it, so that they are related like the values of donors:
on a curve, if these lie on one. If that would take too long, they are drawn together, with the copula's correlations.

Where the data end there are no similar donors, and the distributions of the others do not show it. The observed values
of a row do: if they are further from their reconstructions than those of held-out rows, its missing values are further
from their guesses, too, though not in proportion. Distributions are widened by the square root of the root mean square
of the row's residuals, in units of those of held-out rows. In addition, they extend as far as a straight line through
the table predicts (`line.py`), as a line can extrapolate. The variance of the network is not added: it is that of a
reconstruction, and many times that of a value which other columns determine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Self

import torch
from torch import Tensor

from lapae.calibrate.calibration import Calibration
from lapae.impute.donors import Donors
from lapae.impute.imputer import LINE, Imputer, ImputerRows, Kinds, Trained, columns, n_copies, of_each
from lapae.impute.line import Line, joined
from lapae.impute.spread import Spread
from lapae.networks.threads import one_thread
from lapae.predict.deviation import TINY, feature_noise
from lapae.predict.prediction import Prediction
from lapae.predict.rows import HIDE, evenly, hide, several

CHANCE = 2.0
"""Places count as non-uniform as far as their difference from uniform ones exceeds this multiple of what is expected
by chance."""
PLACES = 201
FEW, SPARSE = 300, 0.2
"""Number of known values of a column, and their share of the rows, below which its distributions are at least as wide
as its noise: few values cannot show where it is smaller."""
MOST_FEATURES = 128
"""Maximum number of features of a table that is filled in from donors: wider tables have as many parameters to learn as
values, and the network's guess is used."""
CHAINED = 400_000
"""Maximum number of donors times missing values of a row for which these are drawn one after the other."""
AS_OTHERS = 2.0
"""Weight, in values, of a prior that the observed values of a row are as far from their reconstructions as usual."""
MOST_TIMES = 1.7
"""Bound of the resulting factor, and of its inverse."""
LEAST = 0.1
"""Smallest standard deviation of a distribution, as a share of the noise of its column."""


@dataclass(frozen=True)
class NeighbourImputer(Imputer):
    """Missing values of a table from similar rows.

    Attributes:
        held: the training rows as donors: held-out rows are filled in from these.
        all: all rows as donors.
        places: quantiles of where values lie in their distributions, (D, `PLACES`).
        words: whether a feature belongs to a category or a boolean, (D,).
        noise: standard deviation of values of each column around their best guess, (D,).
        residual: mean squared residual of observed values of held-out rows that lack others, (D,).
        line: a straight line through the rows; None for imputers saved by older versions.
    """

    held: Donors
    all: Donors
    places: Tensor
    words: Tensor
    noise: Tensor
    residual: Tensor
    line: Line | None = None

    @classmethod
    @one_thread()  # many small operations
    def fit(cls, trained: Trained, rows: ImputerRows, calibration: Calibration) -> Self:
        def guess(x: Tensor) -> Tensor:
            return trained.predict(x).x_mean

        groups, words = trained.groups
        held = Donors.fit(rows.train, guess, groups.tolist())
        unseen = torch.cat([rows.valid, calibration.reference.rows])
        every = held.with_more(unseen, guess)
        generator = torch.Generator().manual_seed(0)
        n = n_copies(rows.train.shape[1], rows.train.shape[1] * sum(HIDE) / 2)
        seen, truth = hide(several(unseen, n), generator)
        places = _quantiles(held.places(seen, guess(seen), truth), (~unseen.isnan()).sum(0))
        seen, truth = hide(several(rows.valid, n), generator)
        found = _complete(held, trained.predict(seen), seen, words)
        noise = feature_noise((truth - found.x_mean).square())
        residual = (seen - found.x_mean).square().nanmean(0).nan_to_num()
        line = Line.fit(held.rows, seen)
        return cls(None, None, None, None, held, every, places, words, noise, residual, line)

    @property
    def has_shapes(self) -> bool:
        return True

    @cached_property
    def least(self) -> Tensor:
        """Smallest standard deviations of distributions, (D,)."""
        known = (~self.all.rows.isnan()).sum(0)
        few = (known < FEW) & (known < SPARSE * len(self.all.rows))
        return self.noise * torch.where(few, 1.0, LEAST)

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
        found = trained.predict(x)
        if shape and self.line is not None:
            found = found.replace(**dict(zip(LINE, self.line(x, at), strict=False)))
        if not x.isnan().any():
            return found
        donors = self.held if held else self.all
        own = None if whole is None else donors.find(whole)
        return _complete(donors, found, x, self.words, own, shape=shape, at=at)

    def spread(self, trained: Trained, found: Prediction, x: Tensor, at: Tensor | None = None) -> Spread:
        def of(values: Tensor) -> Tensor:
            return values if at is None else values.gather(1, at[:, None])

        points, missing = found.values.get("x_points"), of(x).isnan()
        shaped = torch.zeros_like(missing) if points is None else missing & ~points[..., 0].isnan()
        factor = self.farther(found, x)[:, None].expand(shaped.shape)
        own = torch.maximum(of(found.x_var).sqrt(), of_each(self.least, at))
        own = torch.where(shaped, own, of_each(self.noise, at))
        scale = torch.where(of_each(self.words, at), 1.0, own * factor)
        if points is None:
            return Spread(scale, scale)
        more = factor[shaped].clamp_min(1.0)
        points = points[shaped] * more[:, None]
        if self.line is not None:
            middle, deviation = (found.values[name] for name in LINE)
            points = joined(points, (middle - of(found.x_mean))[shaped], deviation[shaped] * more)
        return Spread(scale, scale, shaped, points)

    def beyond(self, found: Prediction, level: float) -> tuple[Tensor, Tensor] | None:
        if self.line is None:
            return None
        middle, deviation = (found.values[name] for name in LINE)
        reach = NormalDist().inv_cdf((1 + level) / 2) * deviation
        return middle - reach, middle + reach

    def farther(self, found: Prediction, x: Tensor) -> Tensor:
        """Return by what factor distributions of rows x (n, D) are wider than usual, because of the distance of their
        observed values from their reconstructions: (n,)."""
        known = ~x.isnan()
        ratio = torch.where(known, (x - found.x_mean).square() / (self.residual + TINY), 0.0)
        mean = (AS_OTHERS + ratio.double().sum(1)) / (AS_OTHERS + known.sum(1))
        return mean.pow(0.25).clamp(1 / MOST_TIMES, MOST_TIMES).to(x.dtype)

    def draw(self, trained: Trained, x: Tensor, n: int, seed: int, *, held: bool = False) -> Tensor:
        donors = self.held if held else self.all
        x = x.to(donors.rows.dtype)
        lacks = [x[:, donors.groups == column].isnan().any(1) for column in donors.groups.unique()]
        missing = torch.stack(lacks).sum(0)
        chained = (missing > 1) & (missing * donors.rows.numel() <= CHAINED)
        generator = torch.Generator().manual_seed(seed)
        out = x.expand(n, *x.shape).clone()
        rest = (~chained).nonzero()[:, 0]
        if len(rest):
            chance = self._placed(torch.special.ndtr(donors.noise(x[rest], n, generator)))
            out[:, rest] = donors.draw(x[rest], trained.predict(x[rest]).x_mean, chance)
        if chained.any():
            out[:, chained] = self._chain(trained, donors, x[chained], n, generator)
        return out

    def _chain(self, trained: Trained, donors: Donors, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """Return completions (n, N, D) of rows x (N, D) whose missing values are drawn one after the other."""
        columns = donors.groups.unique().tolist()
        out = x.expand(n, *x.shape).clone()
        chances = self._placed(torch.rand(out.shape, generator=generator, dtype=x.dtype))
        for i, (made, chance) in enumerate(zip(out, chances, strict=True)):
            first = i // 2 % len(columns)  # no column is always the first or the last
            for column in (columns[first:] + columns[:first])[:: 1 if i % 2 else -1]:
                features = (donors.groups == column).nonzero()[:, 0]
                rows = made[:, features[0]].isnan().nonzero()[:, 0]
                if len(rows):
                    at = chance[rows, features[0]]
                    now = made[rows]
                    guess = trained.predict(now).x_mean
                    made[rows[:, None], features] = donors.draw_column(now, guess, at, column, i)
        return out

    def _placed(self, chance: Tensor) -> Tensor:
        """Map uniform numbers `chance` (…, D) to places in distributions that are as frequent in held-out values."""
        index = chance * (PLACES - 1)
        low = index.floor().clamp(0, PLACES - 2)
        below, above = (self._at(low + step) for step in (0, 1))
        return torch.where(self.words, chance, below + (index - low) * (above - below))

    def _at(self, index: Tensor) -> Tensor:
        """Return the places at indices (…, D) of their quantiles."""
        flat = index.long() + torch.arange(len(self.places)) * PLACES
        return self.places.reshape(-1)[flat]


def has_donors(parts: Kinds, rows: ImputerRows) -> bool:
    """Whether there are enough rows and columns to fill in from donors, and not too many columns."""
    n_features = rows.train.shape[1]
    return int(columns(parts, n_features)[0].max()) > 0 and n_features <= MOST_FEATURES and len(rows.valid) > 0


def _complete(
    donors: Donors,
    found: Prediction,
    x: Tensor,
    words: Tensor,
    own: Tensor | None = None,
    *,
    shape: bool = False,
    at: Tensor | None = None,
) -> Prediction:
    """Return predictions of x (n, D) with the donors' medians, means and variances for missing values.

    Args:
        donors: rows to fill in from.
        found: predictions of x.
        x: NaN where missing.
        words: features of categories and booleans, (D,).
        own: donors that are these rows themselves, and give nothing to them, (n,).
        shape: whether to return quantiles of the donors' values, too.
        at: fill in only one column of each row, that of these features (n,); default: all.
    """
    given = donors.complete(x, found.x_mean, words, own, shape=shape, at=at)
    missing = x.isnan()
    more = {"x_points": given["points"]} if shape else {}
    return found.replace(
        x_mean=torch.where(missing, given["middle"], found.x_mean),
        x_average=torch.where(missing, given["mean"], found.x_mean),
        x_var=torch.where(missing, given["variance"], found.x_var),
        **more,
    )


def _quantiles(places: Tensor, count: Tensor) -> Tensor:
    """Return quantiles (D, `PLACES`) of places (n, D), NaN where there are none, of `count` (D,) rows with a value.

    Those of all features are shrunk to uniform ones, and those of each feature to those of all.
    """
    levels = torch.linspace(0, 1, PLACES, dtype=places.dtype)
    pooled = places[~places.isnan()]
    if not len(pooled):
        return levels.expand(places.shape[1], -1).contiguous()
    together = _beyond_chance(levels, torch.quantile(evenly(pooled, 100_000), levels), count.max())
    own = torch.nanquantile(places, levels, dim=0).T
    return _beyond_chance(together, torch.where(own.isnan(), together, own), count).contiguous()


def _beyond_chance(expected: Tensor, found: Tensor, count: Tensor) -> Tensor:
    """Shrink quantiles `found` (…, Q) of `count` (…) places to `expected` ones (…, Q), in the way of James and Stein.

    The mean squared error of the quantiles of uniform places is 1 / (6 count).
    """
    square = (found - expected).square().mean(-1)
    share = (1 - CHANCE / (6 * count.clamp_min(1) * square).clamp_min(1e-12)).clamp_min(0)
    return expected + share[..., None] * (found - expected)
