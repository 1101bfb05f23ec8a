"""How unusual each step of a series is, from the anomaly scores of the windows that hold it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lapae.calibrate.adaptive import AdaptiveThreshold
from lapae.calibrate.conformal import Rule, p_values
from lapae.space.series import Fold

Windows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""First steps of windows, (n,), their anomaly scores, (n,), and what their values add to them, (n, W, C)."""


@dataclass(frozen=True)
class StepScores:
    """What is said of T steps with C channels.

    Attributes:
        anomaly_score: mean score of the windows that hold a step, (T,); NaN where nothing is observed in any.
        p_value: among held-out windows, (T,).
        p_adaptive: p-value by a threshold that follows slow change, (T,).
        drift: whether an alarm of drift stands, (T,).
        unusual: how unusual each channel is, (T, C).
    """

    anomaly_score: np.ndarray
    p_value: np.ndarray
    p_adaptive: np.ndarray
    drift: np.ndarray
    unusual: np.ndarray

    @classmethod
    def of(
        cls, n_steps: int, windows: Iterable[Windows], rule: Rule, threshold: AdaptiveThreshold
    ) -> StepScores | None:
        """Put together what was found for windows; None if there are none.

        Args:
            n_steps: steps of the series.
            windows: blocks of its windows. Those with nothing observed do not count.
            rule: which steps are flagged.
            threshold: an adaptive one, at the start of the series; as many steps overlap as a window has.
        """
        scores, parts = Fold(n_steps), Fold(n_steps)
        for first, score, values in windows:
            known = ~np.isnan(score)
            scores.add(first[known], np.broadcast_to(score[known, None], values[known].shape[:2]))
            parts.add(first[known], values[known])
        if scores.total is None:
            return None
        score = scores.mean()
        adapted = [threshold.update(surprise) for surprise in score.tolist()]
        p, drift = np.array([step.p_adaptive for step in adapted]), np.array([step.drift for step in adapted])
        return cls(score, p_values(score, rule.held_out), p, drift, parts.mean())

    def leading(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the channel that is most unusual in each step, (T,), -1 for none, and its share, (T,)."""
        known = np.nan_to_num(self.unusual)
        total = known.sum(1)
        share = np.where(total > 0, known.max(1) / total.clip(1e-12), 0.0)
        return np.where(total > 0, known.argmax(1), -1), share
