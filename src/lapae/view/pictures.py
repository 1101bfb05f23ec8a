"""Images in the forms that the pages need: bytes in a URL, in JSON, or many small tiles as one sprite."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

TILE = 32
"""Maximum number of pixels along the longer side of a tile."""
LONGEST = 256
"""Maximum number of pixels along the longer side of a picture in JSON."""


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether data of a shape (C, H, W) can be shown as pictures."""
    return len(shape) == 3 and shape[0] in (1, 3, 4)


def shrink(images: Tensor, longest: int = TILE) -> Tensor:
    """Shrink images (G, C, H, W) to at most `longest` pixels in height and width, by averaging."""
    scale = longest / max(images.shape[-2:])
    if scale >= 1:
        return images
    size = [max(1, round(side * scale)) for side in images.shape[-2:]]
    return torch.nn.functional.interpolate(images.float(), size=size, mode="area")


def pixels(images: Tensor) -> np.ndarray:
    """Convert images (G, C, H, W) from 0 to 1 to bytes: (G, H, W), or (G, H, W, 3) for colours."""
    found = (images.float().nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return found[:, 0] if found.shape[1] == 1 else np.moveaxis(found[:, :3], 1, -1)


def amounts(images: Tensor, top: float) -> np.ndarray:
    """Convert standard deviations (G, C, H, W) from 0 to `top` to bytes, averaged over colours: (G, H, W)."""
    return (images.float().mean(1) / max(top, 1e-12) * 255).clamp(0, 255).round().to(torch.uint8).numpy()


def tiled(tiles: np.ndarray, columns: int) -> np.ndarray:
    """Arrange tiles (G, H, W, ...) side by side in rows of `columns`."""
    g, h, w, *rest = tiles.shape
    rows = tiles.reshape(g // columns, columns, h, w, *rest)
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(g // columns * h, columns * w, *rest)


def data_url(array: np.ndarray, *, colours: bool = False, lossy: bool = False) -> str:
    """Encode an array (H, W) or (H, W, 3) of bytes as an image in a URL.

    `colours` paints amounts with the palette of standard deviations; `lossy` uses JPEG, for photographs.
    """
    image = Image.fromarray(array)
    if colours:
        image.putpalette(palette())
    file = io.BytesIO()
    kind = "JPEG" if lossy else "PNG"
    image.save(file, kind, **({"quality": 82} if lossy else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def palette() -> bytes:
    """Return the 256 colours for standard deviations, dark for zero: 768 bytes."""
    from matplotlib import colormaps

    return (colormaps["magma"](np.arange(256))[:, :3] * 255).round().astype(np.uint8).tobytes()


def packed(image: Tensor) -> dict[str, Any]:
    """Encode an image (C, H, W) from 0 to 1 for JSON."""
    return _packed(pixels(shrink(image[None], LONGEST))[0])


def packed_deviation(deviation: Tensor, top: float | None = None) -> dict[str, Any]:
    """Encode a standard deviation (C, H, W) as amounts from 0 to `top` (default: its maximum) for JSON."""
    small = shrink(deviation[None], LONGEST)
    top = float(small.mean(1).max()) if top is None else top
    return _packed(amounts(small, top)[0]) | {"top": float(f"{top:.4g}")}


def _packed(array: np.ndarray) -> dict[str, Any]:
    """Encode bytes (H, W) or (H, W, 3)."""
    h, w, *c = array.shape
    return {"h": h, "w": w, "c": c[0] if c else 1, "data": base64.b64encode(array.tobytes()).decode()}
