"""Detection: does the model's anomaly score separate unusual samples from normal ones, and how many does it flag?

Unusual samples are those of another file or data set, or rows of a table that a label column marks as unusual.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from lapae.config.fields import Count, Whole, check
from lapae.errors import ConfigError
from lapae.evaluate.held_out import held_out
from lapae.evaluate.ranking import HEADS, Detection, detection
from lapae.runs.results import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.data import Data
    from lapae.model import Model

YES = ("1", "true", "yes", "anomaly", "anomalous", "outlier", "abnormal", "unusual")
"""Labels that mean "unusual" in a column of two labels."""


@dataclass(frozen=True)
class Scored:
    """Samples with their anomaly scores."""

    score: np.ndarray
    """(n,) higher is more unusual."""
    flagged: float
    """Share with a p-value of at most the false alarm rate."""


@dataclass(frozen=True)
class DetectionResult:
    """How well unusual samples are separated from normal ones."""

    rate: float
    """False alarm rate of the model."""
    normal: Scored
    unusual: dict[str, Scored]
    detections: dict[str, Detection]
    split: str
    """Which samples are the normal ones: "test", "validation" or "calibration"."""

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, by set of unusual samples."""
        sets = {
            name: {"n": len(found.score), "flagged": found.flagged, **self.detections[name].to_dict()}
            for name, found in self.unusual.items()
        }
        normal = {"n": len(self.normal.score), "flagged": self.normal.flagged}
        return {"false_alarm_rate": self.rate, "normal": normal, "split": self.split, "sets": sets}

    def table(self) -> Table:
        """Return one row per set."""
        rows: list[tuple[Any, ...]] = [
            (f"normal ({self.split})", len(self.normal.score), None, None, None, round(self.normal.flagged, 3))
        ]
        for name, found in self.unusual.items():
            rows.append((name, len(found.score), *self.detections[name].cells(), round(found.flagged, 3)))
        return Table(("samples", "n", *HEADS, f"flagged at {self.rate:g}"), rows)

    def figures(self) -> dict[str, Figure]:
        """ROC curves, and histograms of the anomaly score."""
        from lapae.evaluate.figures import histograms, roc_curves

        scores = {"normal samples": self.normal.score, **{name: found.score for name, found in self.unusual.items()}}
        return {
            "detection_roc": roc_curves(self.detections, "normal against unusual samples"),
            "detection_scores": histograms({"anomaly score": scores}),
        }


@dataclass(frozen=True)
class DetectionOptions:
    """Detection of unusual samples by the anomaly score."""

    against: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE")] = ()
    """Files, folders or named data sets with unusual samples."""
    label_column: str | None = None
    """Column of the table that says which rows are unusual; default: the label column of the run."""
    unusual: tuple[str, ...] = ()
    """Labels of unusual rows; default: 1, true or yes, if there are two labels."""
    data_dir: str | None = None
    """Folder of the named data sets; default: $LAPAE_DATA."""
    limit: Count | None = None
    """Number of samples of each set, at most."""
    bootstrap: Whole = 500
    """Bootstrap resamples for the intervals."""
    seed: Whole = 0
    """Seed of choices and resamples."""


def evaluate(model: Model, data: Data, options: DetectionOptions) -> DetectionResult:
    """Tell held-out samples from those of other sources, or by their labels."""
    check(options)
    if not options.against and data.held_out.y is None:
        raise ConfigError(
            "the task 'detection' needs unusual samples: other files with --against FILE, or a column of labels with "
            "--label-column NAME"
        )
    held = held_out(data, options.limit, options.seed)
    normal, outside = held.x, {}
    if not options.against or options.unusual:
        normal, outside = by_label(held.x, held.y, data.label_names, options.unusual)
    for source in options.against:
        x = read(model, source, options.data_dir)
        rng = np.random.default_rng(options.seed)
        chosen = rng.permutation(len(x))[: options.limit]
        outside[source] = x[np.sort(chosen)]
    return detect(model, normal, outside, split=held.split, bootstrap=options.bootstrap, seed=options.seed)


def detect(
    model: Model,
    normal: np.ndarray,
    unusual: Mapping[str, np.ndarray],
    *,
    split: str = "test",
    bootstrap: int = 500,
    seed: int = 0,
) -> DetectionResult:
    """Tell normal samples (n, *shape), in the units of the data, from unusual ones (m, *shape), by name.

    `split` says what the normal samples are; `bootstrap` is the number of resamples for the intervals.
    """
    rate = model.rule().rate
    inside = _scored(model, normal, rate, "normal samples")
    outside = {name: _scored(model, x, rate, name) for name, x in unusual.items()}
    how = {"n_bootstrap": bootstrap, "seed": seed}
    detections = {name: detection(inside.score, found.score, **how) for name, found in outside.items()}
    return DetectionResult(rate, inside, outside, detections, split)


def by_label(
    x: np.ndarray, y: np.ndarray | None, names: tuple[str, ...] | None, unusual: tuple[str, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Divide samples x (n, *shape) by their classes y (n,) into normal ones, and unusual ones by label.

    `names` are those of the classes; by default the unusual label is one of `YES`, if there are two.
    """
    if y is None or y.ndim != 1:
        raise ConfigError(
            "the task 'detection' needs one label per row (--label-column NAME), and these rows have none"
        )
    labels = names or tuple(map(str, range(int(y.max()) + 1)))
    found = sorted({labels[i] for i in y.tolist()})
    if not unusual:
        unusual = tuple(label for label in labels if label.lower().removesuffix(".0") in YES)
        if len(labels) != 2 or len(unusual) != 1:
            raise ConfigError(f"which labels are unusual? Name them with --unusual; there are {', '.join(labels[:20])}")
    if strange := [label for label in unusual if label not in labels]:
        raise ConfigError(f"there is no label {strange[0]!r}: expected some of {', '.join(labels[:20])}")
    present = [label for label in unusual if label in found]
    if not present or len(present) == len(found):
        kind = "unusual" if not present else "normal"
        raise ConfigError(f"no held-out row is {kind}: the labels of the {len(y):,} rows are {', '.join(found[:20])}")
    each = {label: x[y == labels.index(label)] for label in present}
    return x[~np.isin(y, [labels.index(label) for label in present])], each


def read(model: Model, source: str, data_dir: str | None = None) -> np.ndarray:
    """Read the samples (n, *shape) of a file, a folder, or a named data set, in the units of the model's data."""
    from lapae.data import load
    from lapae.data.named import DATASETS
    from lapae.data.opening import read_all

    if source not in DATASETS or Path(source).exists():
        return read_all(source, model.space).x
    other = load(source, data_dir=data_dir)
    if other.shape != model.shape:
        raise ConfigError(f"the model takes data of shape {model.shape}, those of {source!r} are {other.shape}")
    x = np.asarray(other.held_out.x)
    if model.space.kind != "image":
        return x
    return model.space.to_user(other.space.convert(x))  # images of any set lie in [0, 1] by their own scaling


def _scored(model: Model, x: np.ndarray, rate: float, name: str) -> Scored:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing observed")  # such rows have no score and are left out
        score, p = model.anomaly_score(x)
    known = ~np.isnan(score)
    if not known.any():
        raise ConfigError(f"{name}: all values of all samples are missing")
    return Scored(score[known], float((p[known] <= rate).mean()))
