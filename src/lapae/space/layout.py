"""Images: the position of their channels, and the range of their values."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from lapae.space.scaling import Source, chunks

Layout: TypeAlias = Literal["plain", "gray", "last"]
CHANNELS = (1, 3, 4)
LEAST_SIDE = 8
"""Minimum side of gray images of whole numbers, in pixels; smaller arrays are windows with few channels."""
TOPS = (1.0, 16.0, 255.0)
"""Greatest values that images have: floats, scikit-learn's digits, bytes."""


class Range(NamedTuple):
    """Properties of the values of an array, without NaN."""

    low: float
    high: float
    whole: bool
    """Whether all are whole numbers."""
    missing: bool = False


def range_of(x: Source) -> Range:
    """Return the range of the values of a source, read in chunks; (inf, -inf) if there are none."""
    found = Range(np.inf, -np.inf, True)
    for _, part in chunks(x):
        found = widened(found, part)
    return found


def widened(found: Range, part: np.ndarray) -> Range:
    """Return the range extended by the values of `part`."""
    if part.dtype.kind == "b":
        part = part.view(np.uint8)
    known = part[~np.isnan(part)] if part.dtype.kind == "f" else part
    missing = found.missing or known.size < part.size
    if not known.size:
        return found._replace(missing=missing)
    whole = found.whole and (part.dtype.kind != "f" or bool((known == np.rint(known)).all()))
    return Range(min(found.low, float(known.min())), max(found.high, float(known.max())), whole, missing)


def greatest(x: Source, values: Range | None = None) -> float | None:
    """Return the greatest value that images like x (n, *shape) can have; None if x are not images.

    Images are bytes, booleans, and numbers within [0, 1]; colour images also numbers within [0, 255], gray ones whole
    numbers within it of at least 8x8 pixels.
    """
    if x.dtype == np.uint8:
        return 255.0
    if x.dtype == np.bool_:
        return 1.0
    low, high, whole, _ = values or range_of(x)
    shape = x.shape[1:]
    floats = x.dtype.kind == "f"
    if not 0 <= low <= high <= TOPS[-1] or (not floats and len(shape) not in (2, 3)):
        return None
    if floats and high <= 1:
        return 1.0
    colour = len(shape) == 3 and (shape[0] in CHANNELS or shape[-1] in CHANNELS)
    gray = len(shape) == 2 and min(shape) >= LEAST_SIDE
    if not (colour and (whole or floats)) and not (gray and whole):
        return None
    return next(top for top in TOPS[1:] if high <= top)


def layout_of(shape: tuple[int, ...]) -> Layout:
    """Return the layout of images (H, W), (C, H, W) or (H, W, C)."""
    if len(shape) == 2:
        return "gray"
    return "last" if shape[0] not in CHANNELS and shape[-1] in CHANNELS else "plain"


def arranged(x: Any, layout: Layout) -> Any:
    """Return images (n, *shape), an array or a tensor, as (n, C, H, W)."""
    if layout == "gray":
        return x[:, None]
    if layout == "last":
        return np.moveaxis(x, -1, 1) if isinstance(x, np.ndarray) else x.movedim(-1, 1)
    return x


def restored(x: np.ndarray, layout: Layout) -> np.ndarray:
    """Return images (…, C, H, W) as (…, *shape)."""
    if layout == "gray":
        return np.squeeze(x, -3)
    return np.moveaxis(x, -3, -1) if layout == "last" else x
