"""One number that says how unusual a datum is, from several things that the model knows.

Each part is a logarithm, and is counted in its deviations from its mean on data that training has not seen.

| part of a table's surprise | question                                                                               |
|----------------------------|----------------------------------------------------------------------------------------|
| residual                   | does the model reconstruct it? (Mahalanobis distance of the residual)                  |
| near                       | is it near any training datum?                                                         |
| groups                     | is it near the bulk? (nearest of small groups: outliers in the training data hide few) |
| local, three spaces        | is it as near to its neighbours as these are to theirs? (values, ranks, code+residual) |
| rarity                     | is each value usual on its own?                                                        |

Of tables the surprise is the sum of the parts that are above their mean, Σ max(t, 0): a part that finds a datum ordinary
does not speak for it. Of images, series and other arrays it is the length of the vector of parts, decorrelated (a
Mahalanobis distance), so that unusually good is unusual too: a blank image is easy to reconstruct, and no normal image is
that easy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lapae.predict.marginals import Marginals
from lapae.predict.neighbours import Bank
from lapae.predict.prediction import Prediction
from lapae.predict.spread import Spread

TINY = 1e-12
TABLE = ("residual", "near", "groups", "local", "local_ranks", "local_model", "rarity")
WEIGHTS = (1.0, 1.0, 1.0, 2 / 3, 2 / 3, 2 / 3, 1.0)
"""Of the parts of a table: three answer one question."""
DIRECTIONS = 64
"""Principal directions of residuals in which the Mahalanobis distance is taken, at most."""


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
    """(Q, D): rows V with |V r|² the Mahalanobis distance of a residual r in units of the noise."""
    mean: Tensor
    """(P,): of the parts."""
    whiten: Tensor
    """(P, P): takes parts less their mean to unit variance; decorrelated for a two-sided surprise."""
    bank: Bank | None = None
    ranks: Bank | None = None
    view: Bank | None = None
    """Banks of a table: its values, their ranks, and what the model makes of them (code and residual)."""
    marginals: Marginals | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parts."""
        if self.bank is not None:
            return TABLE
        return "residual", "energy", "roughness", "code_distance", "latent_deviation", "output_deviation"

    def parts(self, found: Prediction, x: Tensor) -> Parts:
        """Of data x (B, *features), NaN where missing: such values count as the model expects them."""
        assert found.x_mean is not None
        flat, mean = x.flatten(1), found.x_mean.flatten(1)
        missing = flat.isnan()
        gap = torch.where(missing, 0.0, flat - mean)
        n_seen = (~missing).sum(1).clamp_min(1)
        scaled = gap / self.spread.noise.flatten()
        projected = scaled @ self.directions.T
        residual = (projected.square().sum(1) / n_seen + TINY).log()
        of_residual = _shares(scaled * (projected @ self.directions))
        if self.bank is not None and self.ranks is not None and self.view is not None and self.marginals is not None:
            full = torch.where(missing, mean, flat)
            near = self.bank.measure(full)
            ranked = self.ranks.measure(self.marginals.normal(full))
            seen = self.view.measure(model_view(found, scaled, self.spread))
            rare = torch.where(missing, 0.0, self.marginals.rarity(full))
            values = [residual, near.near, near.groups, near.ratio, ranked.ratio, seen.ratio, rare.sum(1)]
            of_near, of_code = _shares(near.gap), _shares(seen.gap[:, -flat.shape[1] :])
            shares = [of_residual, of_near, of_near, of_near, _shares(ranked.gap), of_code, _shares(rare)]
            return Parts(torch.stack(values, 1), torch.stack(shares, 1))
        energy = gap.square().sum(1) / n_seen + TINY
        knowledge = self.spread.knowledge(found, x)
        values = [
            residual,
            energy.log(),
            roughness(gap.reshape(x.shape)),
            knowledge[:, 2],
            knowledge[:, 1],
            knowledge[:, 0],
        ]
        of_energy = _shares(gap.square())
        return Parts(torch.stack(values, 1), torch.stack([of_residual, *[of_energy] * 5], 1))

    def standardised(self, values: Tensor) -> Tensor:
        """Parts (B, P) in units of their deviation."""
        return (values - self.mean) @ self.whiten.T

    def __call__(self, found: Prediction, x: Tensor) -> Tensor:
        """The surprise (B,) of x."""
        t = self.standardised(self.parts(found, x).values)
        if self.bank is None:
            return t.square().sum(1).sqrt()
        weight = t.new_tensor(WEIGHTS)
        return (t.clamp_min(0) + 1e-3 * t) @ weight  # the small term tells apart what is normal in all parts

    def explain(self, found: Prediction, x: Tensor) -> Tensor:
        """Contribution (B, *features) of each value, at least 0: they add up to the surprise, but for its last term."""
        parts = self.parts(found, x)
        t = self.standardised(parts.values)
        if self.bank is None:
            weight = t.square()
            weight = weight / weight.sum(1, keepdim=True).clamp_min(TINY) * weight.sum(1, keepdim=True).sqrt()
        else:
            weight = t.clamp_min(0) * t.new_tensor(WEIGHTS)
        return torch.einsum("bp,bpd->bd", weight, parts.shares).reshape(x.shape)

    def named(self, found: Prediction, x: Tensor) -> dict[str, Tensor]:
        """The parts by name, (B,) each, in units of their deviation from normal data."""
        values = self.parts(found, x).values
        deviation = self.whiten.inverse().square().sum(1).sqrt()
        return dict(zip(self.names, ((values - self.mean) / deviation).unbind(1), strict=True))


