"""The holes of a table: best guess, spread and completions from donors, learned when they are first asked for.

The donors' distributions may be too narrow, as they were fitted to the training rows. Held-out rows say where values
that were hidden from them lie in their distributions. Completions are taken at such places (Kuleshov et al. 2018), so
far as these differ from even ones by more than chance, so that they scatter as values do. Values of a row that are
missing together are drawn together, as the copula has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.calibration import COPIES, Calibration, Predict
from lapae.calibrate.patterns import evenly, hide, several
from lapae.impute.donors import MOST_FEATURES, Donors, fit_donors
from lapae.impute.network import is_masked
from lapae.methods import Method
from lapae.networks.threads import one_thread
from lapae.predict.deviation import fit_spread
from lapae.predict.prediction import Prediction
from lapae.space import Space

CHANCE = 2.0
"""Places are not even so far as they differ from even ones by more than so many times what chance would have it."""
PLACES = 201


@dataclass
class Filling:
    """What a table is filled from."""

    train: Tensor
    """(n, D): training rows in the model's space, NaN where missing."""
    valid: Tensor
    """Other rows, which training has not seen."""
    groups: Tensor
    """(D,): the column of each feature."""
    words: Tensor
    """(D,): whether a feature is that of a category or a boolean."""
    held: Donors | None = None
    """The training rows as donors: held-out rows are filled from these."""
    all: Donors | None = None
    """All rows as donors."""
    places: Tensor | None = None
    """(D, `PLACES`): quantiles of where values lie in their distributions."""

    @classmethod
    def of(cls, train: Tensor, valid: Tensor, parts: tuple[tuple[str, int, int], ...]) -> Filling:
        """Of the features whose likelihoods are `parts`: (name, start, stop)."""
        groups, words = torch.arange(train.shape[1]), torch.zeros(train.shape[1], dtype=torch.bool)
        for name, start, stop in parts:
            words[start:stop] = name in ("bernoulli", "categorical")
            if name == "categorical":
                groups[start:stop] = start
        return cls(train, valid, torch.unique(groups, return_inverse=True)[1], words)

    @property
    def possible(self) -> bool:
        """Whether there are rows and columns enough, and not too many."""
        return int(self.groups.max()) > 0 and len(self.groups) <= MOST_FEATURES and len(self.valid) > 0

    @one_thread()  # many small operations
    def learn(self, predict: Predict, calibration: Calibration) -> Calibration:
        """Learn to fill; returns the calibration with the deviations of what is filled in so."""

        def guess(x: Tensor) -> Tensor:
            return predict(x).x_mean

        self.held = fit_donors(self.train, guess, self.groups.tolist())
        self.all = self.held.with_more(torch.cat([self.valid, calibration.rows]), guess)
        generator = torch.Generator().manual_seed(0)
        rows = torch.cat([self.valid, calibration.rows])
        seen, truth = hide(several(rows, COPIES), generator)
        known = (~rows.isnan()).sum(0)
        self.places = _quantiles(self.held.places(seen, guess(seen), truth), known)
        (given, theirs), (seen, truth) = (hide(several(part, COPIES), generator) for part in (self.train, self.valid))
        found = self.complete(predict(seen), seen, held=True)
        return replace(calibration, hidden=fit_spread(predict(given), theirs, found, seen, truth))

    def complete(self, found: Prediction, x: Tensor, *, held: bool = False, whole: Tensor | None = None) -> Prediction:
        """Predictions of x (n, D) with the donors' medians and variances in place of what is missing.

        Args:
            found: predictions of x.
            x: NaN where missing.
            held: whether these are held-out rows, which are not to be filled from themselves.
            whole: (n, D): x before values were hidden. If such a row is among the donors it gives nothing to itself.
        """
        donors = self.held if held else self.all
        assert donors is not None
        middle, variance = donors.complete(x, found.x_mean, self.words, None if whole is None else donors.find(whole))
        missing = x.isnan()
        return replace(
            found,
            x_mean=torch.where(missing, middle, found.x_mean),
            x_var=torch.where(missing, variance, found.x_var),
        )

    def draw(self, found: Prediction, x: Tensor, n: int, seed: int, *, held: bool = False) -> Tensor:
        """n completions (n, N, D) of x (N, D); `held` as in `complete`."""
        donors = self.held if held else self.all
        assert donors is not None
        copula = donors.copula
        noise = copula.noise(copula.marginals.normal(x), n, torch.Generator().manual_seed(seed))
        chance = torch.special.ndtr(noise)
        index = chance * (PLACES - 1)
        low = index.floor().clamp(0, PLACES - 2)
        below, above = (self._at(low + step) for step in (0, 1))
        placed = below + (index - low) * (above - below)
        return donors.draw(x, found.x_mean, torch.where(self.words, chance, placed))

    def tensors(self) -> dict[str, Tensor]:
        return {"train": self.train, "valid": self.valid}

    def _at(self, index: Tensor) -> Tensor:
        """Places at whole numbers (n, N, D) of their quantiles."""
        assert self.places is not None
        flat = index.long() + torch.arange(len(self.places)) * PLACES
        return self.places.reshape(-1)[flat]


def filling_of(method: Method, train: Tensor, valid: Tensor, space: Space) -> Filling | None:
    """Of tables with values hidden in training."""
    if space.kind != "table" or not is_masked(method):
        return None
    filling = Filling.of(train, valid, space.parts)
    return filling if filling.possible else None


def put_back(space: Space, made: Tensor, coded: np.ndarray) -> np.ndarray:
    """Completions (…, n, *model_shape) in the user's units, with what is observed of `coded` (n, *shape) as it was.

    A table's values are rounded to a millionth of the deviation of their column: a donor's 28 is 28 again.
    """
    filled = space.to_user((made.clamp(*space.value_range) if space.kind == "image" else made).numpy())
    if coded.dtype.kind != "f":
        return np.broadcast_to(coded, filled.shape).copy()
    if space.kind == "table":
        unit = space.to_user(np.ones((1, *space.model_shape)), deviation=True)[0]
        digits = 6 - np.ceil(np.log10(np.maximum(unit, 1e-290))).astype(int)
        for j, n in enumerate(digits.tolist()):
            filled[..., j] = np.round(filled[..., j], n)
    return np.where(np.isnan(coded), filled, coded)


def _quantiles(places: Tensor, count: Tensor) -> Tensor:
    """Quantiles (D, `PLACES`) of places (n, D), NaN where there are none, from so many rows `count` (D,) that have a
    value: even ones, but for what tells those of all features from them, and those of a feature from those of all."""
    levels = torch.linspace(0, 1, PLACES, dtype=places.dtype)
    pooled = places[~places.isnan()]
    if not len(pooled):
        return levels.expand(places.shape[1], -1).contiguous()
    together = _beyond_chance(levels, torch.quantile(evenly(pooled, 100_000), levels), count.max())
    own = torch.nanquantile(places, levels, dim=0).T
    return _beyond_chance(together, torch.where(own.isnan(), together, own), count).contiguous()


def _beyond_chance(expected: Tensor, found: Tensor, count: Tensor) -> Tensor:
    """Quantiles `found` (…, Q) of so many places `count` (…), shrunk to `expected` ones (…, Q) as James and Stein do.

    The mean squared error of the quantiles of even places is 1 / (6 count).
    """
    square = (found - expected).square().mean(-1)
    share = (1 - CHANCE / (6 * count.clamp_min(1) * square).clamp_min(1e-12)).clamp_min(0)
    return expected + share[..., None] * (found - expected)
