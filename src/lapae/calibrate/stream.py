"""Samples of a stream in their order: static and adaptive p-values, verdicts, and whether an alarm stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lapae.calibrate.adaptive import AdaptiveThreshold
from lapae.errors import RunError
from lapae.runs.files import write_whole
from lapae.runs.run import digest, read_tensor_file, tensor_file


class StreamStep(NamedTuple):
    """What is said of a sample, or arrays (n,) for several.

    Attributes:
        anomaly_score: higher is more unusual.
        p_value: static p-value among held-out samples, the same whatever came before.
        p_adaptive: p-value by a threshold that follows slow change.
        flagged: whether `p_adaptive` is at most the false alarm rate.
        drift: whether a drift alarm stands; the threshold then stands still.
    """

    anomaly_score: Any
    p_value: Any
    p_adaptive: Any
    flagged: Any
    drift: Any


class Stream:
    """Judges the samples of a stream, one after the other; see `lapae.calibrate.adaptive`.

    Attributes:
        threshold: the adaptive threshold.
    """

    def __init__(
        self,
        judge: Callable[[Any], tuple[np.ndarray, np.ndarray]],
        shape: tuple[int, ...],
        held_out: np.ndarray,
        threshold: AdaptiveThreshold,
    ) -> None:
        """Start, or go on where `threshold` is.

        Args:
            judge: samples (n, *shape) -> their anomaly scores and static p-values, (n,) each.
            shape: shape of one sample.
            held_out: anomaly scores of held-out samples, (m,).
            threshold: the adaptive threshold over these.
        """
        self._judge, self._shape, self._held_out = judge, tuple(shape), held_out
        self.threshold = threshold

    @property
    def drift(self) -> bool:
        """Whether an alarm stands."""
        return self.threshold.drift

    @property
    def n_seen(self) -> int:
        """Number of samples so far; those with nothing observed do not count."""
        return self.threshold.n_seen

    def update(self, x: Any) -> StreamStep:
        """Judge the next sample x (*shape), or the next n samples (n, *shape) in their order.

        Returns:
            Numbers for one sample, arrays (n,) for several. NaN for a sample with nothing observed, from which nothing
            is learned.
        """
        one = not hasattr(x, "columns") and np.shape(x) == self._shape
        score, p = self._judge(np.asarray(x)[None] if one else x)
        found = [self.threshold.update(value) for value in score.tolist()]
        p_adaptive, flagged, drift = (np.array(column) for column in zip(*found, strict=True))
        step = StreamStep(score, p, p_adaptive, flagged, drift)
        return StreamStep(*(column[0].item() for column in step)) if one else step

    def accept(self) -> None:
        """Take what has come since the alarm for normal from now on, such as after maintenance: the alarm falls."""
        self.threshold.accept()

    def save(self, path: str | Path) -> None:
        """Write the state to a file, whole or not at all. The model is not in it."""
        state = {name: torch.from_numpy(values) for name, values in self.threshold.state().items()}
        write_whole(Path(path), tensor_file(state, {"kind": "stream", "of": self._of}))

    def load(self, path: str | Path) -> Stream:
        """Return the stream that goes on where one of the same model was saved."""
        state, about = read_tensor_file(Path(path))
        if about.get("kind") != "stream":
            raise RunError(f"{path}: expected the state of a stream")
        if about.get("of") != self._of:
            raise RunError(f"{path} is the state of a stream of another model: its held-out scores differ")
        threshold = AdaptiveThreshold.of_state({name: t.numpy() for name, t in state.items()}, self._held_out)
        return Stream(self._judge, self._shape, self._held_out, threshold)

    @property
    def _of(self) -> str:
        return digest({"held_out": torch.from_numpy(np.asarray(self._held_out, dtype=np.float64))})
