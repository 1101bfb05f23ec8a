"""Data as the page shows them: bytes of pixels, or numbers in the units of the data."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from torch import Tensor

from lapae.data.scaling import Scaling
from lapae.view.report.sprite import amounts, pixels, shrink
from lapae.view.report.views import short, shorts, storage, storage_deviation

LONGEST = 256
"""Pixels of a picture's longer side at most."""


def picture(image: Tensor) -> dict[str, Any]:
    """An image (C, H, W) from 0 to 1."""
    return _bytes(pixels(shrink(image[None], LONGEST))[0])


def deviation_picture(deviation: Tensor, top: float | None = None) -> dict[str, Any]:
    """A deviation (C, H, W) as amounts from 0 to `top`, its own largest where not given."""
    small = shrink(deviation[None], LONGEST)
    top = float(small.mean(1).max()) if top is None else top
    return _bytes(amounts(small, top)[0]) | {"top": short(top)}


def numbers(scaling: Scaling, x: Tensor) -> list[float]:
    """A datum (*shape) of model space in storage units, flat."""
    return shorts(storage(scaling, x[None])[0])


def deviations(scaling: Scaling, deviation: Tensor) -> list[float]:
    """A deviation (*shape) of model space in storage units, flat."""
    return shorts(storage_deviation(scaling, deviation[None])[0])


def values(x: np.ndarray) -> list[float | None]:
    """A datum (*shape) in storage units as it is sent back: flat, None where missing."""
    return [None if np.isnan(v) else v for v in np.asarray(x, np.float64).reshape(-1).tolist()]


def exact(code: np.ndarray) -> list[float]:
    """A code (K,) as it is sent back, to decode around it."""
    return [float(f"{v:.8g}") if np.isfinite(v) else 0.0 for v in code]


def _bytes(array: np.ndarray) -> dict[str, Any]:
    """(H, W) or (H, W, 3) bytes."""
    h, w, *c = array.shape
    return {"h": h, "w": w, "c": c[0] if c else 1, "data": base64.b64encode(array.tobytes()).decode()}
