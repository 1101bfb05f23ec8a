"""Nearest neighbours whose number k is chosen by cross-validation, for one class per sample or many binary attributes.

Votes of all candidate k come from one search: sorted neighbours, cumulated. Shapes: n labelled points, m queries, A
columns of indicators (one per class, or one per attribute).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CELLS = 1 << 24
"""Maximum number of indicators of neighbours held at once: 64 MB."""


class Voting:
    """Converts labels to indicators, and means of indicators back to labels."""

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
        """Return indicators (..., m, A) of the majority of neighbours; ties go to the lower class, as scikit-learn."""
        if self.multi_label:
            return (votes > 0.5).astype(np.float32)
        return np.eye(votes.shape[-1], dtype=np.float32)[votes.argmax(-1)]

    def accuracy(self, votes: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return the share of right classes (...,), or of right attributes (..., A), of votes (..., m, A)."""
        right = self.predict(votes) == truth
        return right.mean(-2) if self.multi_label else right.all(-1).mean(-1)


def votes(points: np.ndarray, indicators: np.ndarray, queries: np.ndarray, ks: Sequence[int]) -> np.ndarray:
    """Return mean indicators of the k nearest of points (n, K) to queries (m, K), for each k: (len(ks), m, A)."""
    from sklearn.neighbors import NearestNeighbors

    if max(ks) > len(points) or min(ks) < 1:
        raise ValueError(f"expected k from 1 to the number of points, {len(points)}; got {list(ks)}")
    ascending = np.unique(ks)
    search = NearestNeighbors(n_neighbors=int(ascending[-1])).fit(points)
    out = np.empty((len(ascending), len(queries), indicators.shape[1]), dtype=np.float32)
    chunk = max(1, CELLS // (int(ascending[-1]) * indicators.shape[1]))
    for start in range(0, len(queries), chunk):
        part = slice(start, start + chunk)
        neighbours = search.kneighbors(queries[part], return_distance=False)
        between = np.add.reduceat(indicators[neighbours], np.r_[0, ascending[:-1]], axis=1)
        out[:, part] = (between.cumsum(1) / ascending[:, None]).swapaxes(0, 1)
    return out[np.searchsorted(ascending, ks)]


def choose_k(
    points: np.ndarray,
    indicators: np.ndarray,
    voting: Voting,
    candidates: Sequence[int],
    seed: int,
    *,
    of_copies: bool = False,
) -> int:
    """Choose k by two-fold cross-validation; points (n, copies, K): n labelled samples, each embedded `copies` times.

    Candidates count samples and, if there are copies, these as well: ten neighbours are the copies of ten samples, or
    ten copies. Folds consist of samples, so that none is classified by copies of itself; every class is in both. A
    sample is classified at the mean of its copies. If a class has one sample only, folds consist of copies. A single
    copy of single samples leaves k = 1.

    With `of_copies`, as in the paper, points are all copies alike: folds are of them, and so are candidates.
    """
    n, copies, _ = points.shape
    rng = np.random.default_rng(seed)
    if of_copies:
        points, indicators = together(points, indicators)
        points, n, copies = points[:, None], len(points), 1
    counts = indicators.sum(0)
    counts = counts[counts > 0]  # classes may be missing
    if of_copies or voting.multi_label or counts.min() >= 2:
        if n < 2:
            return 1
        order = rng.permutation(n)
        if not voting.multi_label:  # deal the samples of each class to the folds in turn
            order = order[np.argsort(indicators[order].argmax(1), kind="stable")]
        folds = [(points[order[i::2]], indicators[order[i::2]]) for i in (0, 1)]
        judged = [(fold.mean(1), y) for fold, y in folds]
    elif copies >= 2:
        order = rng.permutation(copies)
        folds = [(points[:, order[i::2]], indicators) for i in (0, 1)]
        judged = [together(*fold) for fold in folds]
    else:
        return 1
    labelled = [together(*fold) for fold in folds]
    fewest = min(len(fold) for fold, _ in labelled)
    ks = sorted({k for c in candidates for k in (c, c * copies) if k <= fewest}) or [1]
    scores = np.zeros(len(ks))
    for (points_in, y_in), (points_out, y_out) in zip(labelled, judged[::-1], strict=True):
        found = voting.accuracy(votes(points_in, y_in, points_out, ks), y_out)
        scores += found.mean(-1) if voting.multi_label else found
    return ks[int(scores.argmax())]


def together(points: np.ndarray, indicators: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the copies of all samples (n, copies, K) as points (n * copies, K), each with its sample's indicators."""
    return points.reshape(-1, points.shape[-1]), np.repeat(indicators, points.shape[1], axis=0)
