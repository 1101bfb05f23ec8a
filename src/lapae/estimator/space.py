"""The way of a user's array into the model's space and back.

| array                                            | is       | scaled                              |
|--------------------------------------------------|----------|-------------------------------------|
| (n, F)                                           | a table  | standardised, a feature             |
| (n, H, W), (n, C, H, W), (n, H, W, C), images    | images   | to [0, 1]; the model sees (C, H, W) |
| (n, T, C), other floats                          | windows  | standardised, a channel             |
| anything else with more axes                     | an array | standardised, an element            |

Images are uint8, boolean, or floats within [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lapae.data import Scaling
from lapae.data.scaling import standardise

CHANNELS = (1, 3, 4)
STANDARD_RANGE = (-3.0, 3.0)
"""Where standardised values lie, for the noise that imputation and generation start from."""


@dataclass(frozen=True)
class Space:
    """What the model knows of the arrays it was fitted on."""

    kind: str
    """image, table or array."""
    shape: tuple[int, ...]
    """Of one datum as the user gives it."""
    scaling: Scaling
    layout: str = "plain"
    """plain; gray: (H, W) is (1, H, W) in the model; last: (H, W, C) is (C, H, W)."""

    @classmethod
    def of(cls, x: np.ndarray) -> Space:
        """Decide what x (n, *shape) is, and how to scale it."""
        shape = x.shape[1:]
        if x.ndim == 2:
            return cls("table", shape, standardise(x))
        if x.ndim in (3, 4) and _looks_like_images(x):
            layout = "plain"
            if x.ndim == 3:
                layout = "gray"
            elif shape[0] not in CHANNELS and shape[-1] in CHANNELS:
                layout = "last"
            return cls("image", shape, Scaling(0.0, 255.0 if x.dtype == np.uint8 else 1.0), layout)
        if x.ndim == 3:
            channels = standardise(x.reshape(-1, shape[-1]))
            offset, scale = (np.broadcast_to(v, shape).copy() for v in (channels.offset, channels.scale))
            return cls("array", shape, Scaling(offset, scale))
        return cls("array", shape, standardise(x))

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Of one datum in the model."""
        return self.arrange(np.empty((1, *self.shape), np.uint8)).shape[1:]

    @property
    def value_range(self) -> tuple[float, float]:
        """Where data lie in the model's space."""
        return (0.0, 1.0) if self.kind == "image" else STANDARD_RANGE

    def arrange(self, x: np.ndarray) -> np.ndarray:
        """(n, *shape) -> (n, *model shape), values as they are."""
        if self.layout == "gray":
            return x[:, None]
        return np.moveaxis(x, -1, 1) if self.layout == "last" else x

    def to_user(self, x: np.ndarray, *, scale_only: bool = False) -> np.ndarray:
        """(..., *model shape) in the model's space -> (..., *shape) in the user's units; deviations `scale_only`."""
        x = x * np.asarray(self.scaling.scale, x.dtype) if scale_only else self.scaling.invert(x)
        if self.layout == "gray":
            return np.squeeze(x, -3)
        return np.moveaxis(x, -3, -1) if self.layout == "last" else x

    def check(self, x: np.ndarray) -> None:
        """ValueError where x is not of the kind that the model was fitted on."""
        if x.shape[1:] != self.shape:
            raise ValueError(f"X has data of shape {x.shape[1:]}, the model was fitted on data of shape {self.shape}")
        if self.kind == "image" and x.size:
            most = float(np.max(np.asarray(self.scaling.scale)))
            low, high = float(np.nanmin(x)), float(np.nanmax(x))
            if low < 0 or high > most:
                raise ValueError(
                    f"X has values from {low:g} to {high:g}, the model was fitted on images with values from 0 to "
                    f"{most:g}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the scaling left out: the run keeps it."""
        return {"kind": self.kind, "shape": list(self.shape), "layout": self.layout}


def _looks_like_images(x: np.ndarray) -> bool:
    if x.dtype in (np.uint8, np.bool_):
        return True
    known = x[~np.isnan(x)] if x.dtype.kind == "f" else x
    return x.dtype.kind == "f" and known.size > 0 and float(known.min()) >= 0 and float(known.max()) <= 1
