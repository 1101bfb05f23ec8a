"""Levels of categories and booleans that no row has had: rarer than every one that some row has.

A level nobody has seen is a surprise where the levels of a column are few and known (`femle`), and none where every
tenth row has a level of its own (a street, a ticket). How likely one is follows from the rows at hand: the share of new
rows with a new level is about that of rows with a level that no other row has (Good and Turing). Its surprise is minus
the logarithm of this share, 0 from `OFTEN` on, and each of its nats adds as much to the anomaly score as makes ordinary
scores, which fall off about exponentially, rarer by one nat. Calibration rows whose level no other row has are scored
like new rows with a new level, so that p-values hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lapae.space.columns import UNSEEN, Column, Spans
from lapae.space.scaling import Source, chunks

OFTEN = 0.002
"""Share of rows with a level that no other row has, from which on new levels come often, and would use up the false
alarms: they are no surprise."""


@dataclass(frozen=True)
class Unseen:
    """What levels that no row has had add to anomaly scores.

    Attributes:
        columns: places of the columns that have levels, (C,).
        features: the first feature of each in the model, -1 for one that the network does not see, (C,).
        count: number of rows that have each level, (C, L), 0 beyond those that a column has.
        surprise: of a new level of each column, in nats, (C,).
    """

    columns: Tensor
    features: Tensor
    count: Tensor
    surprise: Tensor

    @classmethod
    def fit(cls, columns: Sequence[Column] | None, rows: Sequence[Source]) -> Unseen | None:
        """Count the levels of a table's columns in several blocks of rows; None if no column has any.

        Args:
            columns: of the table.
            rows: sources of codes (n, F). Of one that is streamed its sample is counted, and all levels of the columns
                are taken to be those of several rows.
        """
        places = [i for i, column in enumerate(columns or ()) if column.kind in ("category", "boolean")]
        if columns is None or not places:
            return None
        widths = [max(len(columns[i].categories), 2) for i in places]
        count = np.zeros((len(places), max(widths)), np.int64)
        new = np.zeros(len(places), np.int64)
        streamed = any(hasattr(source, "sample") for source in rows)
        for x in (part for source in rows for _, part in chunks(getattr(source, "sample", source))):
            for k, (i, width) in enumerate(zip(places, widths, strict=True)):
                codes = x[:, i]
                count[k, :width] += np.bincount(codes[codes >= 0].astype(int), minlength=width)
                new[k] += (codes == UNSEEN).sum()
        known = count.sum(1) + new
        count += 2 * streamed
        alone = (count == 1).sum(1) + new
        starts = Spans(tuple(columns)).starts
        return cls(
            torch.tensor(places),
            torch.tensor([int(starts[i]) if columns[i].width else -1 for i in places]),
            torch.from_numpy(count),
            torch.from_numpy(np.where(alone < OFTEN * known, np.log((known + 2) / (alone + 1)), 0.0)),
        )

    def marked(self, codes: np.ndarray) -> np.ndarray:
        """Return codes (n, F) of new rows with `UNSEEN` for levels that no row has had."""
        return self._marked(codes, 0)

    def among(self, codes: np.ndarray) -> np.ndarray:
        """Return codes (n, F) of rows that were counted with `UNSEEN` for levels that no other row has."""
        return self._marked(codes, 1)

    def _marked(self, codes: np.ndarray, most: int) -> np.ndarray:
        found = np.array(codes, np.float64)
        for k, i in enumerate(self.columns.tolist()):
            own = found[:, i]
            level = np.where(own >= 0, own, 0).astype(int)
            found[(own >= 0) & (self.count[k].numpy()[level] <= most), i] = UNSEEN
        return found

    def surprises(self, codes: np.ndarray) -> Tensor:
        """Return the surprise (n, C) of levels of marked codes (n, F): 0 for those that are seen or missing."""
        return torch.from_numpy(codes[:, self.columns.numpy()] == UNSEEN) * self.surprise

    def total(self, surprises: Tensor, x: Tensor) -> Tensor:
        """Add up surprises (n, C) of rows, (n,), leaving out columns that are hidden from them in x (n, D)."""
        seen = ~x.flatten(1)[:, self.features.clamp_min(0)].isnan() | (self.features < 0)
        return (surprises * seen).sum(1)
