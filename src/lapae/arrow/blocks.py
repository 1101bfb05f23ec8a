"""Rows in blocks of a fixed size, so that the results for a row do not depend on the rows next to it.

A matrix product of 512 rows and one of 37 rows may add up in different orders, and differ in their last bits. Here
every call of the model has the same number of rows, all of which lack the same values; a block that is not full is
padded with copies of its first row. If products depend on where in memory a row begins, as they do for rows with an odd
number of values, each row is repeated, so that all have the same alignment (`RowModel.stride`). The output of a row is
then bit-identical in any batch, partition or process on one kind of CPU (tests/arrow/test_row_independence.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from lapae.model import Model
from lapae.predict import Prediction

FULL = 512
"""Number of rows in a block of complete rows."""
SCORED = 2048
"""Number of rows in a block for scores without reasons: these need only the mean network, so that the cost per block
weighs more."""
LACKING = 32
"""Number of rows in a block of rows with missing values: there may be as many patterns as rows."""
STRIDES = (1, 2, 4, 8)
"""Possible distances of equally aligned rows: every eighth row of float64 begins at a multiple of 64 bytes, as blocks
do."""
ALONE = LACKING
"""Stride of rows that are predicted one by one."""
Arrays = tuple[np.ndarray, ...]


class Group(NamedTuple):
    """Rows that go into blocks together."""

    rows: np.ndarray
    """Their indices."""
    size: int
    """Number of rows in a block."""
    stride: int
    """How many times each row is repeated; `ALONE` for blocks of one row."""


def in_blocks(call: Callable[[np.ndarray], Arrays], x: np.ndarray, groups: Sequence[Group]) -> Arrays:
    """Call a function on blocks of a fixed size.

    Args:
        call: from rows (B, F) to arrays (B, …), the first axis being that of the rows.
        x: rows (n, F).
        groups: rows that go into blocks together; rows in no group are NaN in the output.

    Returns:
        Arrays (n, …); none if all groups are empty.
    """
    out: list[np.ndarray] = []
    for members, size, stride in groups:
        n, times = (1, 1) if stride == ALONE else (size // stride, stride)
        for start in range(0, len(members), n):
            part = members[start : start + n]
            padded = np.concatenate([part, np.full(n - len(part), part[0])])
            found = [values[::times] for values in call(x[padded.repeat(times)])]
            if not out:
                out = [np.full((len(x), *values.shape[1:]), np.nan) for values in found]
            for to, values in zip(out, found, strict=True):
                to[part] = values[: len(part)]
    return tuple(out)


def by_pattern(hidden: np.ndarray, chosen: np.ndarray, kind: np.ndarray | None = None) -> list[np.ndarray]:
    """Group the `chosen` rows (n,) by their hidden values (n, F) and, if given, by their `kind` (n,)."""
    groups: dict[tuple[bytes, int], list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        groups.setdefault((hidden[row].tobytes(), 0 if kind is None else int(kind[row])), []).append(row)
    return [np.array(rows) for rows in groups.values()]


@dataclass(frozen=True)
class RowModel:
    """A model, and how it has to be called in blocks.

    Attributes:
        model: the trained model of a table.
    """

    model: Model

    @cached_property
    def stride(self) -> int:
        """Distance at which rows of a block get identical predictions: 1, or a few if it matters how a row is aligned
        in memory. It is `ALONE` if predictions depend on the place of a row in its batch, as with noise drawn for each
        row (dropout, variational autoencoders): such rows are predicted one by one, all with the same noise."""
        return _stride(self.model.predict(_equal_rows(self.model)))

    @cached_property
    def scored_stride(self) -> int:
        """`stride` for the predictions that scores need, which takes less memory to determine."""
        return _stride(self.model.for_score(_equal_rows(self.model)))

    @cached_property
    def filled_stride(self) -> int:
        """`stride` when values are filled in, too, as chains start from noise."""
        rows = _equal_rows(self.model)
        rows[:, : self.model.space.numbered[0].width] = torch.nan
        return max(self.stride, _alike_from(self.model.complete(rows).x_mean.numpy()))


def _equal_rows(model: Model) -> torch.Tensor:
    assert model.calibration is not None
    rows = model.calibration.reference.rows
    return rows[:1].nan_to_num().expand(LACKING, *rows.shape[1:]).clone()


def _stride(found: Prediction) -> int:
    return max(_alike_from(value.numpy()) for value in found.values.values())


def _alike_from(values: np.ndarray) -> int:
    """Return how far apart rows of values (LACKING, …) are equal, `ALONE` if they are not."""
    return next(
        (n for n in STRIDES if np.array_equal(values[::n], np.broadcast_to(values[:1], values[::n].shape))), ALONE
    )
