"""How unusual a datum is: the rank of its log-likelihood among those of known data, as a number and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lapae.data import Split
from lapae.model import Model
from lapae.tasks.base import subset, tensor
from lapae.view.display import short

VERDICTS = ((1.0, "very unusual"), (5.0, "unusual"), (20.0, "a little unusual"), (100.0, "ordinary"))
"""Up to which percentile a datum is called what."""
MOST_HIDDEN = 2**16
"""Values of the data that one with missing values is compared with: they are scored anew for each."""


@dataclass(frozen=True)
class Reference:
    """Log-likelihoods of data of one kind, to compare with."""

    name: str
    """In words: "training data"."""
    split: str
    index: np.ndarray
    """(n,): which data of the split."""
    x: Tensor
    """(n, *shape): the data, in the model's space."""
    log_likelihood: np.ndarray
    """(n,): NaN where a datum lacks values that others have."""

    def hiding(self, missing: Tensor, score: Callable[[Tensor], np.ndarray], most: int | None = None) -> Reference:
        """The same data without the values that are `missing` (*shape), at most so many: their likelihoods compare
        with that of a datum which lacks the same values."""
        chosen = torch.arange(len(self.x))[:most]
        x = self.x[chosen].masked_fill(missing, torch.nan)
        usable = ~(x.isnan() & ~missing).flatten(1).any(1)
        scores = np.full(len(x), np.nan)
        if usable.any():
            scores[usable.numpy()] = score(x[usable])
        name = f"{self.name}, without the same values" if missing.any() else self.name
        return Reference(name, self.split, self.index[chosen.numpy()], self.x[chosen], scores)

    def rank(self, log_likelihood: float, *, split: str | None = None, index: int | None = None) -> Rank | None:
        """Among the others: a datum of the reference itself is not compared with itself."""
        others = self.log_likelihood
        if split == self.split and index is not None:
            others = others[self.index != index]
        others = others[~np.isnan(others)]
        if not len(others) or np.isnan(log_likelihood):
            return None
        below, ties = int((others < log_likelihood).sum()), int((others == log_likelihood).sum())
        return Rank(100 * (below + 0.5 * ties) / len(others), below + ties, len(others), self.name)


@dataclass(frozen=True)
class Rank:
    """A place among n data."""

    percentile: float
    """Share of the others whose log-likelihood is lower, from 0 to 100: low is unusual."""
    at_most: int
    """How many others are not more ordinary."""
    n: int
    name: str

    @property
    def verdict(self) -> str:
        return next(word for most, word in VERDICTS if self.percentile <= most)

    @property
    def words(self) -> str:
        if self.at_most == 0:
            return f"More unusual than every one of {self.n:,} {self.name}."
        if self.at_most == self.n and self.percentile > 99:
            return f"More ordinary than every one of {self.n:,} {self.name}."
        digits = 0 if 1 <= self.percentile <= 99 else 1
        if self.percentile >= 50:
            return f"More ordinary than {self.percentile:.{digits}f} % of {self.n:,} {self.name}."
        return f"More unusual than {100 - self.percentile:.{digits}f} % of {self.n:,} {self.name}."

    def to_dict(self) -> dict[str, object]:
        return {
            "percentile": round(self.percentile, 2),
            "n": self.n,
            "among": self.name,
            "verdict": self.verdict,
            "words": self.words,
        }


class Comparison:
    """What a datum is compared with: training data, and data that training has not seen."""

    def __init__(
        self,
        model: Model,
        splits: Mapping[str, Split],
        score: Callable[[Tensor], np.ndarray],
        *,
        most: int,
        seed: int = 0,
    ) -> None:
        self.score = score
        self.n_values = max(1, int(np.prod(model.shape)))
        self.references: dict[str, Reference] = {}
        held_out = "test" if "test" in splits else "validation"
        named = {"training": ("train", "training data"), "held_out": (held_out, f"{held_out} data (not trained on)")}
        for key, (name, told) in named.items():
            if name in splits:
                index = subset(splits[name], most, seed)
                plain = Reference(told, name, index, tensor(model, splits[name], index), np.zeros(0))
                self.references[key] = plain.hiding(torch.zeros(model.shape, dtype=torch.bool), score)

    def of(self, stored: np.ndarray, score: float, split: str | None, index: int | None) -> dict[str, object]:
        """Of a datum (*shape): against held-out data first, as training makes its own data too likely; a training
        datum against its like. One with missing values is compared with data that lack them too."""
        missing = torch.as_tensor(np.isnan(stored)) if stored.dtype.kind == "f" else torch.zeros(1, dtype=torch.bool)
        order = ("training", "held_out") if split == "train" else ("held_out", "training")
        references = [self.references[key] for key in order if key in self.references]
        if missing.any():
            most = MOST_HIDDEN // self.n_values + 50
            references = [reference.hiding(missing, self.score, most) for reference in references[:1]]
        ranks = [reference.rank(score, split=split, index=index) for reference in references]
        return {
            "log_likelihood": short(score) if np.isfinite(score) else None,
            "ranks": [rank.to_dict() for rank in ranks if rank is not None],
            "reason": "There are no data to compare it with." if not any(ranks) else None,
        }
