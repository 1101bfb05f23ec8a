"""Rows in blocks of a fixed size, so that what is found for a row does not depend on the rows beside it.

A matrix product of 512 rows and one of 37 rows may add up in different orders, and differ in their last bits. Here
every call of the model has the same number of rows, all of which lack the same values; a block that is not full is
padded with copies of its first row. So the output of a row is the same bits in any batch, partition or process on one
kind of CPU (tests/arrow/test_row_independence.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from lapae.model import Model
from lapae.networks.threads import one_thread
from lapae.predict import Prediction

FULL = 512
"""Rows of a block of rows that lack nothing."""
SCORED = 2048
"""Rows of a block for scores without reasons: these need the mean network alone, and what is done once per block costs
more."""
LACKING = 32
"""Rows of a block of rows with missing values: there may be as many patterns as rows."""
Arrays = tuple[np.ndarray, ...]


@contextmanager
def reproducibly() -> Iterator[None]:
    """Use one thread: how an operation is shared between threads may change its last bits."""
    with one_thread():
        yield


def in_blocks(
    call: Callable[[np.ndarray], Arrays], x: np.ndarray, groups: Sequence[np.ndarray], sizes: Sequence[int]
) -> Arrays:
    """Call a function on blocks of a fixed size.

    Args:
        call: from rows (B, F) to arrays (B, …), the first axis being that of the rows.
        x: rows (n, F).
        groups: indices of the rows that go into blocks together; rows in no group are NaN in the output.
        sizes: rows of a block, for each group.

    Returns:
        Arrays (n, …); none if all groups are empty.
    """
    out: list[np.ndarray] = []
    for members, size in zip(groups, sizes, strict=True):
        for start in range(0, len(members), size):
            part = members[start : start + size]
            padded = np.concatenate([part, np.full(size - len(part), part[0])])
            found = call(x[padded])
            if not out:
                out = [np.full((len(x), *values.shape[1:]), np.nan) for values in found]
            for to, values in zip(out, found, strict=True):
                to[part] = values[: len(part)]
    return tuple(out)


def by_pattern(
    missing: np.ndarray, *, alone: bool = False, full_size: int = FULL
) -> tuple[list[np.ndarray], list[int]]:
    """Group rows that lack the same values.

    Args:
        missing: (n, F) bool.
        alone: whether each row must be in a block of its own.
        full_size: rows of a block of rows that lack nothing.

    Returns:
        Indices of the rows of each group, and the number of rows in its blocks. Rows that lack all values are in none.
    """
    keys: dict[Hashable, list[int]] = {}
    lacks, nothing = np.asarray(missing.any(1)), np.asarray(missing.all(1))
    full = np.flatnonzero(~lacks)
    for row in np.flatnonzero(lacks & ~nothing).tolist():
        keys.setdefault(missing[row].tobytes(), []).append(row)
    groups = ([full] if len(full) else []) + [np.array(rows) for rows in keys.values()]
    return groups, [1 if alone else LACKING if lacks[rows[0]] else full_size for rows in groups]


@dataclass(frozen=True)
class RowModel:
    """A model with what is known about calling it in blocks.

    Attributes:
        model: the trained model, of a table.
    """

    model: Model

    @cached_property
    def one_by_one(self) -> bool:
        """Whether predictions depend on the place of a row in its batch, as with noise drawn for each row (dropout,
        variational autoencoders): such rows are predicted one by one, all with the same noise."""
        return _differ(self.model.predict(_equal_rows(self.model)))

    @cached_property
    def scored_one_by_one(self) -> bool:
        """Whether this is so of what scores are made of, which takes less memory to see."""
        return _differ(self.model.for_score(_equal_rows(self.model)))

    @cached_property
    def filled_one_by_one(self) -> bool:
        """Whether what is filled in depends on the place of a row, too, as with noise that chains start from."""
        rows = _equal_rows(self.model)
        rows[:, : self.model.space.numbered[0].width] = torch.nan
        return self.one_by_one or _differs(self.model.complete(rows).x_mean.numpy())


def _equal_rows(model: Model) -> torch.Tensor:
    assert model.calibration is not None
    rows = model.calibration.reference.rows
    return rows[:1].nan_to_num().expand(LACKING, *rows.shape[1:]).clone()


def _differ(found: Prediction) -> bool:
    return _differs(*(value.numpy() for value in found.values.values()))


def _differs(*arrays: np.ndarray) -> bool:
    """Whether rows of arrays (n, …) differ."""
    return any(not np.array_equal(values, np.broadcast_to(values[:1], values.shape)) for values in arrays)
