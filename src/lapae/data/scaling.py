"""The way from storage units to model space and back.

Images go to [0, 1]; tables are standardised, with the mean and the deviation of the training split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lapae.data.errors import DataError

if TYPE_CHECKING:
    import torch

    from lapae.data.source import Source

T = TypeVar("T", np.ndarray, "torch.Tensor")
FARTHEST = 1e15
"""Deviations from the mean that a value may have: the square of it is still a 32-bit number, so that a datum with an
absurd value is one of a very low density and not of none (NaN)."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """model space = (storage - offset) / scale, with numbers, or arrays of the shape of one datum."""

    offset: float | np.ndarray = 0.0
    scale: float | np.ndarray = 1.0

    def apply(self, x: T) -> T:
        """Storage (..., *shape) to model space. Float tensors keep their precision; all else becomes float32, within
        ± `FARTHEST`."""
        if isinstance(x, np.ndarray):
            # 64 bits inside for columns, whose offset may be large beside their deviation
            exact = x.astype(np.float32 if np.ndim(self.offset) == 0 and x.dtype.itemsize <= 2 else np.float64)
            with np.errstate(over="ignore"):
                scaled = (exact - np.asarray(self.offset, exact.dtype)) / self.scale
            return np.clip(scaled, -FARTHEST, FARTHEST, out=scaled).astype(np.float32, copy=False)
        x = x if x.is_floating_point() else x.float()
        offset, scale, wide = self._like(x)
        return ((wide - offset) / scale).to(x.dtype)

    def invert(self, x: T) -> T:
        """Model space (..., *shape) to storage units, as floats of the same precision."""
        if isinstance(x, np.ndarray):
            return (x.astype(np.float64) * self.scale + self.offset).astype(x.dtype)
        offset, scale, wide = self._like(x)
        return (wide * scale + offset).to(x.dtype)

    def _like(self, x: torch.Tensor) -> tuple[Any, Any, torch.Tensor]:
        """Offset, scale and x as operands of one device and precision."""
        if np.ndim(self.offset) == 0 and np.ndim(self.scale) == 0:
            return self.offset, self.scale, x
        import torch

        offset, scale = (torch.as_tensor(v, dtype=torch.float64, device=x.device) for v in (self.offset, self.scale))
        return offset, scale, x.double()

    def to_dict(self) -> dict[str, Any]:
        """Numbers and (nested) lists of numbers, for JSON and TOML. Nothing is rounded."""
        return {"offset": np.asarray(self.offset).tolist(), "scale": np.asarray(self.scale).tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Scaling:
        """The inverse of `to_dict`."""
        if set(values) != {"offset", "scale"}:
            raise DataError(f"a scaling has the keys offset and scale, got {sorted(values)}")
        try:
            offset, scale = (np.asarray(values[key], dtype=np.float64) for key in ("offset", "scale"))
        except (TypeError, ValueError) as error:
            raise DataError(f"offset and scale of a scaling must be numbers or lists of numbers: {error}") from error
        if offset.shape != scale.shape:
            raise DataError(f"offset and scale of a scaling differ in shape: {offset.shape} and {scale.shape}")
        if not (np.isfinite(offset).all() and np.isfinite(scale).all() and (scale > 0).all()):
            raise DataError("offset and scale of a scaling must be finite, and the scale above 0")
        return cls(offset, scale) if offset.ndim else cls(float(offset), float(scale))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scaling):
            return NotImplemented
        return np.array_equal(self.offset, other.offset) and np.array_equal(self.scale, other.scale)

    __hash__ = None  # type: ignore[assignment]  # compared by value, and values are arrays


def standardise(x: Source, names: tuple[str, ...] | None = None) -> Scaling:
    """Scaling of each element of x (N, *shape) by its mean and deviation over N, NaN left out.

    Constant elements get scale 1; elements without any value get offset 0 and scale 1. The source is read twice, in
    chunks, so that it may be larger than memory.
    """
    from lapae.data.source import chunks

    shape = x.shape[1:]
    count, total = np.zeros(shape), np.zeros(shape)
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    squares = np.zeros(shape)
    with np.errstate(over="ignore", invalid="ignore"):  # reported below, by column
        for _, part in chunks(x):
            part = part.astype(np.float64)
            known = ~np.isnan(part)
            count += known.sum(0)
            total += np.where(known, part, 0.0).sum(0)
            low = np.minimum(low, np.where(known, part, np.inf).min(0))
            high = np.maximum(high, np.where(known, part, -np.inf).max(0))
        count = np.maximum(count, 1)
        mean = total / count
        constant = low >= high
        spread = np.where(constant, 1.0, high - low)  # squares of gaps in units of it neither overflow nor vanish
        for _, part in chunks(x):
            gap = (part.astype(np.float64) - mean) / spread
            squares += np.where(np.isnan(part), 0.0, gap * gap).sum(0)
        deviation = spread * np.sqrt(squares / count)
    # low == high, besides deviation == 0: the mean of equal floats is not always that float
    mean = np.where(constant & (low < np.inf), low, mean)
    deviation = np.where(constant | (deviation == 0), 1.0, deviation)
    bad = ~(np.isfinite(mean) & np.isfinite(deviation))
    if bad.any():
        position = tuple(int(i) for i in np.argwhere(bad)[0])
        column = repr(names[position[0]]) if names else position
        raise DataError(f"the values of column {column} are too large to be standardised in 64-bit floats")
    return Scaling(mean, deviation)
