"""Reconstructions of data to look at, drawn at random from those that training has not seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from lapae.runs.numbers import number
from lapae.view.display import Display, curves_of, triples
from lapae.view.named_splits import WORDS, Material
from lapae.view.verdicts import Judge

MOST_ROWS = 12
"""Columns of a datum that are shown."""


def examples(judge: Judge, material: Material, display: Display, n: int, seed: int) -> dict[str, Any]:
    """Inputs, what the model makes of them, and how wide its intervals are."""
    part = material.held_out("test", "calibration", "validation")
    split = material.parts[part]
    n = n if display.kind == "image" else max(2, n // 2)
    index = np.sort(np.random.default_rng(seed).permutation(len(split))[:n])
    x = np.asarray(split.x[index])
    mean, low, high = judge.reconstruction(x)
    cards = [material.card(part, int(i), p) for i, p in zip(index, judge.scores(x)[1], strict=True)]
    found: dict[str, Any] = {"among": WORDS[part], "cards": cards}
    if display.kind == "image":
        pictures, top = triples(judge.model.space, x, mean, (high - low) / 2)
        for card, urls in zip(cards, pictures, strict=True):
            card |= zip(("input", "mean", "width"), urls, strict=True)
        return found | {"top": number(top, 3)}
    flat = [v.reshape(len(x), -1) for v in (x, mean, low, high)]
    for card, *values in zip(cards, *flat, strict=True):
        if display.kind == "lines":
            card["strips"] = curves_of(display, *values)
        else:
            card["rows"] = [display.row(int(j), *(float(v[j]) for v in values)) for j in display.features[:MOST_ROWS]]
    return found | {"hidden": max(0, len(display.names) - MOST_ROWS) if display.kind == "bars" else 0}
