"""Split conformal prediction: p-values, verdicts and prediction intervals that hold on new data of the same kind.

With anomaly scores s_1 … s_n of held-out normal rows, the p-value of a new row with score s is

    p = (1 + #{s_i >= s}) / (n + 1)

which is uniform if the new row and the held-out ones are exchangeable. A row is flagged at a false alarm rate if and
only if p is at most this rate (`Rule`). An interval is mean ± q · deviation, where q is the (n + 1) · level-th smallest
held-out |residual| / deviation (interpolated between two of them); it contains the value with probability `level`. Both
hold on average over rows, not for each row (Vovk et al. 2005; Lei et al. 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from statistics import NormalDist

import numpy as np

LEVELS = np.concatenate([np.arange(0.01, 0.99, 0.01), [0.99, 0.995, 0.999, 0.9995]])
"""Levels at which the radius of intervals is stored; between them it is interpolated."""
ENOUGH = 9
"""Minimum number of held-out values of a feature for quantiles of its own: the smallest number with which the quantile
at 0.9 exists. With fewer, all features are pooled: intervals of columns that others predict then cover more than those
of columns that nothing predicts."""
SURE = 100
"""Number of hidden values of a feature below which its quantiles are at least those of all features, and at a higher
level: otherwise a few values would decide, by chance, about all values that are imputed later."""
UPPER = 0.25
"""Share of the held-out scores of windows from which the tail of new scores is estimated."""
TINY = float(np.finfo(float).tiny)


def p_values(scores: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Return the conformal p-values of anomaly scores.

    Args:
        scores: scores of new rows, (m,).
        held_out: scores of held-out rows, (n,); NaN are ignored.

    Returns:
        (m,): uniform on new normal rows, NaN where the score is NaN.
    """
    known = np.sort(held_out[~np.isnan(held_out)])
    at_least = len(known) - np.searchsorted(known, scores, side="left")
    return np.where(np.isnan(scores), np.nan, (1.0 + at_least) / (len(known) + 1.0))


def independent(scores: np.ndarray, overlap: int) -> float:
    """Return the effective share of independent anomaly scores among those of windows, 1 / `correlation_time`.

    Args:
        scores: scores of windows in the order of time, (n,).
        overlap: number of windows that share a step; the share is at most 1 / overlap.
    """
    return 1 / max(correlation_time(scores), overlap)


def correlation_time(values: np.ndarray) -> float:
    """Return how many of the values (n,) of a process in time carry as much information as one independent value.

    It is 1 + 2 Σ ρ_k, with ρ_k the correlation of the ranks of values that are k steps apart, summed up to where it
    first falls below 0. This assumes that the process is stationary.
    """
    from scipy.stats import rankdata  # pyright: ignore[reportMissingTypeStubs]

    rank, half = rankdata(values) - (len(values) + 1) / 2, len(values) // 2
    together = np.correlate(rank, rank, "full")[len(rank) - 1 :][:half] / max(float(rank @ rank), TINY)
    until = int(np.argmax(together <= 0)) if (together <= 0).any() else half
    return 1 + 2 * float(together[1:until].sum())


def widened(scores: np.ndarray, n: float) -> np.ndarray:
    """Return held-out scores (m,) of windows with a tail as heavy as that of new scores may be, as only n are
    independent.

    Scores are sums of -log p, whose upper tail falls off exponentially. With its scale b estimated from the k = n / 4
    scores in the upper quarter, a new window exceeds with probability p (a Pareto predictive distribution) the score

        u + b k ((1 / 4p)^(1/k) - 1),    u the upper quartile, b the mean excess over it,

    which tends to u + b log(1 / 4p) for large k. Held-out scores below this value are raised to it; their order stays
    the same.
    """
    at_least = len(scores) - np.searchsorted(np.sort(scores), scores, side="left")
    upper = float(np.quantile(scores, 1 - UPPER))
    excess, k = float(np.mean(scores[scores >= upper])) - upper, UPPER * max(n, 1.0)
    beyond = np.log((UPPER * (len(scores) + 1) / at_least).clip(1))
    return np.maximum(scores, np.where(beyond > 0, upper + excess * k * np.expm1(beyond / k), scores))


