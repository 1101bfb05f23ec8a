"""Offset and scale of values: chosen from the training data, applied to arrays and tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np

from lapae.errors import DataError

if TYPE_CHECKING:
    import torch

Number: TypeAlias = float | np.ndarray
T = TypeVar("T", np.ndarray, "torch.Tensor")
CHUNK_BYTES = 32 * 2**20
FARTHEST = 1e15
"""Maximum distance of a value from the mean, in standard deviations: its square still fits into 32 bits, so that a
sample with an absurd value has a very low density instead of NaN."""


class Source(Protocol):
    """N samples that are read by index: an array, a memory map, or a reader that decodes files on access."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    def __len__(self) -> int: ...


def chunks(source: Source) -> Iterator[tuple[int, np.ndarray]]:
    """Read a source in order, a bounded number of bytes at a time: pairs of the first index and the data (n, ...)."""
    step = max(1, CHUNK_BYTES // max(1, int(np.prod(source.shape[1:])) * source.dtype.itemsize))
    for start in range(0, len(source), step):
        yield start, np.asarray(source[start : start + step])


def apply(x: T, offset: Number, scale: Number) -> T:
    """Return (x - offset) / scale. Float tensors keep their precision; everything else becomes float32, within ±
    `FARTHEST`."""
    if isinstance(x, np.ndarray):
        # 64 bits inside for columns, whose offset may be large beside their deviation
        exact = x.astype(np.float32 if np.ndim(offset) == 0 and x.dtype.itemsize <= 2 else np.float64)
        with np.errstate(over="ignore"):
            scaled = (exact - np.asarray(offset, exact.dtype)) / scale
        return np.clip(scaled, -FARTHEST, FARTHEST, out=scaled).astype(np.float32, copy=False)
    x = x if x.is_floating_point() else x.float()
    if np.ndim(offset) == 0 and np.ndim(scale) == 0:
        return (x - float(offset)) / float(scale)
    import torch

    shift, unit = (torch.as_tensor(v, dtype=torch.float64, device=x.device) for v in (offset, scale))
    return ((x.double() - shift) / unit).to(x.dtype)


def invert(x: np.ndarray, offset: Number, scale: Number) -> np.ndarray:
    """Return x · scale + offset, in the precision of x."""
    return (x.astype(np.float64) * scale + offset).astype(x.dtype)


def standardise(
    x: Source, names: Sequence[str] | None = None, over: tuple[int, ...] = (0,)
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of x (N, *shape) over the axes `over`, without NaN.

    They broadcast to (*shape): axes other than the first that are averaged over keep a length of 1. The scale of
    constants is their magnitude (1 if it is 0 or there are no values). The source is read twice, in chunks, so that it
    may be larger than memory.

    Args:
        x: the training data.
        names: names of the columns of a table, for error messages.
        over: axes that share an offset and a scale; the first axis is always one of them.
    """
    shape = tuple(1 if axis in over else n for axis, n in enumerate(x.shape))[1:]

    def reduce(how: Any, values: np.ndarray) -> np.ndarray:
        return how(values, axis=over, keepdims=True)[0]

    count, total, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    with np.errstate(over="ignore", invalid="ignore"):  # reported below, by column
        for _, part in chunks(x):
            part = part.astype(np.float64)
            known = ~np.isnan(part)
            count += reduce(np.sum, known)
            total += reduce(np.sum, np.where(known, part, 0.0))
            low = np.minimum(low, reduce(np.min, np.where(known, part, np.inf)))
            high = np.maximum(high, reduce(np.max, np.where(known, part, -np.inf)))
        count = np.maximum(count, 1)
        mean = total / count
        constant = low >= high
        spread = np.where(constant, 1.0, high - low)  # squares of gaps in units of it neither overflow nor vanish
        for _, part in chunks(x):
            gap = (part.astype(np.float64) - mean) / spread
            squares += reduce(np.sum, np.where(np.isnan(part), 0.0, gap * gap))
        deviation = spread * np.sqrt(squares / count)
    # low == high, besides deviation == 0: the mean of equal floats is not always that float
    mean = np.where(constant & (low < np.inf), low, mean)
    alone = np.where(mean == 0, 1.0, np.abs(mean))
    deviation = np.where(constant | (deviation == 0), alone, deviation)
    bad = ~(np.isfinite(mean) & np.isfinite(deviation))
    if bad.any():
        position = tuple(int(i) for i in np.argwhere(bad)[0])
        column = repr(names[position[0]]) if names else position
        raise DataError(f"the values of column {column} are too large to be standardised in 64-bit floats")
    return mean, deviation
