"""The most unusual samples: which they are, how unusual, and the values that make them so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lapae.calibrate.calibration import MOST_CALIBRATION_ROWS
from lapae.data.source import even
from lapae.model import Model
from lapae.score.patches import to_pixels
from lapae.view.display import Display, curves_of, triples
from lapae.view.heat import Reddening, overlay
from lapae.view.named_splits import NamedSplits
from lapae.view.pictures import data_url, pixels
from lapae.view.verdicts import Verdicts

MOST_SCORED, MOST_VALUES = 4000, 2**24
"""Maximum number of samples, and of their values, that are scored."""
NAMED = 4
"""Number of values named per sample."""


@dataclass(frozen=True)
class Scores:
    """Anomaly scores of the samples of each part."""

    part: np.ndarray
    """(n,): name of the part of each sample."""
    index: np.ndarray
    """(n,): index within the part."""
    p: np.ndarray
    anomaly_score: np.ndarray
    complete: bool
    """Whether all samples were scored."""
    left_out: bool = False
    """Whether they are the calibration samples, in their order, each scored as if it had been left out."""


def score(verdicts: Verdicts, splits: NamedSplits, seed: int) -> Scores:
    """Score the samples, or as many of each part as there is time for: there may be many training samples."""
    if (known := left_out(verdicts, splits)) is not None:
        return known
    found: list[tuple[str, int, float, float]] = []
    for name, split in splits.parts.items():
        index = verdicts.some(split, seed, MOST_SCORED, MOST_VALUES)
        for start in range(0, len(index), 512):
            some = index[start : start + 512]
            anomaly_score, p = verdicts.scores(np.asarray(split.x[some]), itself=name == "calibration")
            found += [(name, *row) for row in zip(some.tolist(), p, anomaly_score, strict=True)]
    part, index, p, anomaly_score = (np.array(column) for column in zip(*found, strict=True))
    complete = len(found) == sum(map(len, splits.parts.values()))
    return Scores(part, index, p, anomaly_score, complete)


def left_out(verdicts: Verdicts, splits: NamedSplits) -> Scores | None:
    """Return the scores of the images that a model of features was trained on, each as if it had been left out; None
    for other models, and for other samples."""
    scores = verdicts.calibration.reference.scores.numpy()
    parts = {name: splits.parts[name] for name in ("train", "validation", "calibration") if name in splits.parts}
    index = [even(len(split), MOST_CALIBRATION_ROWS) for split in parts.values()]
    if verdicts.model.space.features is None or sum(map(len, index)) != len(scores):
        return None
    part = np.repeat(list(parts), [len(some) for some in index])
    p = (scores >= scores[:, None]).sum(1) / len(scores)
    complete = sum(map(len, parts.values())) == len(scores)
    return Scores(part, np.concatenate(index), p, scores, complete, left_out=True)


def most_unusual(
    verdicts: Verdicts, splits: NamedSplits, display: Display, scores: Scores, n: int
) -> list[dict[str, Any]]:
    """Return the n samples with the largest anomaly score, for the page."""
    order = np.argsort(-np.nan_to_num(scores.anomaly_score, nan=-np.inf), kind="stable")[:n]
    return [_sample(verdicts, splits, display, scores, int(i)) for i in order]


def photo(model: Model, x: np.ndarray, own: int | None) -> dict[str, str]:
    """Return an image (1, *shape), and the image red where its features are unusual, as picture URLs.

    Args:
        model: a model of features.
        x: the image.
        own: its index among the images that the score was fitted to, which is then fitted without it; None: none.
    """
    assert model.calibration is not None
    features, patches = model.space.features, model.calibration.score.patches
    assert features is not None
    assert patches is not None
    image = torch.from_numpy(features.arranged(x) / np.float32(features.most))
    (seen,) = pixels(image)
    found = patches(model.tensor(x), None if own is None else torch.tensor([own]))
    red = Reddening(model)(to_pixels(found, features.image[1:])[0].cpu().numpy())
    reddened = overlay(seen.reshape(*red.shape, -1), red)
    return {"input": data_url(seen, lossy=True), "blame": data_url(reddened, lossy=True)}


def _sample(verdicts: Verdicts, splits: NamedSplits, display: Display, scores: Scores, i: int) -> dict[str, Any]:
    part, index, p = str(scores.part[i]), int(scores.index[i]), float(scores.p[i])
    x = np.asarray(splits.parts[part].x[np.array([index])])
    card = splits.card(part, index, p) | {"part": part, "index": index, "rare": p <= verdicts.rate}
    if display.kind == "photo":
        return card | photo(verdicts.model, x, i if scores.left_out else None)
    verdict = verdicts(x)
    if display.kind == "image":
        ((given, expected, blame),), _ = triples(verdicts.model.space, x, verdict.mean, verdict.contribution)
        return card | {"input": given, "mean": expected, "blame": blame}
    *values, contribution = (v.reshape(-1) for v in (x, verdict.mean, verdict.low, verdict.high, verdict.contribution))
    total = max(float(contribution.sum()), 1e-300)
    order = [j for j in np.argsort(-contribution, kind="stable")[:NAMED] if contribution[j] > 0]
    card["values"] = [
        display.row(int(j), *(float(v[j]) for v in values), wide=True)
        | {"share": round(100 * float(contribution[j]) / total)}
        for j in order
    ]
    if display.kind == "lines":
        card["strips"] = curves_of(display, *values)
    return card
