"""What the page is told once, when it opens."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from lapae import __version__
from lapae.view.describe import summary
from lapae.view.display import short
from lapae.view.explore.explorer import Explorer
from lapae.view.pictures import palette


def opening(explorer: Explorer, name: str, no_data: str | None = None) -> dict[str, Any]:
    """The run, its map, and what there is to pick from; `no_data` says why there are no data."""
    model, material, space = explorer.model, explorer.material, explorer.space
    image = explorer.display.kind == "image"
    return {
        "version": __version__,
        "name": name,
        "data": model.space.name,
        "method": model.config.method.title,
        "summary": summary(model),
        "no_data": no_data,
        "uncertainty": _uncertainty(explorer),
        "spread": explorer.spread,
        "ellipse": explorer.method.stochastic and explorer.method.distinct_draws is None,
        "networks": explorer.n_samples if explorer.method.stochastic else 1,
        "shape": list(model.shape),
        "latent_dim": int(space.codes.shape[1]),
        **space.to_dict(),
        "index": explorer.index.tolist(),
        "labelings": material.labelings(explorer.index),
        "view": explorer.display.to_dict(),
        "named": None if image else explorer.display.described(np.arange(len(explorer.display.names))),
        "most": model.space.most if image else None,
        "side": explorer.side,
        "top": short(explorer.top),
        "palette": base64.b64encode(palette()).decode(),
        "splits": {split: len(part) for split, part in material.parts.items()},
    }


def _uncertainty(explorer: Explorer) -> str:
    """What the deviation is, for this method."""
    if explorer.method.distinct_draws is not None:
        n = min(explorer.n_samples, explorer.method.distinct_draws)
        return (
            f"Members of an ensemble have a latent space each: the map is that of the first, without a deviation. "
            f"For a datum, the deviation is between {n} members."
        )
    if not explorer.spread:
        return "This method says one thing at a code: there is no deviation to show."
    unit = "pixels from 0 to 1" if explorer.display.kind == "image" else "standardised values"
    if explorer.method.learns_variance:
        return f"The deviation is the noise of the data as this method learned it; sums are over {unit}."
    return (
        f"The deviation is how much {explorer.n_samples} sampled networks disagree, one standard deviation; "
        f"sums are over {unit}."
    )
