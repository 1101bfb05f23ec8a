"""New levels of categories and booleans: levels that no row has had are rarer than all that some row has had.

A new level is a surprise if the levels of a column are few and known (`femle`), but not if every tenth row has a level
of its own (a street, a ticket). How likely a new level is can be estimated from the rows: the share of new rows with a
new level is about the share of rows with a level that no other row has (Good and Turing). The surprise is minus the
logarithm of this share, in the columns where new levels are rarest (`OFTEN`). Each nat of it adds to the anomaly score
as much as makes ordinary scores, which fall off about exponentially, rarer by one nat. Calibration rows whose level no
other row has are scored like new rows with a new level, so that p-values hold.

A value that contradicts the column that determines it (a borough that is not that of the zone, see
`lapae.space.levels`), or a number that is not on the line of its copy (`lapae.space.lines`), is also a surprise: minus
the logarithm of the share of held-out rows with a contradiction.
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
"""Share of rows with a level that no other row has, over all columns together, below which new levels are a surprise:
more frequent ones would use up the false alarms."""
SAME = 1e-6
"""Relative difference up to which two numbers are equal: graphs take numbers of 32 bits."""


def differ(values: Any, expected: Any, reach: Any = 0.0) -> Any:
    """Return whether values differ from expected ones (arrays or tensors) by more than `reach`; False if either is
    NaN."""
    return abs(values - expected) > reach + SAME * (1 + abs(expected))


@dataclass(frozen=True)
class Contradictions:
    """Amounts that values contradicting another column of their row add to anomaly scores.

    Attributes:
        columns: places of the columns that others determine, (K,).
        sources: places of the columns that determine them, (K,).
        words: whether the former have levels, not numbers, (K,).
        features: the first feature of either in the model, -1 for one that the network does not see, (K, 2).
        keys: codes of the column that determines, (K, N), padded with NaN.
        levels: codes of the values that go with them, (K, N).
        surprise: surprise of a value that contradicts, in nats, (K,).
        lines: slope, intercept and reach of columns that are lines of others, (K, 3), NaN for those that are looked up;
            None if all are.
    """

    columns: Tensor
    sources: Tensor
    words: Tensor
    features: Tensor
    keys: Tensor
    levels: Tensor
    surprise: Tensor
    lines: Tensor | None = None

    @classmethod
    def fit(cls, columns: Sequence[Column], rows: Sequence[Source]) -> Contradictions | None:
        """Count contradictions in blocks of rows (n, F); None if no column determines another.

        They are counted in the blocks after the first, which are held out; the first is where the relation was found.
        """
        places = {column.name: i for i, column in enumerate(columns)}
        pairs = [
            (i, places[column.given_by])
            for i, column in enumerate(columns)
            if column.given_by in places and (column.implied or column.line)
        ]
        if not pairs:
            return None
        starts = Spans(tuple(columns)).starts
        most = max(1, *(len(columns[i].implied) for i, _ in pairs))
        table = np.full((2, len(pairs), most), np.nan)
        for k, (i, _) in enumerate(pairs):
            if columns[i].implied and columns[i].line is None:
                table[:, k, : len(columns[i].implied)] = np.array(columns[i].implied, np.float64).T
        told = [columns[i].line for i, _ in pairs]
        lines = torch.tensor([[np.nan] * 3 if at is None else [at.a, at.b, at.reach] for at in told]).double()
        own, source = torch.tensor(pairs).T
        features = torch.tensor([[int(starts[i]) if columns[i].width else -1 for i in pair] for pair in pairs])
        keys, levels = torch.from_numpy(table)
        words = torch.tensor([columns[i].kind in ("category", "boolean") for i, _ in pairs])
        zeros = torch.zeros(len(pairs), dtype=torch.float64)
        found = cls(own, source, words, features, keys, levels, zeros, lines if any(told) else None)
        held_out = [source for source in rows[1:] if len(source)] or rows[:1]
        known, wrong = np.zeros((2, len(pairs)))
        for x in (part for source in held_out for _, part in chunks(getattr(source, "sample", source))):
            own, expected, reach = found._pairs(np.asarray(x, np.float64))
            known += (~np.isnan(own) & ~np.isnan(expected)).sum(0)
            wrong += differ(own, expected, reach).sum(0)
        found = replace(found, surprise=torch.from_numpy(np.log((known + 2) / (wrong + 1))))
        sure = torch.from_numpy((known > 0) & (wrong <= (1 - SURE) * known))
        if not sure.any():
            return None
        values = {field.name: getattr(found, field.name) for field in fields(found)}
        return replace(found, **{name: value[sure] for name, value in values.items() if value is not None})

    def surprises(self, codes: np.ndarray) -> Tensor:
        """Return the surprise (n, K) of values of codes (n, F)."""
        return torch.from_numpy(differ(*self._pairs(codes))) * self.surprise

    def _pairs(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the values of codes (n, F), the values implied by the columns that determine them, (n, K) each, NaN
        where missing or new, and by how much they may differ, (K,)."""
        own = codes[:, self.columns.numpy()]
        expected = np.full(own.shape, np.nan)
        for k, source in enumerate(self.sources.tolist()):
            keys, levels = self.keys[k].numpy(), self.levels[k].numpy()
            at = np.searchsorted(keys, codes[:, source]).clip(0, len(keys) - 1)  # NaN come last
            expected[:, k] = np.where(keys[at] == codes[:, source], levels[at], np.nan)
        reach = np.zeros(len(self.columns))
        if self.lines is not None:
            a, b, far = self.lines.numpy().T
            expected = np.where(np.isnan(a), expected, a * codes[:, self.sources.numpy()] + b)
            reach = np.nan_to_num(far)
        return np.where((own == UNSEEN) & self.words.numpy(), np.nan, own), expected, reach


