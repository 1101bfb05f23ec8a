"""Images whose features are learned instead of pixels: which images, and which network computes the features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.errors import DataError
from lapae.space.layout import arranged, greatest, layout_of, range_of

if TYPE_CHECKING:
    from torch import nn

OWN = "own"
"""Name of a module of the user, which is code and is not saved."""
SMALLEST = 32
"""Minimum number of pixels along both sides."""
EXPECTED = "features are for images (n, H, W), (n, C, H, W) or (n, H, W, C), of bytes or of floats from 0 to 1"


@dataclass(frozen=True)
class Features:
    """How images become feature maps.

    Attributes:
        name: name of the network, "own" for a module of the user.
        image: (C, H, W) of an image.
        most: greatest value that a pixel can have.
        module: the user's module.
    """

    name: str
    image: tuple[int, int, int]
    most: float
    module: nn.Module | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, x: np.ndarray, network: Any) -> Features:
        """Describe training images x (n, …) and the network (a name or a module) that computes their features."""
        if not isinstance(x, np.ndarray) or x.ndim not in (3, 4) or not len(x):
            raise DataError(f"X: {getattr(x, 'shape', type(x).__name__)}; {EXPECTED}")
        image = tuple(arranged(x[:1], layout_of(x.shape[1:])).shape[1:])
        most = greatest(x)
        if most is None or image[0] not in (1, 3):
            low, high = range_of(x)[:2]
            raise DataError(f"X: shape {x.shape}, values from {low:g} to {high:g}; {EXPECTED}")
        if min(image[1:]) < SMALLEST:
            raise DataError(f"X: images of {image[1]}x{image[2]} pixels; features take at least {SMALLEST}x{SMALLEST}")
        named = isinstance(network, str)
        return cls(network if named else OWN, image, most, None if named else network)  # pyright: ignore

    def __call__(self, x: np.ndarray, where: str = "X") -> np.ndarray:
        """Return feature maps (n, h, w, D) of images x, in any layout."""
        from lapae.features import feature_maps, load

        images = self.arranged(x)
        if images.shape[1:] != self.image:
            raise DataError(f"{where}: data of shape {x.shape[1:]}, the model takes images of shape {self.image}")
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise DataError(f"{where}: missing or infinite values; a model of features takes whole images")
        most = 255.0 if x.dtype == np.uint8 and self.most == 1 else self.most
        if x.size and not 0 <= x.min() <= x.max() <= most:
            came = f"values from {x.min():g} to {x.max():g}"
            raise DataError(f"{where}: {came}, the model takes images from 0 to {most:g}")
        if self.name == OWN and self.module is None:
            raise DataError(f"{where}: the features are those of a module of your own: load(path, features=module)")
        network = load(self.name) if self.module is None else self.module
        return feature_maps(network, images.astype(np.float32) / np.float32(most))

    def arranged(self, x: np.ndarray) -> np.ndarray:
        """Return images x (n, …) in any layout as (n, C, H, W)."""
        return arranged(x, layout_of(x.shape[1:])) if x.ndim in (3, 4) else x

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, without a module of the user."""
        return {"name": self.name, "image": list(self.image), "most": self.most}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Features:
        """Inverse of `to_dict`; a ValueError, TypeError or KeyError where the values are not of that kind."""
        image = tuple(values["image"])
        if len(image) != 3 or not all(type(n) is int and n > 0 for n in image) or not float(values["most"]) > 0:
            raise ValueError(f"features of images {image}, greatest value {values['most']!r}")
        return cls(str(values["name"]), image, float(values["most"]))
