"""One number that says how unusual a datum is, from several things that the model knows.

Each part is a logarithm, and is counted in its deviations from its mean on data that training has not seen.

| part of a table's surprise | question                                                                               |
|----------------------------|----------------------------------------------------------------------------------------|
| residual                   | does the model reconstruct it? (Mahalanobis distance of the residual)                  |
| near                       | is it near any training datum?                                                         |
| groups                     | is it near the bulk? (nearest of small groups: outliers in the training data hide few) |
| local, three spaces        | is it as near to its neighbours as these are to theirs? (values, ranks, code+residual) |
| rarity                     | is each value usual on its own?                                                        |

Of tables the surprise is the sum of the parts that are above their mean, Σ max(t, 0): a part that finds a datum
ordinary does not speak for it.

The surprise of images, series and arrays is described in `lapae.score.images`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lapae.predict.deviation import Spread
from lapae.predict.prediction import Prediction, tensors, under
from lapae.score.images import PARTS, Field, contributions, shared, standardising
from lapae.score.marginals import Marginals
from lapae.score.neighbours import Bank
from lapae.score.whitening import whitening

TABLE = ("residual", "near", "groups", "local", "local_ranks", "local_model", "rarity")
WEIGHTS = (1.0, 1.0, 1.0, 2 / 3, 2 / 3, 2 / 3, 1.0)
"""Of the parts of a table: three answer one question."""


RESOLVED = 2e-6
"""Residual of a value, in standard deviations of its column, that single precision does not tell from 0."""
EXACT = 1e-4
"""Squared residual, in units of normal ones, below which a row counts as reconstructed exactly."""

HELD: dict[str, Any] = {"bank": Bank, "ranks": Bank, "view": Bank, "marginals": Marginals, "field": Field}
"""What a surprise may hold, by name."""


@dataclass(frozen=True)
class Parts:
    """The parts of B data, and how each is shared out among the values of a datum."""

    values: Tensor
    """(B, P): higher is more unusual."""
    shares: Tensor
    """(B, P, D): at least 0, adding up to 1 over D."""


@dataclass(frozen=True)
class Surprise:
    """Fitted on data that training has not seen."""

    spread: Spread
    directions: Tensor
    """(Q, D): rows V with |V r|² the Mahalanobis distance of a residual r in units of the noise, of a table."""
    mean: Tensor
    """(P,): of the parts."""
    whiten: Tensor
    """Takes parts less their mean to unit variance: (P, P), diagonal, for a table; else see `field.standardising`."""
    bank: Bank | None = None
    ranks: Bank | None = None
    view: Bank | None = None
    """Banks of a table: its values, their ranks, and what the model makes of them (code and residual)."""
    marginals: Marginals | None = None
    field: Field | None = None
    """Of data that are no table."""

    @property
    def names(self) -> tuple[str, ...]:
        return TABLE if self.field is None else PARTS[: len(self.mean)]

    def parts(self, found: Prediction, x: Tensor, own: Tensor | None = None) -> Parts:
        """Measure rows x (B, *features); missing values count as the model expects them.

        `own` (B,): where rows that are in the banks themselves are, see `Bank.measure`.
        """
        if self.field is not None:
            return Parts(*self.field.parts(found, x, self.spread, len(self.mean)))
        flat, mean = x.flatten(1), found.x_mean.flatten(1)
        missing = flat.isnan()
        n_seen = (~missing).sum(1).clamp_min(1)
        scaled = residuals(found, x, self.spread)
        projected = scaled @ self.directions.T
        residual = (projected.square().sum(1) / n_seen + EXACT).log()
        of_residual = shared(scaled * (projected @ self.directions))
        assert self.bank is not None and self.ranks is not None  # noqa: PT018
        assert self.view is not None and self.marginals is not None  # noqa: PT018
        full = torch.where(missing, mean, flat)
        near = self.bank.measure(full, own)
        ranked = self.ranks.measure(self.marginals.normal(full), own)
        seen = self.view.measure(model_view(found, scaled, self.spread), own)
        rare = torch.where(missing, 0.0, self.marginals.rarity(full))
        values = [residual, near.near, near.groups, near.ratio, ranked.ratio, seen.ratio, rare.sum(1)]
        of_near, of_code = shared(near.gap), shared(seen.gap[:, -flat.shape[1] :])
        shares = [of_residual, of_near, of_near, of_near, shared(ranked.gap), of_code, shared(rare)]
        return Parts(torch.stack(values, 1), torch.stack(shares, 1))

    def standardised(self, values: Tensor) -> Tensor:
        """Parts (B, P) in units of their deviation."""
        return (values - self.mean) @ self.whiten.T

    def __call__(self, found: Prediction, x: Tensor, own: Tensor | None = None) -> Tensor:
        """The surprise (B,) of x; `own` as in `parts`."""
        values = self.parts(found, x, own).values
        if self.field is not None:
            return contributions(values - self.mean, self.whiten).sum(1)
        t = self.standardised(values)
        weight = t.new_tensor(WEIGHTS)
        return (t.clamp_min(0) + 1e-3 * t) @ weight  # the small term tells apart what is normal in all parts

    def explain(self, found: Prediction, x: Tensor) -> Tensor:
        """Contribution (B, *features) of each value, at least 0: they add up to the surprise, but for its last term."""
        parts = self.parts(found, x)
        t = self.standardised(parts.values)
        if self.field is not None:
            weight = contributions(parts.values - self.mean, self.whiten)
        else:
            weight = t.clamp_min(0) * t.new_tensor(WEIGHTS)
        return torch.einsum("bp,bpd->bd", weight, parts.shares).reshape(x.shape)

    def named(self, found: Prediction, x: Tensor) -> dict[str, Tensor]:
        """The parts by name, (B,) each, in units of their deviation from normal data."""
        values = self.parts(found, x).values
        deviation = self.whiten[-len(self.mean) :].inverse().square().sum(1).sqrt()
        return dict(zip(self.names, ((values - self.mean) / deviation).unbind(1), strict=True))


def fit_surprise(
    rows: Tensor,
    known: Prediction,
    found: Prediction,
    valid: Tensor,
    spread: Spread,
    *,
    table: bool,
    n_seen: int | None = None,
    own: Tensor | None = None,
) -> Surprise:
    """Fit to data that training has not seen.

    Args:
        rows: data (R, *features) that others are compared with, for neighbours and marginals of tables.
        known: predictions of `rows`.
        found: predictions of `valid`.
        valid: held-out data (n, *features).
        spread: the noise of features, and the neighbours of codes.
        table: whether features are of different kinds, and unusual in one direction alone.
        n_seen: how many of `rows`, from the first on, may say how usual single values are; default all.
        own: where `valid` are among `rows`, as in `Bank.measure`.
    """
    scaled = residuals(found, valid, spread)
    directions = whitening(scaled) if table else scaled[:0]
    n_parts = len(TABLE if table else PARTS)
    held: dict[str, Any] = {}
    if table:
        full = torch.where(rows.isnan(), known.x_mean, rows)
        of_rows = residuals(known, rows, spread)
        marginals = Marginals.of(full[:n_seen])
        banks = {"bank": full, "ranks": marginals.normal(full), "view": model_view(known, of_rows, spread)}
        held = {"marginals": marginals, **{name: Bank.of(values) for name, values in banks.items()}}
    else:
        held["field"] = Field.of(rows, known, spread)
    eye = torch.eye(n_parts, dtype=scaled.dtype)
    start = Surprise(spread, directions, scaled.new_zeros(n_parts), eye, **held)
    values = start.parts(found, valid, own).values
    mean = values.mean(0)
    whiten = torch.diag(values.std(0).clamp_min(1e-6).reciprocal()) if table else standardising(values)
    return Surprise(spread, directions, mean, whiten, **held)


def residuals(found: Prediction, x: Tensor, spread: Spread) -> Tensor:
    """Return residuals (B, D) in units of the noise, 0 where x is missing or reconstructed as well as it is known."""
    gap = (x - found.x_mean).nan_to_num()
    return (torch.where(gap.abs() <= RESOLVED, 0.0, gap) / spread.noise).flatten(1)


def model_view(found: Prediction, scaled: Tensor, spread: Spread) -> Tensor:
    """What the model makes of data: codes in units of their deviation beside scaled residuals (B, D), weighed."""
    z = found.z_mean.flatten(1) / spread.width
    return torch.cat([z, math.sqrt(z.shape[1] / scaled.shape[1]) * scaled], 1)


def to_tensors(surprise: Surprise) -> dict[str, Tensor]:
    """What to save besides the spread."""
    out = {name: getattr(surprise, name) for name in ("directions", "mean", "whiten")}
    for name in HELD:
        held: Any = getattr(surprise, name)
        if held is not None:
            out |= {f"{name}.{key}": value for key, value in tensors(held).items()}
    return out


def from_tensors(spread: Spread, saved: dict[str, Tensor]) -> Surprise:
    """Inverse of `to_tensors`."""
    held = {name: kind(**own) for name, kind in HELD.items() if (own := under(name, saved))}
    return Surprise(spread, saved["directions"], saved["mean"], saved["whiten"], **held)
