"""What makes the numbers of a trained model hold on new data, from data that training has not seen.

The data that steered training (`valid`) fit the models of deviation and surprise; other held-out data (`rows`)
calibrate them by comparison: a new datum is as unusual as the share of these that are at least as surprising, and an
interval is as wide as it takes to hold theirs. A datum with missing values is compared with the same data lacking the
same values, so that missing values neither help nor hurt.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.predict.conformal import LEVELS, Radius, p_values, threshold
from lapae.predict.holes import evenly, hide, patterns, several
from lapae.predict.neighbours import places
from lapae.predict.prediction import Prediction, join, tensors, under
from lapae.predict.spread import Spread, fit_spread
from lapae.predict.surprise import Surprise, fit_surprise, from_tensors, to_tensors
from lapae.space import Column

Predict = Callable[[Tensor], Prediction]
"""Data (B, *features) in the model's space -> their prediction, "codes" and "outputs"."""

COPIES = 2000
"""Data to hide values of in a table; fewer are hidden several times over."""
ITERATED = 32
"""Data of other kinds to hide values of: to fill these in takes many passes, and each has many values."""
COMPARED = 128
"""The same, to compare with."""
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
SAVED = ("rows", "more", "reference", "own", "known", "seen", "shift", "images")
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
    """(n,): where `rows` are in the banks of the surprise: each is compared with the others."""
    known: Tensor
    seen: Tensor
    """Some training data, and some to hide values of, for `with_hidden`."""
    scarce: bool
    """Whether these are too few for deviations that fall with what the model calls ignorance."""
    shift: Tensor
    """What to add to predictions of `rows` and `more` where the model has seen them; empty where it has not."""
    images: Tensor
    """(k,): the greatest surprise among all tiles of held-out images, of a model of tiles; empty else."""
    hidden: Spread | None = None
    """Of values that are missing: learned when the first are to be filled in."""
    few: Mapping[int, Radius] = field(default_factory=dict)
    """Of the intervals of rows of a table that lack so many values: learned when the first are asked for."""

    def unseen(self, predict: Predict, x: Tensor) -> Prediction:
        """Predictions of x, the first of `rows` and `more`, maybe with holes, as of data that were not seen."""
        found = predict(x)
        if not len(self.shift) or found.x_mean is None:
            return found
        return replace(found, x_mean=found.x_mean + self.shift[: len(x)])

    def with_hidden(self, complete: Predict) -> Calibration:
        """With the deviation of values that are missing, which `complete` fills in."""
        table, least = self.surprise.bank is not None, 0.0 if self.scarce else -math.inf
        return replace(self, hidden=fit_hidden(complete, self.known, self.seen, table=table, least=least))

    def compare(self, predict: Predict, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Surprise (B,), made comparable where values are missing, and conformal p-value (B,) of x (B, *features).

        Both are NaN where nothing is observed.
        """
        surprise = self.surprise(predict(x), x).double().numpy().copy()
        full = self.reference.double().numpy()
        missing = x.isnan().flatten(1).numpy()
        p = p_values(surprise, full)
        if not missing.any():
            return surprise, p
        middle, width = full.mean(), full.std() + 1e-12
        for members, masks in patterns(missing):
            if not masks.any() or masks.all():
                continue
            same = self.rows.clone()
            turns = np.resize(np.arange(len(masks)), len(same))
            same.flatten(1)[torch.from_numpy(masks[turns])] = torch.nan
            theirs = self.surprise(self.unseen(predict, same), same, self.own).double().numpy()
            p[members] = p_values(surprise[members], theirs)
            shift = (surprise[members] - np.nanmean(theirs)) / (np.nanstd(theirs) + 1e-12)
            surprise[members] = middle + width * shift
        empty = missing.all(1)
        surprise[empty] = p[empty] = np.nan
        return surprise, p

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

    def hidden_radius(self, complete: Predict, missing: Tensor) -> Radius:
        """The radius of intervals for values missing as in `missing` (B, *features): the held-out data are given such
        holes, and `complete` fills them in."""
        masks = missing[missing.flatten(1).any(1)]
        rows = several(torch.cat([self.rows, self.more]), COPIES if self.surprise.bank is not None else COMPARED)
        mask = masks[torch.from_numpy(np.resize(np.random.default_rng(0).permutation(len(masks)), len(rows)))]
        seen = torch.where(mask, torch.nan, rows)
        assert self.hidden is not None
        return radius_of(complete(seen), seen, torch.where(mask, rows, torch.nan), self.hidden)

    def anew(self, predict: Predict) -> Calibration:
        """The same for another way to predict: the held-out data are predicted in that way too."""
        every = torch.cat([self.rows, self.more])
        radius = radius_of(self.unseen(predict, every), every, every, self.spread)
        reference = self.surprise(self.unseen(predict, self.rows), self.rows, self.own)
        return replace(self, radius=radius, reference=reference, images=self.images[:0], few={})

    def of_image(self, surprise: np.ndarray, p: np.ndarray) -> tuple[float, float]:
        """Surprise and p-value of an image, from those of all its tiles (m,): that of the most unusual tile, compared
        with those of held-out images; without these, its p-value times the number of tiles (Bonferroni)."""
        most = float(surprise.max())
        if len(self.images):
            return most, float(p_values(np.array([most]), self.images.double().numpy())[0])
        return most, min(1.0, float(p.min()) * len(p))

    def flagged(self, surprise: np.ndarray, p: np.ndarray, rate: float, *, images: bool = False) -> np.ndarray:
        """Which data, or whole images of a model of tiles, are flagged so that new normal ones are at `rate`."""
        held = self.images if images else self.reference
        return surprise > threshold(held.double().numpy(), rate) if len(held) else p <= rate


def calibrate(
    predict: Predict,
    train: Tensor,
    valid: Tensor,
    rows: Tensor,
    *,
    table: bool,
    learned: bool = False,
    trained: bool = True,
    keep: bool = True,
    others: Predict | None = None,
) -> Calibration:
    """Fit deviations and surprise, and take the held-out data in to compare with.

    Args:
        predict: the trained model.
        train: some training data (R, *features) in the model's space, whose codes are the neighbours to look for.
        valid: data that training has not seen to fit on; training data serve where there are none.
        rows: other such data to compare with; those of `valid` serve where there are none.
        table: whether the data are a table.
        learned: whether the model was fitted to `valid` after all: then these make no intervals.
        trained: whether the network has learned data of this kind, or others only.
        keep: whether data are kept for `Calibration.with_hidden`.
        others: predicts each of these data by a model of the others, where the trained one has seen them.
    """
    model, predict = predict, others or predict
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
    surprise, own = _surprise(train, valid, rows, (known, found, of_rows), spread, table=table, trained=trained)
    more = valid[: len(valid) if few and steered else 0]
    every = torch.cat([rows, more])
    found = join([of_rows, found]) if len(more) else of_rows
    radius = radius_of(found, every, every, spread)
    shift = every[:0]
    if others is not None:
        shift = found.x_mean - model(every).x_mean
    reference, n = surprise(of_rows, rows, own), (COPIES if table else ITERATED) if keep else 0
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
        shift=shift,
        images=reference[:0],
    )


def _surprise(
    train: Tensor,
    valid: Tensor,
    rows: Tensor,
    found: tuple[Prediction, Prediction, Prediction],
    spread: Spread,
    *,
    table: bool,
    trained: bool,
) -> tuple[Surprise, Tensor]:
    """The surprise, and where `rows` are in its banks. `found`: predictions of the three.

    All rows of a table are neighbours to new ones. Those to compare with are each compared with the others, as a new
    one is compared with all: they lack one neighbour of thousands.
    """
    if not table:
        nowhere = torch.full((len(rows),), -1)
        return fit_surprise(train, found[0], found[1], valid, spread, table=False, trained=trained), nowhere
    parts = [train, valid] if rows is valid else [train, valid, rows]
    where = places(sum(map(len, parts))).split([len(part) for part in parts])
    of_bank = join(list(found[: len(parts)]))
    how = {"table": True, "trained": trained, "n_seen": len(train) + len(valid), "own": where[1]}
    return fit_surprise(torch.cat(parts), of_bank, found[1], valid, spread, **how), where[-1]


def radius_of(found: Prediction, seen: Tensor, truth: Tensor, spread: Spread) -> Radius:
    """From held-out data as the network saw them, and their values, NaN where they do not count."""
    ratio = (truth - found.x_mean).abs() / spread.deviation(found, seen)
    return Radius.of(ratio.numpy(), shared=ratio[0].numel() > SHARED)


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
    held: dict[str, Any] = {name: saved[name] for name in SAVED}
    surprise = from_tensors(spread, under("surprise", saved))
    return Calibration(spread, surprise, radius, scarce=bool(saved["scarce"]), **held)
