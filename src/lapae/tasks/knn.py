"""Nearest neighbours whose number k is chosen by cross-validation, for one class a datum or many binary attributes.

Votes of all candidate k come from one search: sorted neighbours, cumulated. Shapes: n labelled points, m queries, A
columns of indicators (one a class, or one an attribute).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Voting:
    """Indicators of labels, and the way from a mean of them back to labels."""

    def __init__(self, y: np.ndarray) -> None:
        y = np.asarray(y)
        if y.ndim == 1:
            self.multi_label = False
            self.classes = np.unique(y)
            self.indicators = (y[:, None] == self.classes).astype(np.float32)
        elif y.ndim == 2:
            self.multi_label = True
            if not np.isin(y, (0, 1)).all():
                raise ValueError("expected attributes that are 0 or 1")
            self.indicators = y.astype(np.float32)
        else:
            raise ValueError(f"expected classes (N,) or attributes (N, A), got labels of shape {y.shape}")

    def predict(self, votes: np.ndarray) -> np.ndarray:
        """Indicators (..., m, A) of what most neighbours say; ties go to the lower class, as scikit-learn's do."""
        if self.multi_label:
            return (votes > 0.5).astype(np.float32)
        return np.eye(votes.shape[-1], dtype=np.float32)[votes.argmax(-1)]

    def accuracy(self, votes: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Of votes (..., m, A): the share of right classes (...,), or of right attributes (..., A)."""
        right = self.predict(votes) == truth
        return right.mean(-2) if self.multi_label else right.all(-1).mean(-1)


def votes(
    points: np.ndarray, indicators: np.ndarray, queries: np.ndarray, ks: Sequence[int], *, chunk: int = 1000
) -> np.ndarray:
    """Mean indicators of the k nearest of points (n, K) to queries (m, K), for each k: (len(ks), m, A)."""
    from sklearn.neighbors import NearestNeighbors

    if max(ks) > len(points) or min(ks) < 1:
        raise ValueError(f"expected k from 1 to the number of points, {len(points)}; got {list(ks)}")
    search = NearestNeighbors(n_neighbors=max(ks)).fit(points)
    out = np.empty((len(ks), len(queries), indicators.shape[1]), dtype=np.float32)
    for start in range(0, len(queries), chunk):
        part = slice(start, start + chunk)
        neighbours = search.kneighbors(queries[part], return_distance=False)
        total = np.cumsum(indicators[neighbours], axis=1)
        for i, k in enumerate(ks):
            out[i, part] = total[:, k - 1] / k
    return out


def choose_k(points: np.ndarray, indicators: np.ndarray, voting: Voting, candidates: Sequence[int], seed: int) -> int:
    """k by two-fold cross-validation; points are (n, copies, K): n labelled data, each embedded `copies` times.

    Folds are of data, so that no datum is judged by copies of itself; every class is in both. Where a class has one
    datum only that cannot be, and the folds are of copies. A single copy of single data leaves k = 1.
    """
    n, copies, _ = points.shape
    rng = np.random.default_rng(seed)
    counts = indicators.sum(0)
    if voting.multi_label or counts.min() >= 2:
        if n < 2:
            return 1
        order = rng.permutation(n)
        if not voting.multi_label:  # deal the data of each class to the folds in turn
            order = order[np.argsort(indicators[order].argmax(1), kind="stable")]
        folds = [(points[order[i::2]], indicators[order[i::2]]) for i in (0, 1)]
    elif copies >= 2:
        order = rng.permutation(copies)
        folds = [(points[:, order[i::2]], indicators) for i in (0, 1)]
    else:
        return 1
    flat = [(p.reshape(-1, p.shape[-1]), np.repeat(y, p.shape[1], axis=0)) for p, y in folds]
    ks = [k for k in candidates if k <= min(len(p) for p, _ in flat)] or [1]
    scores = np.zeros(len(ks))
    for (points_in, y_in), (points_out, y_out) in (flat, flat[::-1]):
        found = voting.accuracy(votes(points_in, y_in, points_out, ks), y_out)
        scores += found.mean(-1) if voting.multi_label else found
    return ks[int(scores.argmax())]
