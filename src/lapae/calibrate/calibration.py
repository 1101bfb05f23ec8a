"""What makes the numbers of a trained model hold on new rows, from rows that took no part in what they calibrate.

The validation set fits the models of deviation and surprise; the calibration rows have no part in either, so that they
are to the model what new rows are (split conformal prediction): a new row is as unusual as the share of them that are
at least as surprising, and an interval is as wide as it takes to hold theirs. All rows of a table are neighbours to new
ones. Each calibration row is compared with the others, as a new one is with all: it lacks one neighbour, which makes
it a little more unusual, and p-values of new rows a little larger.

A row with missing values is compared with calibration rows that lack the same values: those whose own missing values
are among them (conformal prediction with missing data augmentation, exact, of Zaffran et al. 2023). Where these are too
few, those that lack little else are compared with it one by one, as both lack what either lacks (nested, ibid.). So
missing values neither help nor hurt, provided that what is missing does not depend on the values.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.conformal import LEVELS, Radius, Rule, p_values
from lapae.calibrate.patterns import copies, distinct, evenly, hide, several
from lapae.predict.deviation import Spread, fit_spread
from lapae.predict.prediction import Prediction, join, tensors, under
from lapae.score.neighbours import places
from lapae.score.score import Surprise, fit_surprise, from_tensors, to_tensors
from lapae.space import Column

Predict = Callable[[Tensor], Prediction]
"""Data (B, *features) in the model's space -> their prediction, "codes" and "outputs"."""

COPIES = 2000
"""Data to hide values of in a table; fewer are hidden several times over."""
ITERATED = 32
"""Data of other kinds to hide values of: to fill these in takes many passes, and each has many values."""
ALIKE = 99
"""Calibration rows that lack nothing but what a new row lacks, from which on they alone are compared with it."""
COMPARED = 200
"""Calibration rows that a row with missing values is compared with, at most: each is predicted anew for it."""
DECIMALS = 6
"""Of a surprise, which sums in another order change beyond: rows that are equal have equal surprise."""
SCARCE = 20
"""Data that steered training, at least, for deviations that may fall with what the model calls ignorance."""
FEW = 500
"""Data to compare with, from which on they alone make the intervals. Where there are fewer, deviations are fitted to
training data too, and the data that steered training also make intervals: they are almost as good as unseen."""
MOST_ROWS = 2000
"""Held-out data kept to compare with."""
MOST_COLUMNS = 64
"""Columns that `explain` hides one by one; of more, the parts of the surprise alone speak."""
SHARED = 4096
"""Features above which intervals share one radius."""
SAVED = ("rows", "more", "reference", "own", "known", "seen", "images")
"""Tensors of a calibration to save, besides those of its parts."""


