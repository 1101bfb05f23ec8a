"""Checks of a space that is read from a file, which may be damaged or forged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from lapae.space.columns import Column
from lapae.space.features import Features
from lapae.space.layout import Layout
from lapae.space.space import Fit, Kind, Space

KNOWN = {"kind": get_args(Kind), "layout": get_args(Layout), "fit": (None, *get_args(Fit))}
AXES = {("image", "plain"): 3, ("image", "gray"): 2, ("image", "last"): 3, ("series", "plain"): 2}
"""Axes of a sample by kind and layout; a table or an array may have any number, and is plain."""


def checked(values: Mapping[str, Any]) -> Space:
    """Return the space with these fields; raise ValueError, TypeError or KeyError if they are invalid."""
    shape, columns, labels, stride = (values[key] for key in ("shape", "columns", "label_names", "stride"))
    shape = tuple(shape)
    if not shape or not all(type(n) is int and n > 0 for n in (*shape, values["n_data"], stride or 1)):
        raise ValueError(f"shape {shape}, n_data {values['n_data']!r}, stride {stride!r}: expected numbers above 0")
    for name, choices in KNOWN.items():
        if values[name] not in choices:
            raise ValueError(f"{name} {values[name]!r}: expected one of {', '.join(map(str, choices))}")
    kind, layout = values["kind"], values["layout"]
    if (layout != "plain" or kind in ("image", "series")) and len(shape) != AXES.get((kind, layout)):
        raise ValueError(f"{kind} of layout {layout!r} for data of shape {shape}")
    columns = None if columns is None else tuple(map(Column.from_dict, columns))
    if columns is not None and (kind not in ("table", "series") or len(columns) != shape[-1]):
        raise ValueError(f"{len(columns)} columns for a {kind} of shape {shape}")
    left_out = dict(values.get("left_out", {}))
    if not all(isinstance(name, str) and isinstance(value, str | None) for name, value in left_out.items()):
        raise TypeError(f"columns that are left out must be text, with text or None, got {left_out!r}")
    unit = values.get("unit")
    if unit is not None and not 0 < float(unit) < np.inf:
        raise ValueError(f"unit {unit!r}: expected a number above 0, or none")
    offset, scale = (np.asarray(values[key], dtype=np.float64) for key in ("offset", "scale"))
    if not (np.isfinite(offset).all() and np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError("offset and scale must be finite, and the scale above 0")
    fields = {
        "shape": shape,
        "columns": columns,
        "left_out": left_out,
        "label_names": None if labels is None else tuple(map(str, labels)),
        "offset": offset if offset.ndim else float(offset),
        "scale": scale if scale.ndim else float(scale),
        "missing": bool(values["missing"]),
        "tile": bool(values.get("tile", False)),
        "name": str(values["name"]),
        "unit": None if unit is None else float(unit),
        "interval": None if values.get("interval") is None else float(values["interval"]),
        "features": None if values.get("features") is None else Features.from_dict(values["features"]),
    }
    space = Space(**{**values, **fields})
    if not all(_broadcasts(v.shape, space.model_shape) for v in (offset, scale)) or (kind == "image" and scale.ndim):
        raise ValueError(f"offset and scale of shapes {offset.shape} and {scale.shape} for data of shape {shape}")
    return space


def _broadcasts(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    rest = whole[len(whole) - len(shape) :]
    return len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(shape, rest, strict=True))