@dataclass(frozen=True)
class Unseen:
    """Amounts that new levels, and values that contradict others, add to anomaly scores.

    Attributes:
        columns: places of the columns that have levels, (C,).
        features: the first feature of each in the model, -1 for one that the network does not see, (C,).
        count: number of rows that have each level, (C, L), padded with 0.
        surprise: surprise of a new level of each column, in nats, (C,).
        contradictions: those of columns that others determine.
    """

    columns: Tensor
    features: Tensor
    count: Tensor
    surprise: Tensor
    contradictions: Contradictions | None = None

    @classmethod
    def fit(cls, columns: Sequence[Column] | None, rows: Sequence[Source]) -> Unseen | None:
        """Count the levels of a table's columns in several blocks of rows; None if no column has any, nor is determined
        by another.

        Args:
            columns: columns of the table.
            rows: sources of codes (n, F). If a source is streamed, its sample is counted, and every level is assumed to
                occur in several rows.
        """
        places = [i for i, column in enumerate(columns or ()) if column.kind in ("category", "boolean")]
        rules = None if columns is None else Contradictions.fit(columns, rows)
        if columns is None or (not places and rules is None):
            return None
        widths = [max(len(columns[i].categories), 2) for i in places]
        count = np.zeros((len(places), max(widths, default=2)), np.int64)
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
            torch.tensor(places, dtype=torch.int64),
            torch.tensor([int(starts[i]) if columns[i].width else -1 for i in places], dtype=torch.int64),
            torch.from_numpy(count),
            torch.from_numpy(np.where(rare, np.log((known + 2) / (alone + 1)), 0.0)),
            rules,
        )

    @property
    def blamed(self) -> np.ndarray:
        """Places of the columns that surprises belong to, (S,): first of new levels, then of contradictions."""
        more = () if self.contradictions is None else self.contradictions.columns
        return np.array([*self.columns, *more])

    @property
    def needed(self) -> Tensor:
        """Features that a row must have for each surprise to count, (S, 2); -1 if the network does not see a column."""
        own = self.features[:, None].expand(-1, 2)
        return own if self.contradictions is None else torch.cat([own, self.contradictions.features])

    def marked(self, codes: np.ndarray) -> np.ndarray:
        """Return codes (n, F) of new rows with `UNSEEN` for levels that no row has had."""
        return self._marked(codes, 0)

    def among(self, codes: np.ndarray) -> np.ndarray:
        """Return codes (n, F) of rows that were counted, with `UNSEEN` for levels that no other row has."""
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
