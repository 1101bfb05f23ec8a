"""What makes the numbers of a trained model hold on new rows, from rows that took no part in what they calibrate.

The validation set fits the models of deviation and anomaly score; the calibration rows have no part in either, so that
they are to the model what new rows are (split conformal prediction): a new row is as unusual as the share of them that
score at least as high, and an interval is as wide as it takes to hold theirs. All rows of a table are neighbours to new
ones. Each calibration row is compared with the others, as a new one is with all: it lacks one neighbour, which makes
it a little more unusual, and p-values of new rows a little larger.

A row with missing values is compared with calibration rows that lack the same values: those whose own missing values
are among them (conformal prediction with missing data augmentation, exact, of Zaffran et al. 2023). Where these are too
few, those that lack little else are compared with it one by one, as both lack what either lacks (nested, ibid.). So
missing values neither help nor hurt, provided that what is missing does not depend on the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.conformal import Radius, Rule, p_values
from lapae.predict.deviation import Deviation
from lapae.predict.prediction import Prediction, join
from lapae.predict.rows import distinct, evenly, hidden_too
from lapae.score.neighbours import places
from lapae.score.score import Score

Predict = Callable[[Tensor], Prediction]
"""Samples (B, *features) in the model's space -> their prediction, "codes" and "outputs"."""
Rank = Callable[[Tensor, Tensor | None], Tensor]
"""Rows (B, *features), and where they are among the neighbours themselves -> anomaly scores (B,) as they are ranked."""

ALIKE = 99
"""Number of calibration rows whose missing values are all missing in a new row, from which only they are compared."""
COMPARED = 200
"""Maximum number of calibration rows compared with a row with missing values: each is predicted again for it."""
DECIMALS = 6
"""Decimals of an anomaly score, beyond which sums in another order change it: rows that are equal have equal scores."""
SCARCE = 20
"""Minimum size of the validation set for standard deviations that may fall with what the model does not know."""
FEW = 500
"""Number of calibration rows from which they alone make the intervals. With fewer, standard deviations are fitted to
training rows too, and the validation set also makes intervals: it is almost as good as unseen."""
MOST_CALIBRATION_ROWS = 2000
"""Maximum number of calibration rows kept to compare with."""
SHARED = 4096
"""Number of features above which intervals share one radius."""


