"""Images as the feature maps that are learned in their place."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from lapae.data.progress import progress
from lapae.data.source import Lazy, Records, Subset, even, take
from lapae.space.features import Features

MOST_VALUES = 2**28
"""Values of all feature maps, at most: a gigabyte as float32."""
AT_ONCE = 32
PIXELS = 255.0


class FeatureMaps(Lazy):
    """Feature maps (N, h, w, D) of images, which are read and made into maps once, on first use."""

    def __init__(self, images: Lazy, features: Features) -> None:
        self.images, self.features = images, features
        self.shape, self.dtype = (len(images), *features(images[:1]).shape[1:]), np.dtype(np.float32)

    @cached_property
    def _maps(self) -> np.ndarray:
        found = np.empty(self.shape, self.dtype)
        with progress("features", len(found)) as advance:
            for start in range(0, len(found), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                found[part] = self.features(self.images[part])
                advance(len(found[part]))
        return found

    def __getitem__(self, index: Any) -> np.ndarray:
        return self._maps[index]

    def name(self, i: int) -> str | None:
        return self.images.name(i)

    def stored(self, index: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """The files of the images: maps of another network differ in shape or are named otherwise."""
        yield np.frombuffer(self.features.name.encode(), np.uint8)
        yield from self.images.stored(index)


def with_features(records: Records, name: str) -> Records:
    """Return the records of images with feature maps in their place; evenly fewer of them if they are very many."""
    images = records.x
    assert isinstance(images, Lazy)
    features = Features(name, images.shape[1:], PIXELS)  # pyright: ignore[reportArgumentType]
    maps = FeatureMaps(images, features)
    most, y = max(1, MOST_VALUES // int(np.prod(maps.shape[1:]))), records.y
    if len(maps) > most:
        warnings.warn(
            f"{records.name}: to save memory, only {most:,} of {len(maps):,} images are learned", stacklevel=2
        )
        chosen = even(len(maps), most)
        maps, y = FeatureMaps(Subset(images, chosen), features), None if y is None else y[chosen]
    return replace(records, x=maps, y=y, features=features)


def images_of(source: Any) -> Any:
    """Return the images whose feature maps a source has: those of a data set, or of a split of it."""
    return take(images_of(source.source), source.index) if isinstance(source, Subset) else source.images
