"""Pictures of images, red where they are unusual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.cli.tiles import corners_of
from lapae.errors import ConfigError
from lapae.runs.files import whole_folder
from lapae.runs.outputs import save_image
from lapae.space.tiles import fold_tiles

if TYPE_CHECKING:
    from lapae.cli.new_data import Rows
    from lapae.model import Model
from lapae.score.explain import explain

HELD, RARE, FULL = 200, 0.999, 4.0
"""Held-out images that say how unusual a pixel is, the share of their pixels that stay below a level, and how many
times that level is full red. In an image that is more unusual, half of its most unusual pixel is."""
RED = np.array([220.0, 20.0, 30.0])


def pixels(model: Model, x: Any, contribution: Any) -> dict[str, Any]:
    """Return images x (n, *shape) in gray and how unusual each of their pixels is, (n, H, W) each.

    Args:
        model: the model.
        x: the images.
        contribution: what each of their values adds to the anomaly score, (n, *shape).
    """
    gray, unusual = (model.space.arrange(part).mean(1) for part in (np.asarray(x), contribution))
    return {"gray": np.nan_to_num(gray / model.space.most), "unusual": unusual}


def usual(model: Model) -> float:
    """Return how unusual a pixel is that few pixels of held-out images exceed."""
    assert model.calibration is not None
    rows = model.calibration.reference.rows[:HELD]
    found = explain(model.calibration.score, model.predict, rows).mean(1)
    return float(np.quantile(found.nan_to_num().numpy(), RARE)) + 1e-12


def writing(blocks: Iterator[Rows], folder: Path, model: Model) -> Iterator[Rows]:
    """Yield the blocks without what `pixels` adds: a picture of each image is written into `folder`, under its name."""
    unit = None
    with whole_folder(folder) as root:
        for rows in blocks:
            unit = usual(model) if unit is None else unit
            gray, unusual = rows.found.pop("gray"), rows.found.pop("unusual")
            files = [cells[0] for cells in rows.cells]
            if model.space.tile:
                gray, unusual = (fold_tiles(part, corners_of(rows.cells))[None] for part in (gray, unusual))
            for image, heat, file in zip(gray, unusual, files, strict=False):
                target = (root / file).with_suffix(".png")
                if target.exists():
                    raise ConfigError(f"two images would be written as {target.relative_to(root)}: rename one")
                target.parent.mkdir(parents=True, exist_ok=True)
                save_image(target, overlay(image, heat / max(FULL * unit, heat.max() / 2)))
            yield rows


def overlay(image: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """A gray image (H, W) from 0 to 1 with `heat` (H, W), full at 1, over it: uint8 (H, W, 3)."""
    red = np.clip(heat, 0, 1)[..., None]
    return np.clip(255 * image[..., None] * (1 - red) + RED * red, 0, 255).astype(np.uint8)