def fit_surprise(
    rows: Tensor, known: Prediction, found: Prediction, valid: Tensor, spread: Spread, *, table: bool
) -> Surprise:
    """Fit to data that training has not seen.

    Args:
        rows: data (R, *features) that others are compared with, for neighbours and marginals of tables.
        known: predictions of `rows`.
        found: predictions of `valid`.
        valid: held-out data (n, *features).
        spread: the noise of features, and the neighbours of codes.
        table: whether features are of different kinds, and unusual in one direction alone.
    """
    assert found.x_mean is not None
    assert known.x_mean is not None
    scaled = ((valid - found.x_mean).nan_to_num() / spread.noise).flatten(1)
    directions = _whitening(scaled)
    n_parts = len(TABLE) if table else 6
    held: dict[str, Any] = {}
    if table:
        full = torch.where(rows.isnan(), known.x_mean, rows)
        of_rows = ((rows - known.x_mean).nan_to_num() / spread.noise).flatten(1)
        marginals = Marginals.of(full)
        banks = {"bank": full, "ranks": marginals.normal(full), "view": model_view(known, of_rows, spread)}
        held = {"marginals": marginals, **{name: Bank.of(values) for name, values in banks.items()}}
    eye = torch.eye(n_parts, dtype=scaled.dtype)
    start = Surprise(spread, directions, scaled.new_zeros(n_parts), eye, **held)
    values = start.parts(found, valid).values
    mean = values.mean(0)
    if table:
        whiten = torch.diag(values.std(0).clamp_min(1e-6).reciprocal())
    else:
        gap = values - mean
        covariance = gap.T @ gap / max(len(gap) - 1, 1)
        scale = covariance.diagonal().clamp_min(1e-8)
        covariance = covariance + torch.diag(1e-2 * scale)  # parts that say the same are not held against each other
        whiten = torch.linalg.inv(torch.linalg.cholesky(covariance))
    return Surprise(spread, directions, mean, whiten, **held)


def model_view(found: Prediction, scaled: Tensor, spread: Spread) -> Tensor:
    """What the model makes of data: codes in units of their deviation, beside scaled residuals (B, D), evenly weighed."""
    assert found.z_mean is not None
    z = found.z_mean.flatten(1) / spread.width
    return torch.cat([z, math.sqrt(z.shape[1] / scaled.shape[1]) * scaled], 1)


def roughness(gap: Tensor) -> Tensor:
    """Log of how much neighbouring residuals differ, beside their size: (B, *features) -> (B,). 0 for tables."""
    size = gap.flatten(1).square().mean(1) + TINY
    steps = [gap.diff(dim=axis).flatten(1).square().mean(1) for axis in range(max(1, gap.ndim - 2), gap.ndim)]
    return ((torch.stack(steps).mean(0) + TINY) / size).log() if gap.ndim > 2 else torch.zeros_like(size)


def _whitening(scaled: Tensor) -> Tensor:
    """Rows V such that VᵀV is the inverse of the covariance (about 0) of scaled residuals (n, D), shrunk; of many features
    in their main directions alone."""
    n, d = scaled.shape
    covariance = scaled.T @ scaled / n if d <= 4 * DIRECTIONS or d <= n else None
    if covariance is not None and d <= 4 * DIRECTIONS:
        # Ledoit and Wolf's shrinkage towards a multiple of the identity
        mean = covariance.trace() / d
        spread = (covariance - mean * torch.eye(d, dtype=scaled.dtype)).square().sum()
        noise = (scaled.square().sum(1).square().sum() / n - covariance.square().sum()) / n
        share = (noise / spread.clamp_min(TINY)).clamp(0, 1)
        shrunk = (1 - share) * covariance + share * mean * torch.eye(d, dtype=scaled.dtype)
        values, vectors = torch.linalg.eigh(shrunk)
        return (vectors * values.clamp_min(1e-6 * float(values.max()) + TINY).rsqrt()).T
    k = min(DIRECTIONS, n, d)
    _, sizes, vectors = torch.linalg.svd(scaled / n**0.5, full_matrices=False)
    return vectors[:k] / sizes[:k, None].square().add(1e-3 * float(sizes[0]) ** 2).sqrt()


def _shares(x: Tensor) -> Tensor:
    """Non-negative parts of x (B, D) as shares of their sum."""
    x = x.clamp_min(0)
    return (x + TINY) / (x + TINY).sum(1, keepdim=True)


def to_tensors(surprise: Surprise) -> dict[str, Tensor]:
    """What to save besides the spread."""
    out = {name: getattr(surprise, name) for name in ("directions", "mean", "whiten")}
    for name in ("bank", "ranks", "view", "marginals"):
        held: Any = getattr(surprise, name)
        if held is not None:
            out |= {f"{name}.{key}": value for key, value in held.tensors().items()}
    return out


def from_tensors(spread: Spread, tensors: dict[str, Tensor]) -> Surprise:
    """Inverse of `to_tensors`."""
    kinds: dict[str, Any] = {"bank": Bank, "ranks": Bank, "view": Bank, "marginals": Marginals}
    held = {}
    for name, kind in kinds.items():
        own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        held[name] = kind(**own) if own else None
    return Surprise(spread, *(tensors[name] for name in ("directions", "mean", "whiten")), **held)
