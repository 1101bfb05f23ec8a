"""Calibration of a trained model, by rows that were not used for anything that they calibrate.

The models of deviation and anomaly score are fitted to the validation set. The calibration rows are used for neither,
so for the model they are like new rows (split conformal prediction): the p-value of a new row is the share of them with
a score at least as high, and an interval is as wide as is needed to contain theirs. All rows of a table are neighbours
of new ones. A new row is compared with all calibration rows, but each of these only with the others: it has one
neighbour less, which makes it slightly more unusual, and p-values of new rows slightly larger.

A row with missing values is compared with calibration rows in which the same values are hidden: those whose own missing
values are among them (conformal prediction with missing data augmentation, exact, of Zaffran et al. 2023). If there are
too few of these, it is compared with those that lack the fewest other values, by its mean score with these hidden in
turn. (The nested method of that paper, pair by pair, cannot see an odd value in any pair whose calibration row lacks
this value: with 30 % missing nothing could be flagged at 5 %.) Such a mean varies less than a single score, so p-values
are slightly too large. Missing values therefore neither help nor hurt, provided that what is missing does not depend on
the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.conformal import Radius, Rule, independent, p_values, widened
from lapae.data.copies import copied
from lapae.predict.deviation import Deviation
from lapae.predict.prediction import Prediction, join
from lapae.predict.rows import distinct, evenly, hidden_too
from lapae.score.neighbours import places
from lapae.score.score import Score
from lapae.score.unseen import Unseen

Predict = Callable[[Tensor], Prediction]
"""Samples (B, *features) in the model's space -> their prediction, "codes" and "outputs"."""
Rank = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
"""Rows (B, *features), where they are among the neighbours themselves, and surprises (B, C) of levels that no row has
had -> anomaly scores (B,) as they are ranked."""

Part = tuple[Tensor, Tensor | None, Tensor | None]
"""What `Rank` takes."""

ALIKE = 99
"""Number of calibration rows that lack nothing but what a new row lacks, from which only they are compared with it;
else as many that lack the least besides."""
MASKS = 16
"""Maximum number of patterns of missing values hidden in turn from a row that lacks less than calibration rows do."""
COMPARED = 200
"""Maximum number of calibration rows compared with a row with missing values: each is predicted again for it."""
AT_ONCE = 2048
"""Rows of several patterns of missing values that are scored together, about."""
DECIMALS = 6
"""Decimals of an anomaly score, beyond which sums in another order change it: rows that are equal have equal scores."""
ROUNDING = 1e-5
"""Part of a standard deviation by which intervals reach further: the model computes in 32 bits, and some tables (one
column, copies of columns) it learns exactly."""
SCARCE = 20
"""Minimum size of the validation set for standard deviations that may fall with what the model does not know."""
LEAST_SPREAD, LEAST_OF_TABLE = 5, 200
"""Minimum size of the validation set for a score fitted to it alone; with fewer, training rows serve too. One or two
rows have no spread. That of the parts of a table's score is a matter of chance with a few dozen, and on training rows,
each compared with the others, these parts are almost what they are on new rows."""
FEW = 500
"""Number of calibration rows from which they alone make the intervals. With fewer, standard deviations are fitted to
training rows too, and the validation set also makes intervals: it is almost as good as unseen."""
MOST_CALIBRATION_ROWS = 2000
"""Maximum number of calibration rows kept to compare with."""
SHARED = 4096
"""Number of features above which intervals share one radius."""