@dataclass(frozen=True)
class Reference:
    """Rows that new ones are compared with for p-values.

    Attributes:
        rows: calibration rows, (n, *features).
        scores: their anomaly scores, as they are ranked, (n,).
        own: where they are among the neighbours of the score, below 0 for those that are not, (n,).
    """

    rows: Tensor
    scores: Tensor
    own: Tensor

    def compare(self, rank: Rank, x: Tensor, shifts: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Compare rows x (B, *features) with the calibration rows.

        Args:
            rank: scores rows.
            x: the rows.
            shifts: (S, B), for the p-values of rows whose scores were higher by these numbers.

        Returns:
            The anomaly score (B,), made comparable where values are missing, and the conformal p-value, (B,) or (S, B),
            NaN where nothing is observed. Those of a row do not depend on the others of the call.
        """
        by = np.zeros((1, len(x))) if shifts is None else shifts
        full = self.scores.double().numpy()
        missing, own = x.isnan().flatten(1), self.rows.isnan().flatten(1)
        score, p = np.full(len(x), np.nan), np.full(by.shape, np.nan)
        for members, mask in distinct(missing):
            if mask.all():
                continue
            more = (own & ~mask).sum(1)  # values that each calibration row lacks besides
            if not mask.any() and not more.any():
                score[members] = rank(x[members], None).numpy()
                p[:, members] = p_values(score[members] + by[:, members], full)
                continue
            if int((more == 0).sum()) >= min(ALIKE, len(own) / 2):
                chosen = evenly((more == 0).nonzero()[:, 0], COMPARED)
                theirs = rank(hidden_too(self.rows[chosen], mask), self.own[chosen]).numpy()
                ours = rank(x[members], None).numpy()
                p[:, members] = p_values(ours + by[:, members], theirs)
            else:
                nearest = more.argsort(stable=True)[: max(1, min(ALIKE, len(own) // 2))]
                ours, theirs, p[:, members] = self._nested(rank, x[members], nearest, mask, by[:, members])
            score[members] = full.mean() + (full.std() + 1e-12) * (ours - theirs.mean()) / (theirs.std() + 1e-12)
        return score, p[0] if shifts is None else p

    def _nested(
        self, rank: Rank, x: Tensor, chosen: Tensor, mask: Tensor, by: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compare x (m, *features), which lack `mask` (F,), with `chosen` (n,) calibration rows, as both lack what
        either lacks.

        Returns:
            The score of x (m,), a mean over what they may lack, that of the calibration rows (n,), and p (S, m) for
            scores that are higher by `by` (S, m).
        """
        either = self.rows[chosen].isnan().flatten(1) | mask
        chosen, either = chosen[~either.all(1)], either[~either.all(1)]  # something must be left to compare
        if not len(chosen):
            return np.zeros(len(x)), np.zeros(1), np.ones(by.shape)
        rows = self.rows[chosen]
        theirs = rank(hidden_too(rows, either), self.own[chosen])
        ours = torch.stack([rank(hidden_too(row.expand_as(rows), either), None) for row in x])
        p = [(1.0 + (theirs >= ours + torch.from_numpy(one)[:, None]).sum(1)) / (len(rows) + 1.0) for one in by]
        return ours.mean(1).numpy(), theirs.numpy(), torch.stack(p).numpy()


@dataclass(frozen=True)
class Intervals:
    """Part of a calibration for prediction intervals.

    Attributes:
        radius: standard deviations that an interval reaches to either side.
        more: rows of the validation set that make intervals beside the calibration rows, (m, *features).
    """

    radius: Radius
    more: Tensor


@dataclass(frozen=True)
class Tiles:
    """Part of a calibration for p-values of whole images, if the model is one of tiles.

    Attributes:
        scores: greatest anomaly score among all tiles of each held-out image, (k,); empty for other models.
    """

    scores: Tensor

    def compare(self, scores: np.ndarray, p: np.ndarray) -> tuple[float, float]:
        """Compare an image with the held-out ones.

        Args:
            scores: anomaly scores of all its tiles, (m,).
            p: their p-values, (m,).

        Returns:
            The score of the most unusual tile and the p-value of the image. Without held-out images the latter is the
            least of the tiles times their number (Bonferroni).
        """
        most = float(scores.max())
        if len(self.scores):
            return most, float(p_values(np.array([most]), self.scores.double().numpy())[0])
        return most, min(1.0, float(p.min()) * len(p))


@dataclass(frozen=True)
class Calibration:
    """Parts fitted on held-out rows, kept with the model.

    Attributes:
        deviation: standard deviation of values that the network sees.
        score: the anomaly score.
        reference: what p-values need.
        intervals: what prediction intervals need.
        tiles: what p-values of tiled images need.
    """

    deviation: Deviation
    score: Score
    reference: Reference
    intervals: Intervals
    tiles: Tiles

    @classmethod
    def fit(
        cls,
        predict: Predict,
        train: Tensor,
        valid: Tensor,
        rows: Tensor,
        *,
        table: bool,
        learned: bool = False,
        adds_variance: bool = False,
    ) -> Calibration:
        """Fit deviation and score, and take the calibration rows in to compare with.

        Args:
            predict: the trained model.
            train: some training rows (R, *features) in the model's space, whose codes are the neighbours to look for.
            valid: validation set, to fit on; training rows serve if there is none.
            rows: calibration rows; the validation set serves if there are none.
            table: whether the data are a table.
            learned: whether the model was fitted to `valid` after all: then these make no intervals.
            adds_variance: whether the variance over networks has its natural size, see `Deviation`.
        """
        apart = len(rows) > 0 and len(valid) > 0 and not learned
        valid = valid if len(valid) else train
        rows = valid if rows is valid or not len(rows) else rows[:MOST_CALIBRATION_ROWS]
        known, found = predict(train), predict(valid)
        of_rows = found if rows is valid else predict(rows)
        few = len(rows) < FEW
        seen = torch.cat([train, valid]) if few else valid
        least = 0.0 if len(valid) < SCARCE else -math.inf
        of_seen = join([known, found]) if few else found
        deviation = Deviation.fit(known, train, of_seen, seen, seen, least=least, adds_variance=adds_variance)
        own = torch.full((len(rows),), -1)
        if table:
            parts = [train, valid] if rows is valid else [train, valid, rows]
            where = places(sum(map(len, parts))).split([len(part) for part in parts])
            every, of_every = torch.cat(parts), join([known, found, of_rows][: len(parts)])
            n_seen = len(train) + len(valid)
            score = Score.fit(every, of_every, found, valid, deviation, table=True, n_seen=n_seen, own=where[1])
            own = where[-1]
        else:
            score = Score.fit(train, known, found, valid, deviation, table=False)
        more = valid[: len(valid) if few and apart else 0]
        every = torch.cat([rows, more])
        radius = fit_radius(join([of_rows, found]) if len(more) else of_rows, every, every, deviation)
        reference = Reference(rows, ranked(score(of_rows, rows, own)), own)
        return cls(deviation, score, reference, Intervals(radius, more), Tiles(reference.scores[:0]))

    @property
    def held_out(self) -> Tensor:
        """Rows (n, *features) that make intervals: the calibration rows, and the validation set if they are few."""
        return torch.cat([self.reference.rows, self.intervals.more])

    def rank(self, predict: Predict) -> Rank:
        """Return a function that scores rows by `predict`, rounded so that equal rows tie."""
        return lambda x, own: ranked(self.score(predict(x), x, own))

    def compare(self, predict: Predict, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return anomaly scores and p-values (B,) of rows x (B, *features), see `Reference.compare`."""
        return self.reference.compare(self.rank(predict), x)

    def anew(self, predict: Predict) -> Calibration:
        """Return the calibration for another predictive: the held-out rows are predicted again."""
        every = self.held_out
        radius = fit_radius(predict(every), every, every, self.deviation)
        scores = self.rank(predict)(self.reference.rows, self.reference.own)
        return replace(
            self,
            reference=replace(self.reference, scores=scores),
            intervals=replace(self.intervals, radius=radius),
            tiles=Tiles(self.tiles.scores[:0]),
        )

    def unmet(self, rate: float, *, tiles: bool = False) -> str:
        """Say why a false alarm rate cannot be met (`Rule.unmet`), for whole images of a model of `tiles`."""
        rows, images = (Rule(rate, held.double().numpy()) for held in (self.reference.scores, self.tiles.scores))
        if not tiles or images.n:
            return images.unmet("images") if tiles else rows.unmet("rows", MOST_CALIBRATION_ROWS)
        few = f"no whole images to compare with, {rows.n} held-out tiles: at a false alarm rate of {rate:g} an image"
        return f"{few} of more than {rows.rank} tiles cannot be flagged. Train on more images, with this predictive"


def fit_radius(
    found: Prediction,
    seen: Tensor,
    truth: Tensor,
    deviation: Deviation,
    *,
    rows: np.ndarray | None = None,
    shared: bool = False,
) -> Radius:
    """Fit the radius of intervals.

    Args:
        found: predictions of `seen`.
        seen: held-out rows (n, *features) as the network saw them.
        truth: their values, NaN where they do not count.
        deviation: the standard deviation of values.
        rows: (n,) which row each of `seen` was made from, as in `Radius.fit`.
        shared: one radius for all features, as it always is for very many.
    """
    ratio = (truth - found.x_mean).abs() / deviation(found, seen)
    return Radius.fit(ratio.numpy(), rows=rows, shared=shared or ratio[0].numel() > SHARED)


def ranked(scores: Tensor) -> Tensor:
    """Round anomaly scores (B,) for ranking, so that equal rows tie."""
    return scores.double().round(decimals=DECIMALS)
