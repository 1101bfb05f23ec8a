"""Adaptive p-values of a stream: a threshold that follows slow change, and does not adapt during an alarm.

A p-value compares with scores of the past; if data change slowly (a machine warms up, seasons), it ends up flagging
everything. The adaptive one compares u - level - offset with the held-out scores, where u = (score - median) / spread.
If scores are squares, u is asinh of that, so that large ones count by their logarithm:

- `level` is the median of u over the last samples, `MEMORY` times those that overlap, extrapolated to the present if it
  rises. It follows slow change, and outliers do not move it.
- `offset` corrects what the level misses: after each sample it moves by `GAIN` (flagged - rate). So the share of
  flagged samples tends to the rate, whatever the data do (adaptive conformal inference, Gibbs & Candès 2021, as
  tracking of the quantile: Angelopoulos et al. 2023).

A fault must not be learned away: samples count only after `DELAY`, and none counts while a drift alarm stands. Its bets
are those of `lapae.calibrate.drift`, on samples that do not overlap, by their distance to the level and an offset that
moves slowly (`SLOW`). It is raised when the evidence reaches `every`, or `SUSPECT` where twice the rate of the last
`SPAN` samples has been flagged and one more is due; with less evidence the offset jumps, and this one is not flagged.
So never are more flagged without an alarm. It falls when as many samples in a row are normal as overlap twice, or when
a user says that this is the new normal (`accept`). Where a stream was elsewhere from its first sample on, nothing has
changed within it: the alarm says so, and falls by itself after `START`, with the level of what has come, and its
spread if that is larger: held-out scores of a sensor that stood still do not say how much they vary where it moves.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import NamedTuple

import numpy as np

from lapae.calibrate.conformal import Rule
from lapae.calibrate.drift import POWERS, gains

GAIN = 0.05
"""Distance by which a flagged sample moves the offset, in spreads of the held-out scores."""
MEMORY, LEAST_MEMORY = 10, 200
"""Samples of the level, in samples that overlap, and their minimum number; older and newer ones are halves of it."""
AHEAD = 0.7
"""How far the level is continued, in distances of the medians of both halves: from the middle of the newer one, over
`DELAY`, to now."""
SLOW = 0.005
"""How far a sample beyond the threshold moves the offset that an alarm is judged with: a few do not count."""
DELAY = 2
"""Samples after which one counts, in samples that overlap: an alarm comes sooner."""
CALM, LEAST_CALM = 2, 20
"""Number of consecutive normal samples after which an alarm ends, in samples that overlap, and its minimum."""
START = 2
"""Number of samples after which an alarm ends in a stream that differed from the start, in samples that overlap."""
ELSEWHERE = 0.9
"""Share of flagged samples at the beginning of a stream from which on it is considered different from the start."""
SPAN = 1000
"""Samples of which at most twice the rate are flagged without an alarm."""
BEYOND = 1e-9
"""Distance by which the offset jumps beyond a sample, which is then not flagged."""
SUSPECT = 100.0
"""Evidence that is enough for an alarm if too many samples are flagged."""


class Adapted(NamedTuple):
    """Result for one sample."""

    p_adaptive: float
    flagged: bool
    drift: bool


class AdaptiveThreshold:
    """Adaptive p-values of anomaly scores that come one after the other.

    Attributes:
        drift: whether there is an alarm.
        n_seen: number of scores so far, without NaN.
    """

    def __init__(
        self, rule: Rule, *, overlap: int = 1, every: int = 10_000, seed: int = 0, logarithmic: bool = False
    ) -> None:
        """Start at the held-out scores.

        Args:
            rule: the false alarm rate, and anomaly scores of held-out samples in the order of time.
            overlap: number of consecutive samples that share data, such as steps / stride of windows.
            every: minimum number of samples that do not overlap between two false alarms, on average, if these are
                independent.
            seed: seed of the random order of equal scores.
            logarithmic: whether scores are already logarithms, see `lapae.score.score.Score.logarithmic`.
        """
        if overlap < 1 or every < 1:
            raise ValueError(f"overlap={overlap}, every={every}: expected at least 1")
        held_out = rule.held_out[~np.isnan(rule.held_out)]
        if not len(held_out):
            raise ValueError("expected held-out scores to compare with, got none")
        self.rate, self.overlap, self.every, self.seed = rule.rate, overlap, every, seed
        self.logarithmic = logarithmic
        self._middle = float(np.median(held_out))
        high = float(np.quantile(held_out, 0.95)) - self._middle
        self._spread = high if high > 0 else max(abs(self._middle), 1.0)
        u = np.array([self._scaled(score) for score in held_out.tolist()])
        self._known, self._threshold = sorted(u.tolist()), Rule(rule.rate, u).threshold
        self._memory = max(MEMORY * overlap, LEAST_MEMORY)
        self._remember(u[np.linspace(0, len(u) - 1, self._memory).astype(int)].tolist())
        self._queue: deque[tuple[bool, bool, float]] = deque()
        self._flags = np.zeros(SPAN, bool)
        self._newest: deque[float] = deque(maxlen=self._memory)
        self._bets = np.zeros(len(POWERS))
        self._offset = self._steady = 0.0
        self._width = 1.0
        self._quiet = self._early = 0
        self._few = max(overlap, LEAST_CALM)
        self.drift, self.n_seen = False, 0

    @property
    def evidence(self) -> float:
        """Evidence of a change: the alarm is raised when it reaches `every`."""
        return float(self._bets.mean())

    def update(self, score: float) -> Adapted:
        """Process the next anomaly score; NaN gives no result and is not learned."""
        if math.isnan(score):
            return Adapted(float("nan"), False, self.drift)
        u = self._scaled(score)
        older, newer = (half[len(half) // 2] for half in self._ordered)
        level = newer + AHEAD * max(newer - older, 0.0)
        above = (u - level) / self._width
        steadily = above - self._steady  # without what a few samples have moved
        place = self.n_seen % SPAN
        if not self.drift:
            if self.n_seen % self.overlap == 0:
                self._bets = (1 + self._bets) * gains(self._rank(steadily))
            many = self._p(above - self._offset) <= self.rate and self._crowded(place)
            if self.evidence >= self.every or (many and self.evidence >= SUSPECT):
                self._raise()
            elif many:
                self._offset = above - self._threshold + BEYOND
        p = self._p(steadily if self.drift else above - self._offset)
        flagged = p <= self.rate
        self._early += flagged and self.n_seen < self._few
        if self.drift:
            self._newest.append(u)
            self._quiet = 0 if flagged else self._quiet + 1
            if self._quiet >= max(CALM * self.overlap, LEAST_CALM):
                self._settle()
            elif self._begun_elsewhere and len(self._newest) >= START * self._few:
                self.accept()
        else:
            self._learn(u, flagged, beyond=self._p(steadily) <= self.rate)
        self._flags[place] = flagged and not self.drift
        self.n_seen += 1
        return Adapted(p, flagged, self.drift)

    def accept(self) -> None:
        """Treat everything since the alarm as normal: the alarm ends, and the level is that of these samples, as is
        the spread if theirs is larger than that of the held-out scores."""
        if self._newest:
            self._remember(list(self._newest))
            high = float(np.quantile(self._newest, 0.95)) - float(np.median(self._newest))
            self._width = max(high, 1.0)
        self._steady = 0.0
        self._settle()

    def state(self) -> dict[str, np.ndarray]:
        """Return what was learned from the stream, as arrays by name."""
        numbers = [
            self._offset,
            self._steady,
            self._quiet,
            self.drift,
            self.n_seen,
            self.overlap,
            self.every,
            self.seed,
        ]
        return {
            "numbers": np.array([*numbers, self.rate, self._early, self.logarithmic, self._width], dtype=np.float64),
            "bets": self._bets.copy(),
            "window": np.concatenate(self._halves).astype(np.float64),
            "queue": np.array(self._queue, dtype=np.float64).reshape(-1, 3),
            "flags": self._flags.astype(np.uint8),
            "newest": np.array(self._newest, dtype=np.float64),
        }

    @classmethod
    def of_state(cls, state: dict[str, np.ndarray], held_out: np.ndarray) -> AdaptiveThreshold:
        """Return a stream that continues from `state`, with the same held-out scores (n,)."""
        offset, smooth, quiet, drift, n_seen, overlap, every, seed, rate, *more = state["numbers"].tolist()
        early, logarithmic, width = [*more, *(0.0, 0.0, 1.0)[len(more) :]]  # older states have fewer
        rule = Rule(rate, held_out)
        found = cls(rule, overlap=int(overlap), every=int(every), seed=int(seed), logarithmic=bool(logarithmic))
        found._offset, found._steady, found._quiet = offset, smooth, int(quiet)
        found._early, found._width = int(early), width
        found.drift, found.n_seen = bool(drift), int(n_seen)
        found._bets, found._flags = state["bets"].copy(), state["flags"].astype(bool)
        found._remember(state["window"].tolist())
        found._queue = deque((bool(flagged), bool(beyond), u) for flagged, beyond, u in state["queue"].tolist())
        found._newest.extend(state["newest"].tolist())
        return found

    def _remember(self, values: list[float]) -> None:
        """Set the level to that of values in the order of time, evenly repeated if they are few."""
        values = [values[i * len(values) // self._memory] for i in range(self._memory)]
        self._halves = deque(values[: self._memory // 2]), deque(values[self._memory // 2 :])
        self._ordered = [sorted(half) for half in self._halves]

    def _scaled(self, score: float) -> float:
        u = (score - self._middle) / self._spread
        return u if self.logarithmic else math.asinh(u)

    def _p(self, u: float) -> float:
        n = len(self._known)
        return (1.0 + n - bisect_left(self._known, u)) / (n + 1.0)

    def _rank(self, u: float) -> float:
        """Return the p-value of u with ties broken at random."""
        above = len(self._known) - bisect_right(self._known, u)
        same = len(self._known) - above - bisect_left(self._known, u)
        between = np.random.default_rng([self.seed, self.n_seen]).random()
        return (above + between * (same + 1)) / (len(self._known) + 1)

    @property
    def _begun_elsewhere(self) -> bool:
        return self._early >= ELSEWHERE * self._few and self.n_seen < self._memory

    def _crowded(self, place: int) -> bool:
        """Return whether one more flagged sample is too many for the last `SPAN`."""
        return int(np.count_nonzero(self._flags)) - int(self._flags[place]) + 1 > 2 * self.rate * SPAN

    def _raise(self) -> None:
        self.drift, self._quiet = True, 0
        self._queue.clear()
        self._newest.clear()

    def _settle(self) -> None:
        """End an alarm, and start again from the level by which it was judged."""
        self.drift, self._quiet, self._offset = False, 0, self._steady
        self._bets = np.zeros(len(POWERS))
        self._queue.clear()
        self._newest.clear()

    def _learn(self, u: float, flagged: bool, *, beyond: bool) -> None:
        """Queue a sample, and let the one that has waited long enough move level and offset."""
        self._queue.append((flagged, beyond, u))
        if len(self._queue) <= DELAY * self.overlap:
            return
        flagged, beyond, u = self._queue.popleft()
        # not below the level: of scores that are all alike none is unusual
        self._offset = max(self._offset + GAIN * (flagged - self.rate), -self._threshold)
        self._steady = max(self._steady + SLOW * (beyond - self.rate), 0.0)
        older, newer = self._halves
        ordered, newest = self._ordered
        leaving, oldest = newer.popleft(), older.popleft()
        newer.append(u)
        older.append(leaving)
        del newest[bisect_left(newest, leaving)], ordered[bisect_left(ordered, oldest)]
        insort(newest, u)
        insort(ordered, leaving)