@dataclass(frozen=True)
class Rule:
    """Flags a row if and only if its p-value is at most `rate`: at most this share of new normal rows, on average.

    For a row that is compared with `held_out`, this means that its anomaly score is above the k-th largest of these,
    with k = floor(rate · (n + 1)).
    """

    rate: float
    held_out: np.ndarray
    """(n,): anomaly scores of held-out rows; NaN are ignored, as in `p_values`."""

    def __post_init__(self) -> None:
        if isinstance(self.rate, bool) or not isinstance(self.rate, Real) or not 0 < self.rate < 1:
            raise ValueError(f"false_alarm_rate = {self.rate!r}: expected a number between 0 and 1, such as 0.05")

    @property
    def n(self) -> int:
        """Number of held-out rows that count."""
        return int((~np.isnan(self.held_out)).sum())

    @property
    def rank(self) -> int:
        """The k above, found by the same division as a p-value: 0.29 · 100 is less than 29 in floating point."""
        return int((np.arange(1.0, self.n + 1.0) / (self.n + 1.0) <= self.rate).sum())

    @property
    def threshold(self) -> float:
        """The anomaly score above which rows are flagged; infinite if the rate is too small to flag any."""
        return float(np.sort(self.held_out[~np.isnan(self.held_out)])[-self.rank]) if self.rank else math.inf

    def decision(self, scores: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Return how far rows are from being flagged, (m,): below 0 if and only if p <= rate, and NaN where p is NaN.

        This is the threshold minus the anomaly score. A row with missing values has held-out scores of its own: if
        these and the threshold disagree, its p-value decides, and the row is set to 0 or just below. If nothing can be
        flagged, there is no threshold: scores beyond all held-out ones then approach 0 from above.
        """
        gap = self.threshold - scores
        if not self.rank:
            gap = np.nanmax(self.held_out, initial=-math.inf) - scores if self.n else -scores
            gap = np.where(gap < 0, 1 / (1 - np.minimum(gap, 0)), 1 + gap)
        return np.where(p <= self.rate, np.minimum(gap, -TINY), np.maximum(gap, 0.0))

    def unmet(self, what: str = "rows", most: float = math.inf) -> str:
        """Say why nothing can be flagged, and what to do; empty if something can be.

        Args:
            what: what the held-out samples are called.
            most: maximum number of them that are kept.
        """
        if self.rank:
            return ""
        least = math.floor(1 / self.rate) - 1
        least += 1 / (least + 1) > self.rate
        possible = math.ceil(1e4 / (self.n + 1)) / 1e4
        more = f"train on more {what}" if least <= most else f"no more than {most:,} are kept"
        return (
            f"a false alarm rate of {self.rate:g} cannot be met with {self.n} held-out {what}, so nothing is flagged: "
            f"it takes at least {least:,} held-out {what} ({more}), or a rate of at least {possible:g}"
        )


def by_chance(flagged: int, n_new: int, rate: float, n: int, overlap: int = 1) -> float:
    """Return the probability that as many or more of `n_new` rows have p <= `rate` among n calibration rows like them.

    Their number is beta-binomial: the share of all rows that lie above the k-th largest of n is Beta(k, n + 1 - k).

    Args:
        flagged: number of new rows with p <= `rate`.
        n_new: number of new rows.
        rate: false alarm rate.
        n: number of calibration rows.
        overlap: number of windows of a series that share a step. They count as one window; the probability is 1 if too
            few are left to tell.
    """
    if overlap > 1:
        flagged, n_new, n = flagged // overlap, n_new // overlap, n // overlap
        if not Rule(rate, np.arange(n, dtype=float)).rank:
            return 1.0
    k = Rule(rate, np.arange(n, dtype=float)).rank
    if not flagged or not k:
        return float(not flagged)

    def log_beta(a: float, b: float) -> float:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    terms = (
        -math.log(n_new + 1) - log_beta(j + 1, n_new - j + 1) + log_beta(j + k, n_new - j + n + 1 - k)
        for j in range(flagged, n_new + 1)
    )
    return sum(math.exp(term - log_beta(k, n + 1 - k)) for term in terms)


def check_rate(rate: float) -> None:
    """Raise ValueError if `rate` is not a valid rate of false discoveries."""
    if not 0 < rate < 1:
        raise ValueError(f"rate={rate!r}: expected a number between 0 and 1, such as 0.1")


def discoveries(p: np.ndarray, rate: float) -> np.ndarray:
    """Flag p-values (m,) so that at most `rate` of the flagged are false, on average (Benjamini & Hochberg 1995)."""
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    bound = rate * np.arange(1, len(order) + 1) / max(len(order), 1)
    below = np.flatnonzero(p[order] <= bound)
    flagged = np.zeros(p.shape, bool)
    if len(below):
        flagged[order[: below[-1] + 1]] = True
    return flagged


@dataclass(frozen=True)
class Radius:
    """Standard deviations that an interval reaches to either side, by level.

    Attributes:
        levels: (L,), increasing.
        table: (L, *features), or (L, 1, …, 1) if all features share it.
    """

    levels: np.ndarray
    table: np.ndarray

    @classmethod
    def fit(
        cls, ratio: np.ndarray, *, rows: np.ndarray | None = None, shared: bool = False, one_sided: bool = False
    ) -> Radius:
        """Take the conformal quantiles of held-out |residual| / standard deviation.

        Args:
            ratio: (n, *features), NaN where there is no value.
            rows: (n,) index, from 0, of the held-out row that each was made from: a row of which several values were
                hidden in turn counts once. Default: each is a row of its own.
            shared: one radius for all features; otherwise one per feature that has enough values.
            one_sided: the ratios are signed and belong to one end of the intervals: half of the values that fall
                outside an interval should lie beyond this end.
        """
        levels = (1 + LEVELS) / 2 if one_sided else LEVELS
        n, features = len(ratio), ratio.shape[1:]
        flat = ratio.reshape(n, math.prod(features))
        there = ~np.isnan(flat)
        if rows is not None and len(rows):
            each = np.zeros((rows.max() + 1, there.shape[1]), bool)
            np.logical_or.at(each, rows, there)
            there = each
        flat = np.sort(flat, axis=0)  # NaN sort to the end
        pooled = np.sort(flat[~np.isnan(flat)])[:, None]
        # values of one row go together: pooled over features, rows count, unless one value of each is asked for
        n_pooled = pooled.size if rows is None else int(there.any(1).sum())
        together = _widened(_quantiles(pooled, levels, np.array([n_pooled])))
        counts = there.sum(0)
        if shared or n < ENOUGH:
            return cls(LEVELS, together.reshape(-1, *(1 for _ in features)))
        if rows is not None:  # of values that were hidden
            levels = _raised(levels[:, None], counts)
        table = _widened(_quantiles(flat, levels, counts))
        if rows is not None:
            table = np.where(counts == 0, together, np.where(counts < SURE, np.fmax(table, together), table))
            return cls(LEVELS, table.reshape(-1, *features))
        return cls(LEVELS, np.where(counts < ENOUGH, together, table).reshape(-1, *features))

    def at(self, level: float) -> np.ndarray:
        """Return the radius (*features) at `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level={level!r}: expected a number between 0 and 1, such as 0.9")
        if level <= self.levels[0]:
            return self.table[0] * (level / self.levels[0])
        above = int(np.searchsorted(self.levels, level))
        if above == len(self.levels):
            return self.table[-1]
        low, high = self.levels[above - 1], self.levels[above]
        part = (level - low) / (high - low)
        below, over = self.table[above - 1], self.table[above]
        return below + part * np.where(np.isinf(over), np.inf, over - np.where(np.isinf(below), 0.0, below))


def _quantiles(ordered: np.ndarray, levels: np.ndarray, independent: np.ndarray) -> np.ndarray:
    """Return conformal quantiles (L, F) of each column of `ordered` (n, F), increasing, NaN at the end; `levels` are
    (L,) or (L, F).

    The values of a column come from m independent rows, `independent` (F,): each row has the weight 1 / m, and so has
    the new one, which counts as infinite. If there are too few rows for a level, its quantile is infinite, too.
    """
    counts = (~np.isnan(ordered)).sum(0)
    # of m + 1 gaps between m values, the share `level` lies below
    place = levels.reshape(len(levels), -1) * (1 + 1 / np.maximum(independent, 1)) * counts[None] - 1
    if not len(ordered):
        return np.full(place.shape, np.inf)
    low = np.clip(np.floor(place + 1e-9).astype(int), 0, len(ordered) - 1)
    below = np.take_along_axis(ordered, low, axis=0)
    above = np.take_along_axis(ordered, np.minimum(low + 1, len(ordered) - 1), axis=0)
    part = np.clip(place - low, -1.0, 1.0)  # below the first, between 0 and it
    found = np.where(part < 0, below * (1 + part), below + part * np.where(np.isnan(above), 0.0, above - below))
    return np.where(place <= counts[None] - 1 + 1e-9, found, np.inf)


def _raised(levels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return levels (L, 1) for features of which `counts` (F,) values are known: (L, F), higher if these are few.

    The share of new values below the quantile of n others has a standard deviation of about sqrt(level (1 - level) / n)
    over draws of the n: an interval from twenty values may permanently cover a few percent too many or too few. Levels
    are raised by one such deviation for the fewest values, and not at all from `SURE` on.
    """
    few = (1 - counts / SURE).clip(0, 1)
    return levels + few * np.sqrt(levels * (1 - levels) / (counts + 2))


def _widened(table: np.ndarray) -> np.ndarray:
    """Replace infinite quantiles (L, F), which lie beyond the largest value, by extrapolating a normal tail."""
    normal = np.array([NormalDist().inv_cdf(0.5 + level / 2) for level in LEVELS])
    finite = np.isfinite(table)
    last = finite.sum(0) - 1  # levels increase, so the finite ones come first
    most = np.take_along_axis(table, np.maximum(last, 0)[None], axis=0)
    further = normal[:, None] / normal[np.maximum(last, 0)]
    beyond = np.where(last < 0, np.inf, np.where(most > 0, most * further, most + normal[:, None] - normal[last]))
    return np.where(finite, table, beyond)
