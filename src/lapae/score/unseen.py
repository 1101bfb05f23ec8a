"""Levels of categories and booleans that no row has had: rarer than every one that some row has.

A level nobody has seen is a surprise where the levels of a column are few and known (`femle`), and none where every
tenth row has a level of its own (a street, a ticket). How likely one is follows from the rows at hand: the share of new
rows with a new level is about that of rows with a level that no other row has (Good and Turing). Its surprise is minus
the logarithm of this share, in the columns where new levels come least often (`OFTEN`), and each of its nats adds as
much to the anomaly score as makes ordinary scores, which fall off about exponentially, rarer by one nat. Calibration
rows whose level no other row has are scored like new rows with a new level, so that p-values hold.

A value that contradicts the column which determines it (a borough that is not that of the zone, see
`lapae.space.levels`) is a surprise likewise, minus the logarithm of the share of held-out rows with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.space.columns import UNSEEN, Column, Spans
from lapae.space.levels import SURE
from lapae.space.scaling import Source, chunks

OFTEN = 0.01
"""Share of rows with a level that no other row has, in all columns together, below which new levels are a surprise:
where they come more often they would use up the false alarms."""
SAME = 1e-6
"""Difference of two numbers, as a share, up to which they are one: graphs take numbers of 32 bits."""


def differ(values: Any, expected: Any) -> Any:
    """Return whether values differ from those expected, of arrays or tensors; not if either is NaN."""
    return abs(values - expected) > SAME * (1 + abs(expected))


@dataclass(frozen=True)
class Contradictions:
    """What values that contradict another column of their row add to anomaly scores.

    Attributes:
        columns: places of the columns that others determine, (K,).
        sources: places of the columns that determine them, (K,).
        words: whether the former have levels, not numbers, (K,).
        features: the first feature of either in the model, -1 for one that the network does not see, (K, 2).
        keys: codes of the column that determines, (K, N), NaN beyond those that it has.
        levels: codes of the values that go with them, (K, N).
        surprise: of a value that does not, in nats, (K,).
    """

    columns: Tensor
    sources: Tensor
    words: Tensor
    features: Tensor
    keys: Tensor
    levels: Tensor
    surprise: Tensor

    @classmethod
    def fit(cls, columns: Sequence[Column], rows: Sequence[Source]) -> Contradictions | None:
        """Count contradictions in blocks of rows (n, F); None if no column determines another.

        Those of rows that are held out count, the blocks after the first: what goes with what was found in the first.
        """
        places = {column.name: i for i, column in enumerate(columns)}
        pairs = [
            (i, places[column.given_by])
            for i, column in enumerate(columns)
            if column.given_by in places and column.implied
        ]
        if not pairs:
            return None
        starts = Spans(tuple(columns)).starts
        most = max(len(columns[i].implied) for i, _ in pairs)
        table = np.full((2, len(pairs), most), np.nan)
        for k, (i, _) in enumerate(pairs):
            table[:, k, : len(columns[i].implied)] = np.array(columns[i].implied, np.float64).T
        own, source = torch.tensor(pairs).T
        features = torch.tensor([[int(starts[i]) if columns[i].width else -1 for i in pair] for pair in pairs])
        keys, levels = torch.from_numpy(table)
        words = torch.tensor([columns[i].kind in ("category", "boolean") for i, _ in pairs])
        found = cls(own, source, words, features, keys, levels, torch.zeros(len(pairs), dtype=torch.float64))
        held_out = [source for source in rows[1:] if len(source)] or rows[:1]
        known, wrong = np.zeros((2, len(pairs)))
        for x in (part for source in held_out for _, part in chunks(getattr(source, "sample", source))):
            own, expected = found._pairs(np.asarray(x, np.float64))
            known += (~np.isnan(own) & ~np.isnan(expected)).sum(0)
            wrong += differ(own, expected).sum(0)
        found = replace(found, surprise=torch.from_numpy(np.log((known + 2) / (wrong + 1))))
        sure = torch.from_numpy((known > 0) & (wrong <= (1 - SURE) * known))
        values = (getattr(found, field.name) for field in fields(found))
        return cls(*(value[sure] for value in values)) if sure.any() else None

    def surprises(self, codes: np.ndarray) -> Tensor:
        """Return the surprise (n, K) of values of codes (n, F)."""
        return torch.from_numpy(differ(*self._pairs(codes))) * self.surprise

    def _pairs(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of codes (n, F), and those that go with the columns which determine them: (n, K) each, NaN
        where missing or new."""
        own = codes[:, self.columns.numpy()]
        expected = np.full(own.shape, np.nan)
        for k, source in enumerate(self.sources.tolist()):
            keys, levels = self.keys[k].numpy(), self.levels[k].numpy()
            at = np.searchsorted(keys, codes[:, source]).clip(0, len(keys) - 1)  # NaN are last
            expected[:, k] = np.where(keys[at] == codes[:, source], levels[at], np.nan)
        return np.where((own == UNSEEN) & self.words.numpy(), np.nan, own), expected


@dataclass(frozen=True)
class Unseen:
    """What levels that no row has had, and values that contradict others, add to anomaly scores.

    Attributes:
        columns: places of the columns that have levels, (C,).
        features: the first feature of each in the model, -1 for one that the network does not see, (C,).
        count: number of rows that have each level, (C, L), 0 beyond those that a column has.
        surprise: of a new level of each column, in nats, (C,).
        contradictions: of columns that others determine.
    """

    columns: Tensor
    features: Tensor
    count: Tensor
    surprise: Tensor
    contradictions: Contradictions | None = None

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
        share = alone / known.clip(1)
        order = np.argsort(share, kind="stable")
        rare = np.empty(len(share), bool)
        rare[order] = share[order].cumsum() < OFTEN
        return cls(
            torch.tensor(places),
            torch.tensor([int(starts[i]) if columns[i].width else -1 for i in places]),
            torch.from_numpy(count),
            torch.from_numpy(np.where(rare, np.log((known + 2) / (alone + 1)), 0.0)),
            Contradictions.fit(columns, rows),
        )

    @property
    def blamed(self) -> np.ndarray:
        """Places of the columns that surprises belong to, (S,): those of new levels, then those that contradict."""
        more = () if self.contradictions is None else self.contradictions.columns
        return np.array([*self.columns, *more])

    @property
    def needed(self) -> Tensor:
        """Features that a row has in which each surprise shows, (S, 2), -1 for one that the network does not see."""
        own = self.features[:, None].expand(-1, 2)
        return own if self.contradictions is None else torch.cat([own, self.contradictions.features])

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
        """Return surprises (n, S) of levels of marked codes (n, F): 0 for those that are seen or missing."""
        new = torch.from_numpy(codes[:, self.columns.numpy()] == UNSEEN) * self.surprise
        return new if self.contradictions is None else torch.cat([new, self.contradictions.surprises(codes)], 1)

    def total(self, surprises: Tensor, x: Tensor) -> Tensor:
        """Add up surprises (n, S) of rows, (n,), leaving out columns that are hidden from them in x (n, D)."""
        needed = self.needed
        seen = ~x.flatten(1)[:, needed.clamp_min(0)].isnan() | (needed < 0)
        return (surprises * seen.all(2)).sum(1)
