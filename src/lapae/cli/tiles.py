"""Large images: from results for tiles to results for each image and its pixels. A block contains one image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.cli.values import Made
from lapae.space.tiles import fold_tiles

if TYPE_CHECKING:
    from lapae.cli.new_data import Rows
    from lapae.model import Judgement, Model


def image_scores(model: Model, tiles: Judgement) -> dict[str, Any]:
    """Return the anomaly score of an image from those of its tiles, its p-value, and its most unusual tile."""
    assert model.calibration is not None
    most, p_value = model.calibration.tiles.compare(tiles.anomaly_score, tiles.p_value)
    found = {"anomaly_score": most, "p_value": p_value, "worst": int(tiles.anomaly_score.argmax())}
    return {name: np.array([value]) for name, value in found.items()}


def image_rows(blocks: Iterator[Rows]) -> Iterator[Rows]:
    """Yield the blocks of images with one row each: the file and the position of its most unusual tile."""
    for rows in blocks:
        yield replace(rows, cells=[rows.cells[int(rows.found["worst"][0])]])


def corners_of(cells: list[list[str]]) -> np.ndarray:
    """Return the upper left corners (m, 2) of the tiles of a block."""
    return np.array([[int(row), int(column)] for _, row, column in cells])


def made_images(blocks: Iterator[Made]) -> Iterator[Made]:
    """Yield whole images made of their tiles: where tiles overlap, values and ends of intervals are means."""
    for made in blocks:
        at = corners_of(made.block.cells)
        x, ours, *ends = (fold_tiles(part, at)[None] for part in (made.x, made.ours, *(made.ends or ())))
        block = replace(made.block, names=["file"], cells=[made.block.cells[0][:1]])
        yield Made(block, x, ours > 0, (ends[0], ends[1]) if ends else None)
