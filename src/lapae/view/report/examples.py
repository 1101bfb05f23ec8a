"""Reconstructions of data to look at, drawn at random from those that training has not seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from lapae.runs.numbers import number
from lapae.view.display import Display, curves_of, image_of, place
from lapae.view.judge import Judge
from lapae.view.material import WORDS, Material
from lapae.view.pictures import amounts, data_url, pixels, shrink

MOST_ROWS = 12
"""Columns of a datum that are shown."""


def examples(judge: Judge, material: Material, display: Display, n: int, seed: int) -> dict[str, Any]:
    """Inputs, what the model makes of them, and how wide its intervals are."""
    part = material.held_out("test", "calibration", "validation")
    split, space = material.parts[part], judge.model.space
    n = n if display.kind == "image" else max(2, n // 2)
    index = np.sort(np.random.default_rng(seed).permutation(len(split))[:n])
    x = np.asarray(split.x[index])
    mean, low, high = judge.reconstruction(x)
    _, p_values = judge.scores(x)
    cards: list[dict[str, Any]] = [
        {"id": material.id(part, int(i)), "label": material.label(part, int(i)), "p": number(float(p), 2)}
        for i, p in zip(index, p_values, strict=True)
    ]
    found: dict[str, Any] = {"among": WORDS[part], "cards": cards}
    if display.kind == "image":
        inputs, means = (shrink(image_of(space, v), 128) for v in (x, mean))
        width = shrink(image_of(space, (high - low) / 2, scaled=False), 128)
        top = float(width.mean(1).max())
        lossy = inputs.shape[1] > 1 and inputs.shape[-1] > 48
        pictures = zip(pixels(inputs), pixels(means), amounts(width, top), strict=True)
        for card, (given, mean, doubt) in zip(cards, pictures, strict=True):
            card |= {"input": data_url(given, lossy=lossy), "mean": data_url(mean, lossy=lossy)}
            card["width"] = data_url(doubt, colours=True)
        return found | {"top": number(top, 3)}
    flat = [v.reshape(len(x), -1) for v in (x, mean, low, high)]
    for card, *values in zip(cards, *flat, strict=True):
        if display.kind == "lines":
            card["strips"] = curves_of(display, *values)
        else:
            card["rows"] = [_row(display, int(j), *(float(v[j]) for v in values)) for j in display.features[:MOST_ROWS]]
    return found | {"hidden": max(0, len(display.names) - MOST_ROWS) if display.kind == "bars" else 0}


def _row(display: Display, j: int, x: float, mean: float, low: float, high: float) -> dict[str, Any]:
    """A value of a datum, with places from 0 to 100 along the range of the data."""
    least, most = display.range(j)
    missing = x != x
    return {
        "name": display.names[j],
        "input": display.text(j, x),
        "expected": display.expected(j, mean, low, high),
        "at_input": None if missing else place(x, least, most),
        "at_mean": place(mean, least, most),
        "from": place(low, least, most),
        "to": place(high, least, most),
        "outside": not missing and not low <= x <= high,
    }
