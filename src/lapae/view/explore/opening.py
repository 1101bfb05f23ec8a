"""Data sent to the page once, when it opens."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np

from lapae import __version__
from lapae.model import Model
from lapae.view.describe import summary
from lapae.view.display import image_of, short
from lapae.view.explore.explorer import Explorer, values
from lapae.view.pictures import data_url, palette, pixels, shrink, tiled
from lapae.view.web import REPORT

THUMBNAIL, HOVERED = 32, 5
"""Pixels along the longer side of a thumbnail, and columns of a row shown under the pointer."""


def opening(explorer: Explorer, name: str, no_data: str | None = None) -> dict[str, Any]:
    """Return the run, its map, and what there is to pick from; `no_data` says why there are no data."""
    model, splits, space, display = explorer.model, explorer.splits, explorer.space, explorer.display
    main = splits.main if splits.parts else None
    return {
        "version": __version__,
        "name": name,
        "data": model.space.name,
        "method": model.config.method.title,
        "summary": summary(model),
        "no_data": no_data,
        "report": report_of(model) is not None,
        "from_others": model.from_others,
        "uncertainty": _uncertainty(explorer),
        "spread": explorer.spread,
        "shape": list(explorer.shape),
        "latent_dim": int(space.codes.shape[1]),
        **space.to_dict(),
        "main": main,
        "index": explorer.index.tolist(),
        "ids": [] if main is None else [splits.id(main, int(i)) for i in explorer.index],
        "labelings": splits.labelings(explorer.index),
        "view": display.to_dict(),
        "named": None if explorer.image else display.described(np.arange(len(display.names))),
        "hover": _hover(explorer),
        "most": model.space.most if explorer.image else None,
        "side": explorer.side,
        "top": short(explorer.top),
        "palette": base64.b64encode(palette()).decode(),
        "splits": {split: len(part) for split, part in splits.parts.items()},
    }


def report_of(model: Model) -> Path | None:
    """Path of the report in the run folder of a model, or None."""
    path = None if model.path is None else Path(model.path) / REPORT
    return path if path is not None and path.is_file() and not path.is_symlink() else None


def _hover(explorer: Explorer) -> dict[str, Any]:
    """Return what is shown of the sample under the pointer: a small picture, a few columns, or a line."""
    points, display = explorer.points, explorer.display
    if explorer.image:
        small = pixels(shrink(image_of(explorer.model.space, points), THUMBNAIL))
        columns = int(np.ceil(np.sqrt(len(small))))
        blank = np.zeros((columns * -(-len(small) // columns) - len(small), *small.shape[1:]), np.uint8)
        sheet = tiled(np.concatenate([small, blank]), columns)
        return {"sheet": data_url(sheet, lossy=sheet.ndim == 3), "columns": columns, "size": list(small.shape[2:0:-1])}
    flat = points.reshape(len(points), -1).astype(np.float64)
    chosen = display.features[:HOVERED] if display.kind == "bars" else display.features[display.strips[0]]
    return {"values": [values(row) for row in flat[:, chosen]], "of": display.described(chosen)}


def _uncertainty(explorer: Explorer) -> str:
    """Explain what the standard deviation is, for this method."""
    if not explorer.method.shared_codes:
        return (
            "Each member of an ensemble has its own latent space: the map is that of the first, without a standard "
            "deviation."
        )
    if not explorer.spread:
        return "This method has one answer at each code: there is no standard deviation to show."
    unit = "pixels from 0 to 1" if explorer.image else "standardised values"
    if explorer.method.learns_variance:
        return f"The standard deviation is the noise of the data as this method learned it; sums are over {unit}."
    how = "the weights are uncertain" if explorer.n_samples is None else f"{explorer.n_samples} networks disagree"
    return f"The standard deviation says how far {how}; sums are over {unit}."