@dataclass(frozen=True)
class Reference:
    """Rows with which new ones are compared for p-values.

    Attributes:
        rows: calibration rows, (n, *features).
        scores: their anomaly scores, as they are ranked, (n,).
        own: their positions among the neighbours of the score, below 0 for those that are not among them, (n,).
        surprises: surprises of their levels that no other row has, (n, C), see `Unseen`; None if these count as
            missing.
        independent: share of them that are independent, (), if they are windows of a series: `scores` then have the
            tail of `widened`.
        plain: their scores without this tail, (n,); None if there is no tail.
    """

    rows: Tensor
    scores: Tensor
    own: Tensor
    surprises: Tensor | None = None
    independent: Tensor | None = None
    plain: Tensor | None = None

    def with_scores(self, scores: Tensor) -> Reference:
        """Return the calibration rows with these anomaly scores (n,)."""
        return replace(self, scores=self.with_tail(scores), plain=None if self.independent is None else scores)

    def with_tail(self, scores: Tensor) -> Tensor:
        """Return the scores (n,) of calibration rows with which those of new rows are compared."""
        if self.independent is None or not len(scores):
            return scores
        n = len(scores) * float(self.independent)
        return ranked(torch.from_numpy(widened(scores.double().numpy(), n)))

    def compare(
        self,
        rank: Rank,
        x: Tensor,
        shifts: tuple[np.ndarray, np.ndarray] | None = None,
        surprises: Tensor | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compare rows x (B, *features) with the calibration rows.

        Args:
            rank: scores rows.
            x: the rows.
            shifts: (S, B) and (S, n), for the p-values if the scores of these rows and of the calibration rows were
                higher by these numbers.
            surprises: (B, C), surprises of levels of the rows that are not in the training data.

        Returns:
            The anomaly score (B,), made comparable if values are missing, and the conformal p-value, (B,) or (S, B),
            NaN where nothing is observed. The results for a row do not depend on the others of the call.
        """
        by, their = (np.zeros((1, len(x))), np.zeros((1, len(self.rows)))) if shifts is None else shifts
        full = self.scores.double().numpy()
        score, p = np.full(len(x), np.nan), np.full(by.shape, np.nan)
        patterns = [(members, mask) for members, mask in distinct(x.isnan().flatten(1)) if not mask.all()]
        alike = [self.alike(mask) for _, mask in patterns]

        def parts() -> Iterator[Part]:
            for (members, mask), (chosen, masks, _) in zip(patterns, alike, strict=True):
                yield from hidden_in_turn(x[members], masks, _some(surprises, members))
                if mask.any() and len(chosen):
                    hidden = hidden_too(self.rows[chosen], mask)
                    yield hidden, self.own[chosen], _some(self.surprises, chosen)

        scores = in_blocks(rank, parts())
        for (members, mask), (chosen, _, weights) in zip(patterns, alike, strict=True):
            ours = mean_score(scores, weights).numpy()
            theirs = self.with_tail(next(scores)).numpy() if mask.any() and len(chosen) else full[chosen]
            for row, of_ours, of_theirs in zip(p, by[:, members], their[:, chosen], strict=True):
                row[members] = p_values(ours + of_ours, theirs + of_theirs)
            score[members] = comparable(ours, theirs, full)
        return score, p[0] if shifts is None else p

    def alike(self, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Choose the calibration rows with which rows that lack `mask` (F,) are compared.

        Returns:
            Which calibration rows, (n,); what to hide in turn from the new rows, so that they lack what these lack,
            (k, F), and its weights, (k,), adding up to 1.
        """
        own = self.rows.isnan().flatten(1)
        more = (own & ~mask).sum(1)  # values that each calibration row lacks besides
        chosen = (more == 0).nonzero()[:, 0]
        if more.any() and len(chosen) < ALIKE:
            chosen = more.argsort(stable=True)[:ALIKE]
            chosen = chosen[~(own[chosen] | mask).all(1)]  # something must be left to compare
        elif mask.any():
            chosen = evenly(chosen, COMPARED)
        hidden = evenly(own[chosen] | mask, MASKS) if len(chosen) else mask[None]
        masks, counts = hidden.unique(dim=0, return_counts=True)
        return chosen, masks, counts.double() / counts.sum()


def _some(surprises: Tensor | None, index: Any) -> Tensor | None:
    return None if surprises is None else surprises[index]


def hidden_in_turn(x: Tensor, masks: Tensor, surprises: Tensor | None = None) -> Iterator[Part]:
    """Yield rows x (B, *features) with surprises (B, C), with each of `masks` (k, F) hidden in turn."""
    for mask in masks:
        yield hidden_too(x, mask), None, surprises


def in_blocks(rank: Rank, parts: Iterable[Part]) -> Iterator[Tensor]:
    """Yield the scores of parts; several are scored together, because most patterns have few rows."""
    waiting: list[Part] = []
    for part in parts:
        if waiting and sum(len(x) for x, _, _ in waiting) + len(part[0]) > AT_ONCE:
            yield from _scored(rank, waiting)
            waiting = []
        waiting.append(part)
    yield from _scored(rank, waiting)


def _scored(rank: Rank, parts: Sequence[Part]) -> Iterator[Tensor]:
    if len(parts) < 2:
        yield from (rank(*part) for part in parts)
        return
    rows = torch.cat([x for x, _, _ in parts])
    own = torch.cat([torch.full((len(x),), -1) if own is None else own for x, own, _ in parts])
    lacking = next((more.new_zeros(1, more.shape[1]) for _, _, more in parts if more is not None), None)
    more = None
    if lacking is not None:
        more = torch.cat([lacking.expand(len(x), -1) if more is None else more for x, _, more in parts])
    yield from rank(rows, own, more).split([len(x) for x, _, _ in parts])


def mean_score(scores: Iterator[Tensor], weights: Tensor) -> Tensor:
    """Return the mean by `weights` (k,) of the next k of some scores, (B,) each."""
    mean = torch.zeros((), dtype=torch.float64)
    for weight, found in zip(weights, scores, strict=False):
        mean = mean + weight * found
    return ranked(mean)


def comparable(ours: Any, theirs: Any, full: Any) -> Any:
    """Return scores of new rows, which are compared with scores `theirs`, on the scale of those of all, `full`."""
    if not len(theirs) or (len(theirs) == len(full) and (theirs == full).all()):
        return ours
    return full.mean() + (full.std() + 1e-12) * (ours - theirs.mean()) / (theirs.std() + 1e-12)


@dataclass(frozen=True)
class Intervals:
    """Part of a calibration for prediction intervals.

    Attributes:
        radius: standard deviations that an interval reaches to either side.
        more: rows of the validation set that are also used for intervals, (m, *features).
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
        unseen: what levels that are not in the training data add to scores; None if they count as missing.
    """

    deviation: Deviation
    score: Score
    reference: Reference
    intervals: Intervals
    tiles: Tiles
    unseen: Unseen | None = None

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
        means: Predict | None = None,
        judged: Tensor | None = None,
        apart: int | None = None,
        maps: bool = False,
        unseen: Unseen | None = None,
        surprises: Tensor | None = None,
    ) -> Calibration:
        """Fit deviation and score, and store the calibration rows for comparison.

        Args:
            predict: the trained model.
            train: some training rows (R, *features) in the model's space, whose codes are the neighbours to look for.
            valid: validation set, to fit on; training rows serve if there is none.
            rows: calibration rows; the validation set serves if there are none.
            table: whether the data are a table.
            learned: whether the model was fitted to `valid` as well; then these are not used for intervals.
            adds_variance: whether the variance over networks has its natural size, see `Deviation`.
            means: predicts only "means", for rows whose variances are not used; default: `predict`.
            judged: channels of a series to judge, see `Score`.
            apart: how many of `train` lie between two windows of a series that share no step, see `Score.fit`.
            maps: whether the data are feature maps; then all are used for calibration, each scored as if it were left
                out.
            unseen: what levels that no row has had add to scores.
            surprises: surprises of levels of `rows` (of `valid` if there are none) that no other row has, (n, C).
        """
        unused = len(rows) > 0 and len(valid) > 0 and not learned
        valid = valid if len(valid) else train
        rows = valid if rows is valid or not len(rows) else rows[:MOST_CALIBRATION_ROWS]
        few = len(rows) < FEW and not maps
        less = means if means is not None and adds_variance else predict
        known, found = less(train), (predict if rows is valid or (few and unused) else less)(valid)
        of_rows = found if rows is valid else predict(rows)
        seen = torch.cat([train, valid]) if few else valid
        least = 0.0 if len(valid) < SCARCE else -math.inf
        of_seen = join([known, found]) if few else found
        deviation = Deviation.fit(known, train, of_seen, seen, seen, least=least, adds_variance=adds_variance)
        if maps:
            parts = [train, valid] if rows is valid else [train, valid, rows]
            every, radius = torch.cat(parts), fit_radius(of_rows, rows, rows, deviation)
            score, own = Score.of_maps(every, deviation), torch.arange(len(every))
            reference = Reference(every, ranked(score(known, every, own)), own)
            return cls(deviation, score, reference, Intervals(radius, valid[:0]), Tiles(reference.scores[:0]))
        own = torch.full((len(rows),), -1)
        if table:
            parts = [train, valid] if rows is valid else [train, valid, rows]
            where = places(sum(map(len, parts))).split([len(part) for part in parts])
            every, of_every = torch.cat(parts), join([known, found, of_rows][: len(parts)])
            about: dict[str, Any] = {"table": True, "n_seen": len(train) + len(valid)}
            own = where[-1]
        else:
            every, of_every, about = train, known, {"table": False, "judged": judged, "apart": apart}
            where = [torch.full((len(part),), -1) for part in (train, valid)]
        fitted, of_fitted, at = valid, found, where[1]
        least_spread = LEAST_OF_TABLE if table else LEAST_SPREAD
        if len(valid) < least_spread:
            some = evenly(torch.arange(len(train)), LEAST_OF_TABLE - len(valid))
            fitted, of_fitted = torch.cat([train[some], valid]), join([known.take(some), found])
            at = torch.cat([where[0][some], where[1]])
        score = Score.fit(every, of_every, of_fitted, fitted, deviation, own=at, **about)
        once = first_copies(valid, table) if few and unused else torch.arange(0)
        more = valid[once]
        every = torch.cat([rows, more])
        radius = fit_radius(join([of_rows, found.take(once)]) if len(more) else of_rows, every, every, deviation)
        surprises = None if surprises is None else surprises[: len(rows)]
        scores = ranked(_surprised(score(of_rows, rows, own), score, unseen, surprises, rows))
        reference = Reference(rows, scores, own, surprises)
        if apart is not None:  # validation windows come before those that calibrate
            in_time = scores if rows is valid else torch.cat([ranked(score(found, valid)), scores])
            share = independent(in_time.numpy(), apart)
            reference = replace(reference, independent=torch.tensor(share)).with_scores(scores)
        return cls(deviation, score, reference, Intervals(radius, more), Tiles(reference.scores[:0]), unseen)

    @property
    def held_out(self) -> Tensor:
        """Rows (n, *features) that make intervals: the calibration rows, and the validation set if they are few."""
        return torch.cat([self.reference.rows, self.intervals.more])

    def rank(self, predict: Predict) -> Rank:
        """Return a function that scores rows by `predict`, rounded so that equal rows tie."""
        return lambda x, own, surprises: ranked(
            _surprised(self.score(predict(x), x, own), self.score, self.unseen, surprises, x)
        )

    def compare(self, predict: Predict, x: Tensor, surprises: Tensor | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return anomaly scores and p-values (B,) of rows x (B, *features), see `Reference.compare`."""
        return self.reference.compare(self.rank(predict), x, surprises=surprises)

    def anew(self, predict: Predict) -> Calibration:
        """Return the calibration for another predictive: the held-out rows are predicted again."""
        every = self.held_out
        radius = fit_radius(predict(every), every, every, self.deviation)
        scores = self.rank(predict)(self.reference.rows, self.reference.own, self.reference.surprises)
        return replace(
            self,
            reference=self.reference.with_scores(scores),
            intervals=replace(self.intervals, radius=radius),
            tiles=Tiles(self.tiles.scores[:0]),
        )

    def unmet(self, rate: float, *, tiles: bool = False) -> str:
        """Return why a false alarm rate cannot be met (`Rule.unmet`), for whole images if the model is one of
        `tiles`."""
        rows, images = (Rule(rate, held.double().numpy()) for held in (self.reference.scores, self.tiles.scores))
        if not tiles or images.n:
            return images.unmet("images") if tiles else rows.unmet("rows", MOST_CALIBRATION_ROWS)
        few = f"no whole images to compare with, {rows.n} held-out tiles: at a false alarm rate of {rate:g} an image"
        return f"{few} of more than {rows.rank} tiles cannot be flagged. Train on more images, with this predictive"


def _surprised(scores: Tensor, score: Score, unseen: Unseen | None, surprises: Tensor | None, x: Tensor) -> Tensor:
    """Return scores (B,) of rows x (B, *features), including what their surprises (B, C) add to them."""
    if unseen is None or surprises is None or score.tail is None:
        return scores
    return scores + score.tail * unseen.total(surprises, x)


def first_copies(rows: Tensor, table: bool) -> Tensor:
    """Return the index of rows (n, *features) without copies of rows of a table: these say no more than one of them."""
    groups = copied(rows.double().cpu().numpy()) if table else None
    return torch.arange(len(rows)) if groups is None else torch.from_numpy(np.unique(groups, return_index=True)[1])


def fit_radius(
    found: Prediction,
    seen: Tensor,
    truth: Tensor,
    deviation: Deviation,
) -> Radius:
    """Fit the radius of intervals.

    Args:
        found: predictions of `seen`.
        seen: held-out rows (n, *features) as the network saw them.
        truth: their values, NaN where they do not count.
        deviation: the standard deviation of values.
    """
    ratio = (truth - found.x_mean).abs() / deviation(found, seen)
    return Radius.fit(ratio.numpy(), shared=ratio[0].numel() > SHARED)


def ranked(scores: Tensor) -> Tensor:
    """Round anomaly scores (B,) for ranking, so that equal rows tie."""
    return scores.double().round(decimals=DECIMALS)
