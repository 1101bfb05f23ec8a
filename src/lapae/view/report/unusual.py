"""The most unusual data: which they are, how unusual, and the values that speak against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lapae.runs.numbers import number
from lapae.tasks.base import subset
from lapae.view.display import Display, curves_of, image_of, place
from lapae.view.judge import RATE, Judge
from lapae.view.material import Material
from lapae.view.pictures import amounts, data_url, pixels, shrink

MOST_JUDGED, MOST_VALUES = 4000, 2**24
"""Data, and values of data, that are looked through at most."""
NAMED = 4
"""Values named of a datum."""


@dataclass(frozen=True)
class Scores:
    """How unusual the data of each part are."""

    part: np.ndarray
    """(n,): name of the part."""
    index: np.ndarray
    """(n,): number within the part."""
    p: np.ndarray
    surprise: np.ndarray
    complete: bool
    """Whether all data were looked at."""

    def of(self, part: str) -> np.ndarray:
        """The surprises of a part."""
        return self.surprise[self.part == part]


def score(judge: Judge, material: Material, seed: int) -> Scores:
    """Judge the data, or as many of each part as there is time for: those of training may be many."""
    values = max(1, int(np.prod(judge.model.shape)))
    limit = max(100, min(MOST_JUDGED, MOST_VALUES // values))
    found: list[tuple[str, int, float, float]] = []
    for name, split in material.parts.items():
        index = subset(split, limit, seed)
        for start in range(0, len(index), 512):
            some = index[start : start + 512]
            surprise, p = judge.scores(np.asarray(split.x[some]), itself=name == "calibration")
            found += [(name, *row) for row in zip(some.tolist(), p, surprise, strict=True)]
    part, index, p, surprise = (np.array(column) for column in zip(*found, strict=True))
    complete = len(found) == sum(map(len, material.parts.values()))
    return Scores(part, index, p, surprise, complete)


def most_unusual(judge: Judge, material: Material, display: Display, scores: Scores, n: int) -> list[dict[str, Any]]:
    """The n data of the largest surprise, for the page."""
    order = np.argsort(-np.nan_to_num(scores.surprise, nan=-np.inf), kind="stable")[:n]
    return [_datum(judge, material, display, scores, int(i)) for i in order]


def _datum(judge: Judge, material: Material, display: Display, scores: Scores, i: int) -> dict[str, Any]:
    part, index = str(scores.part[i]), int(scores.index[i])
    split, space = material.parts[part], judge.model.space
    x = np.asarray(split.x[np.array([index])])
    judged = judge(x)
    card: dict[str, Any] = {
        "id": material.id(part, index),
        "part": part,
        "index": index,
        "label": material.label(part, index),
        "p": number(float(scores.p[i]), 2),
        "rare": bool(scores.p[i] <= RATE),
    }
    if display.kind == "image":
        shown = shrink(image_of(space, x), 128), shrink(image_of(space, judged.mean), 128)
        blame = shrink(image_of(space, judged.contribution, scaled=False), 128)
        lossy = shown[0].shape[1] > 1 and shown[0].shape[-1] > 48
        given, expected = (data_url(pixels(image)[0], lossy=lossy) for image in shown)
        top = float(blame.mean(1).max())
        return card | {"input": given, "mean": expected, "blame": data_url(amounts(blame, top)[0], colours=True)}
    flat = [v.reshape(-1) for v in (x, judged.mean, judged.low, judged.high, judged.contribution)]
    card["values"] = _blamed(judge, display, *flat)
    if display.kind == "lines":
        card["strips"] = curves_of(display, *flat[:4])
    return card


def _blamed(
    judge: Judge,
    display: Display,
    x: np.ndarray,
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    contribution: np.ndarray,
) -> list[dict[str, Any]]:
    """The values that add most to the surprise of a datum, in words and with places along their range."""
    total = max(float(contribution.sum()), 1e-300)
    order = [int(j) for j in np.argsort(-contribution, kind="stable")[:NAMED] if contribution[j] > 0]
    found = []
    for j in order:
        least, most = display.range(j)
        seen = [least, most, low[j], high[j], x[j]]
        least, most = float(np.nanmin(seen)), float(np.nanmax(seen))
        found.append(
            {
                "name": display.names[j],
                "value": display.text(j, x[j]),
                "expected": display.expected(j, mean[j], low[j], high[j]),
                "outside": not low[j] <= x[j] <= high[j],
                "share": round(100 * float(contribution[j]) / total),
                "at": place(float(x[j]), least, most),
                "from": place(float(low[j]), least, most),
                "to": place(float(high[j]), least, most),
                "at_mean": place(float(mean[j]), least, most),
            }
        )
    return found
