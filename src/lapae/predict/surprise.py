"""One number that says how unusual a datum is, from several things that the model knows.

Each part is a logarithm: how large the residual is in its own covariance, how far the nearest training data are, how rare
the values are. On data that training has not seen each has a mean and a deviation, and is counted in these.

Of tables the surprise is the sum of the parts that are above their mean, Σ max(t, 0): a datum is unusual if anything about
it is. Of images, series and other arrays it is the length of the vector t, decorrelated (a Mahalanobis distance), so that
unusually good is unusual too: a blank image is easy to reconstruct, and no normal image is that easy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lapae.predict.marginals import Marginals
from lapae.predict.neighbours import Bank
from lapae.predict.prediction import Prediction
from lapae.predict.spread import Spread

TINY = 1e-12
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
    marginals: Marginals | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parts."""
        if self.bank is not None:
            return "residual", "neighbours", "groups", "local", "rarity"
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
        if self.bank is not None and self.ranks is not None and self.marginals is not None:
            full = torch.where(missing, mean, flat)
            near, ranked = self.bank.measure(full), self.ranks.measure(self.marginals.normal(full))
            rare = torch.where(missing, 0.0, self.marginals.rarity(full))
            rarity = rare.sum(1) / n_seen
            values = [residual, near.near, near.groups, ranked.ratio, rarity]
            of_near = _shares(near.gap)
            shares = [of_residual, of_near, of_near, _shares(ranked.gap), _shares(rare)]
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
        return t.clamp_min(0).sum(1) + 1e-3 * t.mean(1)  # the last term tells apart what is normal in all parts

    def explain(self, found: Prediction, x: Tensor) -> Tensor:
        """Contribution (B, *features) of each value, at least 0: they add up to the surprise, but for its last term."""
        parts = self.parts(found, x)
        t = self.standardised(parts.values)
        if self.bank is None:
            weight = t.square()
            weight = weight / weight.sum(1, keepdim=True).clamp_min(TINY) * weight.sum(1, keepdim=True).sqrt()
        else:
            weight = t.clamp_min(0)
        return torch.einsum("bp,bpd->bd", weight, parts.shares).reshape(x.shape)

    def named(self, found: Prediction, x: Tensor) -> dict[str, Tensor]:
        """The parts by name, (B,) each, in units of their deviation from normal data."""
        values = self.parts(found, x).values
        deviation = self.whiten.inverse().square().sum(1).sqrt()
        return dict(zip(self.names, ((values - self.mean) / deviation).unbind(1), strict=True))


def fit_surprise(train: Tensor, found: Prediction, valid: Tensor, spread: Spread, *, table: bool) -> Surprise:
    """Fit to data that training has not seen.

    Args:
        train: some training data (R, *features), for neighbours and marginals of tables.
        found: predictions of `valid`.
        valid: held-out data (n, *features).
        spread: the noise of features, and the neighbours of codes.
        table: whether features are of different kinds, and unusual in one direction alone.
    """
    assert found.x_mean is not None
    scaled = ((valid - found.x_mean).nan_to_num() / spread.noise).flatten(1)
    directions = _whitening(scaled)
    n_parts = 5 if table else 6
    bank = ranks = marginals = None
    if table:
        full = torch.where(train.isnan(), 0.0, train)
        marginals = Marginals.of(full)
        bank, ranks = Bank.of(full), Bank.of(marginals.normal(full))
    start = Surprise(
        spread, directions, scaled.new_zeros(n_parts), torch.eye(n_parts, dtype=scaled.dtype), bank, ranks, marginals
    )
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
    return Surprise(spread, directions, mean, whiten, bank, ranks, marginals)


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
    for name in ("bank", "ranks", "marginals"):
        held: Any = getattr(surprise, name)
        if held is not None:
            out |= {f"{name}.{key}": value for key, value in held.tensors().items()}
    return out


def from_tensors(spread: Spread, tensors: dict[str, Tensor]) -> Surprise:
    """Inverse of `to_tensors`."""
    kinds: dict[str, Any] = {"bank": Bank, "ranks": Bank, "marginals": Marginals}
    held = {}
    for name, kind in kinds.items():
        own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        held[name] = kind(**own) if own else None
    return Surprise(spread, *(tensors[name] for name in ("directions", "mean", "whiten")), **held)
