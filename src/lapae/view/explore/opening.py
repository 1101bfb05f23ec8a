"""What the page is told once, when it opens."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from lapae import __version__
from lapae.view.describe import labelings, summary
from lapae.view.display import in_units, short, shorts
from lapae.view.explore.explorer import Explorer
from lapae.view.pictures import palette


def opening(explorer: Explorer, name: str, no_data: str | None = None) -> dict[str, Any]:
    """The run, its map, and what there is to pick from; `no_data` says why there are no data."""
    model, data, space = explorer.model, explorer.data, explorer.space
    image = explorer.display.kind == "image"
    return {
        "version": __version__,
        "name": name,
        "data": model.space.name,
        "method": model.config.method.title,
        "summary": summary(model, data) if data is not None else "",
        "no_data": no_data,
        "uncertainty": _uncertainty(explorer),
        "spread": explorer.spread,
        "ellipse": explorer.method.stochastic and explorer.method.distinct_draws is None,
        "networks": explorer.n_samples if explorer.method.stochastic else 1,
        "shape": list(model.shape),
        "latent_dim": int(space.codes.shape[1]),
        "axes": [
            {"name": axis, "low": float(low), "high": float(high)}
            for axis, (low, high) in zip(space.names, space.limits, strict=True)
        ],
        "share": None if space.share is None else shorts(np.asarray(space.share)),
        "points": shorts(space.points),
        "index": explorer.index.tolist(),
        "labelings": labelings(data, explorer.index) if data is not None else [],
        "view": explorer.display.to_dict(),
        "named": None if image else _named(explorer),
        "most": model.space.most if image else None,
        "side": explorer.side,
        "top": short(explorer.top),
        "palette": base64.b64encode(palette()).decode(),
        "splits": {split: len(part) for split, part in explorer.splits().items()},
    }


def _named(explorer: Explorer) -> list[dict[str, Any]]:
    """Every value of a datum: its name, and the range of the data, in their units."""
    flat = in_units(explorer.model, explorer.shown)
    flat = np.where(np.isnan(flat).all(0), 0.0, flat)
    low, high = np.nanpercentile(flat, [0.5, 99.5], axis=0)
    names = explorer.model.space.feature_names or [str(i) for i in range(flat.shape[1])]
    return [{"name": name, "low": short(a), "high": short(b)} for name, a, b in zip(names, low, high, strict=True)]


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
