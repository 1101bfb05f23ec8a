"""An alarm for streams: have the data changed since the model was calibrated?

Each new score is ranked among the reference scores and those that came before it. If the data are of the same kind, the
ranks, as p-values with ties broken at random, are independent and uniform (Vovk et al. 2003). A bet b on a p-value has
the mean 1 then, so that

    R_t = (1 + R_{t-1}) b(p_t)

grows by 1 per sample on average, and the mean time until R_t reaches `every` is at least `every` (the Shiryaev-Roberts
procedure of conformal martingales). So a false alarm is raised at most once in `every` samples on average, whatever the
distribution of the scores. R_t is a mean over several bets: on small p-values (samples more unusual than before) and on
large ones (a sensor that is stuck looks all too normal).
"""

from __future__ import annotations

import numpy as np

POWERS = (0.3, 0.6, 0.85)
"""Bets ε p^(ε-1): a small ε wins much on very unusual samples, one near 1 a little on many slightly unusual ones."""


def gains(p: float) -> np.ndarray:
    """Return what each bet on a small p-value gains, (3,): 1 on average if p is uniform."""
    powers = np.array(POWERS)
    return powers * min(max(p, 1e-12), 1 - 1e-12) ** (powers - 1)


class DriftAlarm:
    """Watches anomaly scores of a stream for a change of their distribution."""

    def __init__(self, reference: np.ndarray, *, every: int = 10_000, seed: int = 0) -> None:
        """Start to watch.

        Args:
            reference: anomaly scores (n,) of samples that the model has not learned; higher is more unusual.
            every: minimum number of samples between two false alarms, on average.
            seed: seed of the random order of equal scores.
        """
        if every < 1:
            raise ValueError(f"every={every}: expected at least 1")
        self.every, self._rng = every, np.random.default_rng(seed)
        self.n_seen = 0
        self.reset(reference)

    @property
    def evidence(self) -> float:
        """R_t: the alarm is raised when it reaches `every`."""
        return float(self._bets.mean())

    def reset(self, reference: np.ndarray) -> None:
        """Start again after an alarm, with other reference scores."""
        self._bets = np.zeros(2 * len(POWERS))
        self.renew(reference)

    def renew(self, reference: np.ndarray) -> None:
        """Compare with other reference scores from now on, such as those of an updated model; R_t stays."""
        known = np.asarray(reference, dtype=np.float64)
        self._known = np.sort(known[~np.isnan(known)])

    def update(self, scores: np.ndarray) -> int | None:
        """Add anomaly scores (m,), in their order; NaN are skipped.

        Returns:
            The index of the first one at which the evidence reaches `every`, or None. Scores after it are ignored: call
            `reset` to start again.
        """
        for i, score in enumerate(np.asarray(scores, dtype=np.float64).reshape(-1)):
            if np.isnan(score):
                continue
            above = len(self._known) - np.searchsorted(self._known, score, side="right")
            place = int(np.searchsorted(self._known, score, side="left"))
            same = len(self._known) - above - place
            p = (above + self._rng.random() * (same + 1)) / (len(self._known) + 1)
            self._bets = (1 + self._bets) * np.concatenate([gains(p), gains(1 - p)])
            self._known = np.insert(self._known, place, score)
            self.n_seen += 1
            if self.evidence >= self.every:
                return i
        return None
