"""Example reconstructions of random samples that training has not seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from lapae.runs.numbers import number
from lapae.view.display import Display, curves_of, triples
from lapae.view.named_splits import WORDS, NamedSplits
from lapae.view.verdicts import Verdicts

MOST_COLUMNS = 12
"""Maximum number of columns shown per sample."""


def examples(verdicts: Verdicts, splits: NamedSplits, display: Display, n: int, seed: int) -> dict[str, Any]:
    """Return inputs, their reconstructions, and the widths of their intervals."""
    part = splits.held_out("test", "calibration", "validation")
    split = splits.parts[part]
    n = n if display.kind == "image" else max(2, n // 2)
    index = np.sort(np.random.default_rng(seed).permutation(len(split))[:n])
    x = np.asarray(split.x[index])
    mean, low, high = verdicts.reconstruction(x)
    cards = [splits.card(part, int(i), p) for i, p in zip(index, verdicts.scores(x)[1], strict=True)]
    found: dict[str, Any] = {"among": WORDS[part], "cards": cards}
    if display.kind == "image":
        pictures, top = triples(verdicts.model.space, x, mean, (high - low) / 2)
        for card, urls in zip(cards, pictures, strict=True):
            card |= zip(("input", "mean", "width"), urls, strict=True)
        return found | {"top": number(top, 3)}
    flat = [v.reshape(len(x), -1) for v in (x, mean, low, high)]
    for card, *values in zip(cards, *flat, strict=True):
        if display.kind == "lines":
            card["strips"] = curves_of(display, *values)
        else:
            card["rows"] = [
                display.row(int(j), *(float(v[j]) for v in values)) for j in display.features[:MOST_COLUMNS]
            ]
    return found | {"hidden": max(0, len(display.names) - MOST_COLUMNS) if display.kind == "bars" else 0}
