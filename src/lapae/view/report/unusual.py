"""The most unusual data: which they are, how unusual, and the values that speak against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lapae.view.display import Display, curves_of, triples
from lapae.view.named_splits import Material
from lapae.view.verdicts import Judge

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


def score(judge: Judge, material: Material, seed: int) -> Scores:
    """Judge the data, or as many of each part as there is time for: those of training may be many."""
    found: list[tuple[str, int, float, float]] = []
    for name, split in material.parts.items():
        index = judge.some(split, seed, MOST_JUDGED, MOST_VALUES)
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
    part, index, p = str(scores.part[i]), int(scores.index[i]), float(scores.p[i])
    x = np.asarray(material.parts[part].x[np.array([index])])
    judged = judge(x)
    card = material.card(part, index, p) | {"part": part, "index": index, "rare": p <= judge.rate}
    if display.kind == "image":
        ((given, expected, blame),), _ = triples(judge.model.space, x, judged.mean, judged.contribution)
        return card | {"input": given, "mean": expected, "blame": blame}
    *values, contribution = (v.reshape(-1) for v in (x, judged.mean, judged.low, judged.high, judged.contribution))
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
