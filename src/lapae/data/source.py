"""Sources, which are read by index, and the records that a reader returns.

A source holds N data in storage units: uint8 from 0 to 255, or floats. Arrays and memory maps are sources as they are;
`Lazy` is for everything that is read or decoded on access.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from lapae.space import Column, Fit, Range
from lapae.space.features import Features

PART_BYTES = 2**25


class Lazy(ABC):
    """A source that is read on access. Subclasses set `shape` (N, ...) and `dtype`, and define how to read an index."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @abstractmethod
    def __getitem__(self, index: Any) -> np.ndarray:
        """Return the data at an integer, a slice or an array of integers, in storage units."""

    def stored(self, index: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield the stored form of the data at `index` (default: all), to compare them; here the data themselves."""
        yield from (self[part] for part in in_parts(self, index))

    def name(self, i: int) -> str | None:
        """Return the name of a sample, such as its file; None if it has none."""
        return None

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all data, read into memory."""
        if copy is False:
            raise ValueError("a lazy source cannot become an array without a copy")
        return np.asarray(self[:], dtype=dtype)


class Streamed(Lazy):
    """A source that is too large for memory and slow to read by index: all of it is read in its own order.

    Attributes:
        sample: (m, ...) some of the data, evenly spaced.
        sample_rows: (m,) their positions in the set that was split.
    """

    sample: np.ndarray
    sample_rows: np.ndarray

    @abstractmethod
    def pools(self, seed: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield all data once, shuffled by a seed, in arrays (n, ...) of bounded sizes."""


Source: TypeAlias = np.ndarray | Lazy


class Subset(Lazy):
    """Some data of another source, without a copy."""

    def __init__(self, source: Source, index: np.ndarray) -> None:
        self.source, self.index = source, index
        self.shape, self.dtype = (len(index), *source.shape[1:]), source.dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        """Read through to the source."""
        return np.asarray(self.source[self.index[index]])

    def name(self, i: int) -> str | None:
        return self.source.name(int(self.index[i])) if isinstance(self.source, Lazy) else None

    def stored(self, index: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield what the source has stored."""
        chosen = self.index if index is None else self.index[index]
        if isinstance(self.source, Lazy):
            yield from self.source.stored(chosen)
        else:
            yield from (np.asarray(self.source[part]) for part in in_parts(self.source, chosen))


def in_parts(source: Source, index: np.ndarray | None) -> Iterator[np.ndarray]:
    """Yield an index (default: all) in parts of a bounded number of bytes."""
    size = max(1, PART_BYTES // max(1, int(np.prod(source.shape[1:])) * source.dtype.itemsize))
    chosen = np.arange(len(source)) if index is None else index
    return (chosen[i : i + size] for i in range(0, len(chosen), size))


def even(n: int, most: int) -> np.ndarray:
    """Return increasing indices of at most `most` of n samples, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))


def sampled(source: Source, most: int) -> np.ndarray:
    """Return at most `most` samples, evenly spaced; of a streamed source, from its sample in memory."""
    x = source.sample if isinstance(source, Streamed) else source
    return np.asarray(x[even(len(x), most)])


def take(source: Source, index: np.ndarray) -> Source:
    """Return the data at an increasing `index` (n,): a view if they are contiguous, a `Subset` of what is read on
    access, else a copy."""
    if isinstance(source, Lazy):
        return Subset(source, index)
    if len(index) and index[-1] - index[0] == len(index) - 1:
        return source[index[0] : index[-1] + 1]
    return Subset(source, index) if isinstance(source, np.memmap) else source[index]


@dataclass(frozen=True)
class Split:
    """N samples and their labels."""

    x: Source
    """(N, *shape) in storage units; `x[index_array]` reads some of them."""
    y: np.ndarray | None
    """(N,) integer classes, or (N, A) attributes that are 0 or 1; None without labels."""
    rows: np.ndarray | None = None
    """(N,) their positions in the set that was split, from 0; None if they are all of it."""
    groups: np.ndarray | None = None
    """(N,) the image of each tile, if images were split as a whole."""
    together: np.ndarray | None = None
    """(N,) the group of each row, from 0, such as a customer; None if there are none."""

    def __len__(self) -> int:
        return len(self.x)

    def some(self, limit: int | None, seed: int = 0) -> np.ndarray:
        """Sorted indices of at most `limit` samples, drawn at random; of all if it is None."""
        n = len(self)
        if limit is None or limit >= n:
            return np.arange(n)
        return np.sort(np.random.default_rng(seed).choice(n, limit, replace=False))

    def row(self, i: int) -> int:
        """Return the position of sample i in the set that was split."""
        return i if self.rows is None else int(self.rows[i])


@dataclass(frozen=True)
class Records:
    """All data of a set, not yet split, as a reader returns them."""

    name: str
    x: Source
    y: np.ndarray | None = None
    partition: np.ndarray | None = None
    """(N,) the set's own splits, 0 train, 1 validation, 2 test, as in CelebA's file; None if it has none."""
    most: float | None = None
    """The greatest value that images of this set can have, if known."""
    label_names: tuple[str, ...] | None = None
    columns: tuple[Column, ...] | None = None
    left_out: Mapping[str, str | None] = field(default_factory=dict)
    """The other columns by name, with the only value of those that are constant, else None."""
    values: Range | None = None
    """Range of the values, if known."""
    missing: bool = False
    fit: Fit | None = None
    """How images of other sizes are scaled to one size."""
    features: Features | None = None
    """How images became the feature maps that these data are."""
    stride: int | None = None
    """Steps between windows of a series, which are split in time."""
    interval: float | None = None
    """Time between these steps, if there is a clock."""
    groups: np.ndarray | None = None
    """(N,) the image of each tile, from 0. All tiles of an image are in one split, unless there are few images."""
    together: np.ndarray | None = None
    """(N,) the group of each row, from 0, such as a customer, which are in one split; None if there are none."""