@dataclass(frozen=True)
class Calibration:
    """Fitted on held-out data, kept with the model."""

    spread: Spread
    """Of values that the network sees."""
    surprise: Surprise
    radius: Radius
    rows: Tensor
    """(n, *features): the held-out data to compare with."""
    more: Tensor
    """(m, *features): others that intervals are made from too."""
    reference: Tensor
    """(n,): the surprise of `rows`."""
    own: Tensor
    """(n,): where `rows` are in the banks of the surprise, below 0 for those that are not."""
    known: Tensor
    seen: Tensor
    """Some training data, and some to hide values of, for `with_hidden`."""
    scarce: bool
    """Whether these are too few for deviations that fall with what the model calls ignorance."""
    images: Tensor
    """(k,): the greatest surprise among all tiles of held-out images, of a model of tiles; empty else."""
    hidden: Spread | None = None
    """Of values that are missing: learned when the first are to be filled in."""
    few: Mapping[int, Radius] = field(default_factory=dict)
    """Radii of the intervals of missing values of a table, by how many its row lacks, as a power of two: learned when
    the first are asked for."""

    def with_hidden(self, complete: Predict) -> Calibration:
        """With the deviation of values that are missing, which `complete` fills in."""
        table, least = self.surprise.bank is not None, 0.0 if self.scarce else -math.inf
        return replace(self, hidden=fit_hidden(complete, self.known, self.seen, table=table, least=least))

    def rank(self, predict: Predict, x: Tensor, own: Tensor | None = None) -> Tensor:
        """Return the surprise (B,) of x (B, *features) as it is ranked, in 64 bits; `own` as in `Bank.measure`."""
        return ranked(self.surprise(predict(x), x, own))

    def compare(self, predict: Predict, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Compare rows x (B, *features) with the calibration rows.

        Returns:
            The surprise, made comparable where values are missing, and the conformal p-value: (B,) each, NaN where
            nothing is observed. Those of a row do not depend on the others of the call.
        """
        full = self.reference.double().numpy()
        missing, own = x.isnan().flatten(1), self.rows.isnan().flatten(1)
        surprise, p = np.full((2, len(x)), np.nan)
        for members, mask in distinct(missing):
            if mask.all():
                continue
            more = (own & ~mask).sum(1)  # values that each calibration row lacks besides
            if not mask.any() and not more.any():
                surprise[members] = self.rank(predict, x[members]).numpy()
                p[members] = p_values(surprise[members], full)
                continue
            if int((more == 0).sum()) >= min(ALIKE, len(own) / 2):
                chosen = evenly((more == 0).nonzero()[:, 0], COMPARED)
                theirs = self.rank(predict, hidden_too(self.rows[chosen], mask), self.own[chosen]).numpy()
                ours = self.rank(predict, x[members]).numpy()
                p[members] = p_values(ours, theirs)
            else:
                nearest = more.argsort(stable=True)[: max(1, min(ALIKE, len(own) // 2))]
                ours, theirs, p[members] = self._nested(predict, x[members], nearest, mask)
            surprise[members] = full.mean() + (full.std() + 1e-12) * (ours - theirs.mean()) / (theirs.std() + 1e-12)
        return surprise, p

    def _nested(
        self, predict: Predict, x: Tensor, chosen: Tensor, mask: Tensor
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compare x (m, *features), which lack `mask` (F,), with `chosen` (n,) calibration rows, as both lack what
        either lacks.

        Returns:
            The surprise of x (m,), a mean over what they may lack, that of the calibration rows (n,), and p (m,).
        """
        either = self.rows[chosen].isnan().flatten(1) | mask
        chosen, either = chosen[~either.all(1)], either[~either.all(1)]  # something must be left to compare
        if not len(chosen):
            return np.zeros(len(x)), np.zeros(1), np.ones(len(x))
        rows = self.rows[chosen]
        theirs = self.rank(predict, hidden_too(rows, either), self.own[chosen])
        ours = torch.stack([self.rank(predict, hidden_too(row.expand_as(rows), either)) for row in x])
        p = (1.0 + (theirs >= ours).sum(1)) / (len(rows) + 1.0)
        return ours.mean(1).numpy(), theirs.numpy(), p.numpy()

    def explain(self, predict: Predict, x: Tensor, hides: bool, columns: Sequence[Column] | None = None) -> Tensor:
        """Contribution (B, *features) of each value to the surprise of x, at least 0.

        Args:
            predict: the model.
            x: the data.
            hides: whether the model takes missing values of a table. Half of the surprise then goes to the columns as
                it falls without them: a value may fit each of the others, and not all.
            columns: of a table; one for each feature where not given.
        """
        found = predict(x)
        parts = self.surprise.explain(found, x)
        widths = [1] * parts[0].numel() if columns is None else [column.width for column in columns]
        if not hides or not 1 < len(widths) <= MOST_COLUMNS:
            return parts
        whole, falls = self.surprise(found, x), torch.zeros_like(x)
        ends = np.cumsum([0, *widths])
        for start, stop in itertools.pairwise(ends):
            without = x.clone()
            without[:, start:stop] = torch.nan
            fall = (whole - self.surprise(predict(without), without)).nan_to_num().clamp_min(0)
            falls[:, start:stop] = fall[:, None] / (stop - start)
        total = falls.sum(1, keepdim=True)
        shared = parts.nan_to_num().sum(1, keepdim=True) * falls / total.clamp_min(1e-12)
        return torch.where(total > 0, (parts + shared) / 2, parts)

    def held(self, n: int) -> tuple[Tensor, Tensor]:
        """Return n held-out rows (n, *features) to hide values of, and which row each is; few come several times."""
        rows = torch.cat([self.rows, self.more])
        chosen = copies(len(rows), n)
        return rows[chosen], chosen

    def hidden_radius(self, complete: Predict, mask: Tensor, *, shared: bool = False) -> Radius:
        """Fit the radius of intervals for missing values.

        Args:
            complete: fills in what is missing.
            mask: (n, *features), what to hide of each of the rows `held(n)`.
            shared: one radius for all features.
        """
        rows, chosen = self.held(len(mask))
        seen = torch.where(mask, torch.nan, rows)
        assert self.hidden is not None
        truth = torch.where(mask, rows, torch.nan)
        return radius_of(complete(seen), seen, truth, self.hidden, rows=chosen.numpy(), shared=shared)

    def anew(self, predict: Predict) -> Calibration:
        """The same for another way to predict: the held-out data are predicted in that way too."""
        every = torch.cat([self.rows, self.more])
        radius = radius_of(predict(every), every, every, self.spread)
        reference = self.rank(predict, self.rows, self.own)
        return replace(self, radius=radius, reference=reference, images=self.images[:0], few={})

    def of_image(self, surprise: np.ndarray, p: np.ndarray) -> tuple[float, float]:
        """Surprise and p-value of an image, from those of all its tiles (m,): that of the most unusual tile, compared
        with those of held-out images; without these, its p-value times the number of tiles (Bonferroni)."""
        most = float(surprise.max())
        if len(self.images):
            return most, float(p_values(np.array([most]), self.images.double().numpy())[0])
        return most, min(1.0, float(p.min()) * len(p))

    def unmet(self, rate: float, *, tiles: bool = False) -> str:
        """Why a false alarm rate cannot be met (`Rule.unmet`), for whole images of a model of `tiles`."""
        rows, images = (Rule(rate, held.double().numpy()) for held in (self.reference, self.images))
        if not tiles or images.n:
            return images.unmet("images") if tiles else rows.unmet("rows", MOST_ROWS)
        few = f"no whole images to compare with, {rows.n} held-out tiles: at a false alarm rate of {rate:g} an image"
        return f"{few} of more than {rows.rank} tiles cannot be flagged. Train on more images, with this predictive"


def calibrate(
    predict: Predict,
    train: Tensor,
    valid: Tensor,
    rows: Tensor,
    *,
    table: bool,
    learned: bool = False,
    keep: bool = True,
) -> Calibration:
    """Fit deviations and surprise, and take the held-out data in to compare with.

    Args:
        predict: the trained model.
        train: some training data (R, *features) in the model's space, whose codes are the neighbours to look for.
        valid: data that training has not seen to fit on; training data serve where there are none.
        rows: other such data to compare with; those of `valid` serve where there are none.
        table: whether the data are a table.
        learned: whether the model was fitted to `valid` after all: then these make no intervals.
        keep: whether data are kept for `Calibration.with_hidden`.
    """
    steered = len(rows) > 0 and len(valid) > 0 and not learned
    valid = valid if len(valid) else train
    rows = valid if rows is valid or not len(rows) else rows[:MOST_ROWS]
    known, found = predict(train), predict(valid)
    of_rows = found if rows is valid else predict(rows)
    both = torch.cat([train, valid])
    joined = join([known, found])
    few = len(rows) < FEW
    seen, of_seen = (both, joined) if few else (valid, found)
    scarce = len(valid) < SCARCE
    spread = fit_spread(known, train, of_seen, seen, seen, least=0.0 if scarce else -math.inf)
    own = torch.full((len(rows),), -1)
    if table:
        parts = [train, valid] if rows is valid else [train, valid, rows]
        where = places(sum(map(len, parts))).split([len(part) for part in parts])
        every, of_every = torch.cat(parts), join([known, found, of_rows][: len(parts)])
        how: dict[str, Any] = {"table": True, "n_seen": len(both), "own": where[1]}
        surprise = fit_surprise(every, of_every, found, valid, spread, **how)
        own = where[-1]
    else:
        surprise = fit_surprise(train, known, found, valid, spread, table=False)
    more = valid[: len(valid) if few and steered else 0]
    every = torch.cat([rows, more])
    found = join([of_rows, found]) if len(more) else of_rows
    radius = radius_of(found, every, every, spread)
    reference = ranked(surprise(of_rows, rows, own))
    n = (COPIES if table else ITERATED) if keep else 0
    return Calibration(
        spread,
        surprise,
        radius,
        rows=rows,
        more=more,
        reference=reference,
        own=own,
        known=evenly(train, n),
        seen=evenly(seen, n),
        scarce=scarce,
        images=reference[:0],
    )


def radius_of(
    found: Prediction,
    seen: Tensor,
    truth: Tensor,
    spread: Spread,
    *,
    rows: np.ndarray | None = None,
    shared: bool = False,
) -> Radius:
    """Fit the radius of intervals.

    Args:
        found: predictions of `seen`.
        seen: held-out rows (n, *features) as the network saw them.
        truth: their values, NaN where they do not count.
        spread: the deviation of values.
        rows: (n,) which row each of `seen` was made from, as in `Radius.of`.
        shared: one radius for all features, as it always is for very many.
    """
    ratio = (truth - found.x_mean).abs() / spread.deviation(found, seen)
    return Radius.of(ratio.numpy(), rows=rows, shared=shared or ratio[0].numel() > SHARED)


def ranked(surprise: Tensor) -> Tensor:
    """Return a surprise (B,) as it is ranked: rounded, so that rows that are equal tie."""
    return surprise.double().round(decimals=DECIMALS)


def hidden_too(rows: Tensor, mask: Tensor) -> Tensor:
    """Return `rows` (n, *features) without the values in `mask` (F,) or (n, F)."""
    return rows.flatten(1).masked_fill(mask, torch.nan).reshape(rows.shape)


def fit_hidden(complete: Predict, train: Tensor, valid: Tensor, *, table: bool, least: float = -math.inf) -> Spread:
    """The deviation of values that were hidden from the network, at several shares of hidden values."""
    generator = torch.Generator().manual_seed(0)
    n = COPIES if table else ITERATED
    (_, rows), (seen, truth) = pairs = hide(several(train, n), generator), hide(several(valid, n), generator)
    known, found = (complete(pair[0]) for pair in pairs)
    return fit_spread(known, rows, found, seen, truth, least=least)


def to_file(calibration: Calibration) -> dict[str, Tensor]:
    """The tensors to save."""
    out = {f"spread.{name}": value for name, value in tensors(calibration.spread).items()}
    out |= {f"surprise.{name}": value for name, value in to_tensors(calibration.surprise).items()}
    out |= {name: getattr(calibration, name) for name in SAVED}
    out["scarce"] = torch.tensor(float(calibration.scarce))
    return out | {"radius": torch.from_numpy(calibration.radius.table)}


def from_file(saved: dict[str, Tensor]) -> Calibration:
    """Inverse of `to_file`; a KeyError or TypeError where they are not those of a calibration."""
    spread = Spread(**under("spread", saved))
    radius = Radius(LEVELS, saved["radius"].numpy())
    saved = {"images": saved["reference"][:0], **saved, "own": saved["own"].long()}
    if "shift" in saved and saved["shift"].numel():
        warnings.warn(
            "this run was calibrated by lapae 0.2 on rows that its principal components had seen: its p-values may not "
            "hold for new rows. Train it again",
            stacklevel=2,
        )
    held: dict[str, Any] = {name: saved[name] for name in SAVED}
    surprise = from_tensors(spread, under("surprise", saved))
    return Calibration(spread, surprise, radius, scarce=bool(saved["scarce"]), **held)
