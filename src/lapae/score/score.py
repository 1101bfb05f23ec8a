"""The anomaly score: one number that says how unusual a sample is, combined from several parts.

Each part is a logarithm, in standard deviations from its mean on rows that training has not seen. If few rows of a
table are held out, training rows are used as well, each compared with the others.

| part of a table's score | question                                                                               |
|-------------------------|----------------------------------------------------------------------------------------|
| residual                | does the model reconstruct it? (Mahalanobis distance of the residual)                  |
| near                    | is it near any training row?                                                           |
| groups                  | is it near the bulk? (nearest of small groups, which outliers in training hardly mask) |
| local, three spaces     | is it as near to its neighbours as these are to theirs? (values, ranks, code+residual) |
| rarity                  | is each value usual on its own?                                                        |

The score of a table's row is the sum of the parts that are above their mean, Σ max(t, 0): a part that finds a row
ordinary does not compensate for others. `lapae.score.images` describes the score of images, `lapae.score.series` that
of series, and `lapae.score.patches` that of feature maps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lapae.predict.deviation import Deviation
from lapae.predict.prediction import Prediction, Quantity
from lapae.runs.parts import IN_COMMON, formerly
from lapae.score.channels import Channels
from lapae.score.images import ImageParts, contributions, shared, standardising
from lapae.score.marginals import Marginals
from lapae.score.neighbours import NearestRows
from lapae.score.patches import PatchDistances
from lapae.score.series import PARTS as SERIES
from lapae.score.series import TWO, Shapes, weights
from lapae.score.whitening import TINY, whitening

TABLE = ("residual", "near", "groups", "local", "local_ranks", "local_model", "rarity")
WEIGHTS = (1.0, 1.0, 1.0, 2 / 3, 2 / 3, 2 / 3, 1.0)
"""Weights of the parts of a table; three of them answer the same question."""
RESOLVED = 2e-6
"""Residual of a value, in standard deviations of its column, that single precision cannot distinguish from 0."""
FILLED = 4
"""Decimals of a value that replaces a missing one, so that it does not depend on rounding errors of the prediction."""
TAIL = 0.75
"""Share of held-out rows whose scores are below the tail; the tail falls off about exponentially."""
LEAST_SURPRISE = 0.1
"""Total surprise of the channels of a window, in nats, that is ignored."""
EXACT = 1e-4
"""Squared residual, in units of normal ones, below which a row counts as reconstructed exactly."""


@dataclass(frozen=True)
class Parts:
    """Parts of the scores of B samples, and how each is divided among the values of a sample.

    Attributes:
        values: (B, P), higher is more unusual.
        shares: (B, P, D), at least 0, adding up to 1 over D; None if they were not requested.
    """

    values: Tensor
    shares: Tensor | None


@dataclass(frozen=True)
class Score:
    """Anomaly score, fitted on the rows that the module describes.

    Attributes:
        deviation: noise of the features, and the scale of codes.
        directions: rows V with |V r|² the Mahalanobis distance of a residual r in units of the noise, for a table,
            (Q, D).
        mean: mean of the parts, (P,).
        whiten: maps centred parts to unit variance: (P, P), diagonal, for a table; for other data see
            `lapae.score.images.standardising`.
        bank: rows of a table in which neighbours are found by their values;
        ranks: by the normal scores of their ranks;
        view: by their code and residual.
        marginals: distribution of each column of a table.
        image_parts: parts of images, series and arrays.
        judged: channels of a series that are scored, (J,); None for all. The model reads the others, too.
        patches: distances at the positions of feature maps.
        tail: increase of the score of a table's row that makes rows as unusual rarer by a factor e.
        channels: how unusual each judged channel of a series is, to name the sensor; None for one channel.
        shapes: training windows of a series without their levels; None for other data, and for older models.
    """

    deviation: Deviation = field(metadata=IN_COMMON)
    directions: Tensor
    mean: Tensor
    whiten: Tensor
    bank: NearestRows | None = None
    ranks: NearestRows | None = None
    view: NearestRows | None = None
    marginals: Marginals | None = None
    image_parts: ImageParts | None = field(default=None, metadata=formerly("field"))
    judged: Tensor | None = None
    patches: PatchDistances | None = None
    tail: Tensor | None = None
    channels: Channels | None = None
    shapes: Shapes | None = None

    @classmethod
    def fit(
        cls,
        rows: Tensor,
        known: Prediction,
        found: Prediction,
        valid: Tensor,
        deviation: Deviation,
        *,
        table: bool,
        n_seen: int | None = None,
        own: Tensor | None = None,
        judged: Tensor | None = None,
        apart: int | None = None,
    ) -> Score:
        """Fit to rows that have the same relation to the model as new rows.

        Args:
            rows: rows (R, *features) that others are compared with, for neighbours and marginals of tables.
            known: predictions of `rows`.
            found: predictions of `valid`.
            valid: held-out rows (n, *features), and training rows of a table if these are few.
            deviation: the noise of features, and the scale of codes.
            table: whether features are of different kinds, so that parts are unusual in one direction only.
            n_seen: number of `rows`, from the first one, that define how usual single values are; default: all.
            own: indices of `valid` among `rows`, as in `NearestRows.measure`.
            judged: channels of a series to score, (J,); default: all.
            apart: distance in `rows` from which on two windows of a series share no step; default: unknown.
        """
        scaled = residuals(found, valid, deviation)
        image_parts = None if table else ImageParts.fit(*chosen(judged, rows, known, deviation))
        series = image_parts is not None and rows.ndim == 3
        channels: Channels | None = None
        shapes: Shapes | None = None
        if image_parts is not None:
            if series:
                seen, new = (full_channels(judged, x, of) for x, of in ((rows, known), (valid, found)))
                channels, shapes = Channels.fit(seen, new) if seen.shape[2] > 1 else None, Shapes.fit(seen)
            n_parts = len(SERIES) - (channels is None) if series else image_parts.n_parts
        else:
            n_parts = len(TABLE)
        zero, eye = scaled.new_zeros(n_parts), torch.eye(n_parts, dtype=scaled.dtype)
        if image_parts is not None:
            start = cls(
                deviation,
                scaled[:0],
                zero,
                eye,
                image_parts=image_parts,
                judged=judged,
                channels=channels,
                shapes=shapes,
            )
        else:
            full = filled(rows, known.x_mean)
            marginals = Marginals.fit(full[:n_seen])
            view = model_view(known, residuals(known, rows, deviation), deviation)
            bank, ranks, view = (NearestRows.fit(values) for values in (full, marginals.normal(full), view))
            start = cls(deviation, whitening(scaled), zero, eye, bank, ranks, view, marginals)
        values = start.parts(found, valid, own, shares=False).values
        if series and apart is not None:
            left_out = start.of_series(known, rows, shares=False, apart=apart).values
            left_out = left_out[left_out.isfinite().all(1)]
            values = torch.cat([left_out - left_out.mean(0) + values.mean(0), values]) if len(left_out) else values
        if image_parts is None:
            whiten = torch.diag(values.std(0).clamp_min(1e-6).reciprocal())
        else:
            whiten = standardising(values, TWO if series else image_parts.two_sided)
        fitted = replace(start, mean=values.mean(0), whiten=whiten)
        return replace(fitted, tail=tail(fitted.total(values))) if table else fitted

    @classmethod
    def of_maps(cls, maps: Tensor, deviation: Deviation) -> Score:
        """Fit to feature maps (n, h, w, D); each of them is scored as if it were left out."""
        patches = PatchDistances.fit(maps)
        values = patches.of_images(maps, torch.arange(len(maps)))[:, None]
        whiten = torch.diag(values.std(0).clamp_min(1e-6).reciprocal())
        return cls(deviation, maps[:0].flatten(1), values.mean(0), whiten, patches=patches)

    def __call__(self, found: Prediction, x: Tensor, own: Tensor | None = None) -> Tensor:
        """Score samples x (B, *features): (B,), higher is more unusual; `own` as in `parts`."""
        values = self.parts(found, x, own, shares=False).values
        if self.patches is not None:
            return values[:, 0]
        if self.image_parts is not None:
            return self._weights(values).sum(1)
        return self.total(values)

    def _weights(self, values: Tensor) -> Tensor:
        """Return what each part (B, P) of an image or a series adds to the score, (B, P)."""
        return (contributions if self.shapes is None else weights)(values - self.mean, self.whiten)

    def total(self, values: Tensor) -> Tensor:
        """Return the anomaly scores (B,) of rows of a table from their parts (B, P)."""
        t = self.standardised(values)
        weight = t.new_tensor(WEIGHTS)
        return (t.clamp_min(0) + 1e-3 * t) @ weight  # the small term orders rows that are normal in all parts

    @property
    def logarithmic(self) -> bool:
        """Whether scores are sums of logarithms, not of squares as those of images and of series saved before."""
        return self.image_parts is None or self.shapes is not None

    @property
    def needs(self) -> tuple[Quantity, ...]:
        """Quantities of a prediction that the score needs: its means, which some predictives take over networks."""
        linearised = self.image_parts is None or self.deviation.adds_variance
        return ("means",) if linearised else ("codes", "outputs")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""
        if self.patches is not None:
            return ("patches",)
        if self.image_parts is None:
            return TABLE
        return self.image_parts.names[: len(self.mean)] if self.shapes is None else SERIES[: len(self.mean)]

    def parts(self, found: Prediction, x: Tensor, own: Tensor | None = None, *, shares: bool = True) -> Parts:
        """Measure samples x (B, *features); missing values count as the model expects them.

        Args:
            found: predictions of x.
            x: the samples.
            own: (B,) indices of rows that are in the banks themselves, see `NearestRows.measure`.
            shares: whether to divide the parts of a table among values.
        """
        if self.patches is not None:
            found_at = self.patches(x, own)
            values = self.patches.top(found_at)[:, None]
            if not shares:
                return Parts(values, None)
            excess = (found_at - found_at.flatten(1).median(1).values[:, None, None]).clamp_min(0).square()
            evenly = excess[..., None].expand_as(x).flatten(1)
            return Parts(values, shared(evenly)[:, None])
        if self.shapes is not None:
            return self.of_series(found, x, shares=shares)
        if self.image_parts is not None:
            seen, means, deviation = chosen(self.judged, x, found, self.deviation)
            values, of_parts = self.image_parts.parts(means, seen, deviation, len(self.mean))
            return Parts(values, of_parts if self.judged is None or not shares else spread(of_parts, self.judged, x))
        flat, mean = x.flatten(1), found.x_mean.flatten(1)
        missing = flat.isnan()
        n_seen = (~missing).sum(1).clamp_min(1)
        scaled = residuals(found, x, self.deviation)
        projected = scaled @ self.directions.T
        residual = (projected.square().sum(1) / n_seen + EXACT).log()
        assert self.bank is not None and self.ranks is not None  # noqa: PT018
        assert self.view is not None and self.marginals is not None  # noqa: PT018
        full = filled(flat, mean)
        near = self.bank.measure(full, own, gaps=shares)
        ranked = self.ranks.measure(self.marginals.normal(full), own, groups=False, gaps=shares)
        seen = self.view.measure(model_view(found, scaled, self.deviation), own, groups=False, gaps=shares)
        rare = torch.where(missing, 0.0, self.marginals.rarity(full))
        assert near.groups is not None
        values = [residual, near.near, near.groups, near.ratio, ranked.ratio, seen.ratio, rare.sum(1)]
        if near.gap is None or ranked.gap is None or seen.gap is None:
            return Parts(torch.stack(values, 1), None)
        of_residual = shared(scaled * (projected @ self.directions))
        of_near, of_code = shared(near.gap), shared(seen.gap[:, -flat.shape[1] :])
        of_parts = [of_residual, of_near, of_near, of_near, shared(ranked.gap), of_code, shared(rare)]
        return Parts(torch.stack(values, 1), torch.stack(of_parts, 1))

    def of_series(self, found: Prediction, x: Tensor, *, shares: bool, apart: int | None = None) -> Parts:
        """Measure windows x (B, T, C).

        Args:
            found: predictions of x.
            x: the windows.
            shares: whether to divide the parts among values.
            apart: if x are the training windows themselves, the number of places from which on others are compared.
        """
        assert self.image_parts is not None and self.shapes is not None  # noqa: PT018
        seen, means, deviation = chosen(self.judged, x, found, self.deviation)
        energies, of_parts = self.image_parts.parts(means, seen, deviation, 3, apart)
        full = full_channels(self.judged, x, found)
        shape, gap = self.shapes(full)
        values = [energies, (shape if apart is None else self.shapes.left_out(full, apart))[:, None]]
        of_parts = [of_parts, shared(gap)[:, None]]
        if self.channels is not None:
            unusual = self.channels.surprise(full)
            values.append((unusual.sum(1, keepdim=True) + LEAST_SURPRISE).log())
            of_parts.append(shared(unusual[:, None].expand_as(full).flatten(1))[:, None])
        every = torch.cat(of_parts, 1) if shares else None
        spread_out = every if every is None or self.judged is None else spread(every, self.judged, x)
        return Parts(torch.cat(values, 1), spread_out)

    def standardised(self, values: Tensor) -> Tensor:
        """Return parts (B, P) in units of their standard deviation."""
        return (values - self.mean) @ self.whiten.T

    def explain(self, found: Prediction, x: Tensor) -> Tensor:
        """Return the contribution (B, *features) of each value, at least 0; they add up to the score without its last
        term."""
        parts = self.parts(found, x)
        if self.patches is not None:
            weight = parts.values.clamp_min(0)
        elif self.image_parts is not None:
            weight = self._weights(parts.values)
        else:
            t = self.standardised(parts.values)
            weight = t.clamp_min(0) * t.new_tensor(WEIGHTS)
        assert parts.shares is not None
        found_at = torch.einsum("bp,bpd->bd", weight, parts.shares).reshape(x.shape)
        return found_at if self.channels is None else self._by_channel(found_at, self.channels, found, x)

    def _by_channel(self, found_at: Tensor, channels: Channels, found: Prediction, x: Tensor) -> Tensor:
        """Divide contributions (B, T, C) to the scores of windows x among channels by how unusual each channel is."""
        total, of_channel = found_at.sum((1, 2))[:, None], found_at.sum(1)
        pull = channels.surprise(full_channels(self.judged, x, found))
        if self.judged is not None:
            pull = torch.zeros_like(of_channel).index_copy(1, self.judged, pull)
        share = pull / pull.sum(1, keepdim=True).clamp_min(TINY)
        return found_at / of_channel.clamp_min(TINY)[:, None] * (share * total)[:, None]

    def named(self, found: Prediction, x: Tensor) -> dict[str, Tensor]:
        """Return the parts by name, (B,) each, in standard deviations from normal samples."""
        values = self.parts(found, x, shares=False).values
        scale = self.whiten[-len(self.mean) :].inverse().square().sum(1).sqrt()
        return dict(zip(self.names, ((values - self.mean) / scale).unbind(1), strict=True))


def tail(scores: Tensor) -> Tensor:
    """Return the mean excess of scores (n,) over their quantile `TAIL`."""
    excess = scores - scores.quantile(TAIL)
    return excess[excess >= 0].mean()


def residuals(found: Prediction, x: Tensor, deviation: Deviation) -> Tensor:
    """Return residuals in units of the noise.

    Args:
        found: predictions of x.
        x: samples (B, *features).
        deviation: noise of the features.

    Returns:
        Residuals (B, D), 0 where x is missing or reconstructed to within rounding.
    """
    gap = (x - found.x_mean).nan_to_num()
    return (torch.where(gap.abs() <= RESOLVED, 0.0, gap) / deviation.noise).flatten(1)


def filled(x: Tensor, mean: Tensor) -> Tensor:
    """Return rows x (B, …) with what the model expects, `mean`, in place of missing values."""
    return torch.where(x.isnan(), mean.round(decimals=FILLED), x)


def model_view(found: Prediction, scaled: Tensor, deviation: Deviation) -> Tensor:
    """Return codes in standard deviations beside scaled residuals: the rows as the model sees them.

    Args:
        found: predictions of the rows.
        scaled: residuals (B, D) in units of the noise.
        deviation: has the scale of codes.
    """
    z = found.z_mean.flatten(1) / deviation.width
    return torch.cat([z, math.sqrt(z.shape[1] / scaled.shape[1]) * scaled], 1)


def chosen(
    judged: Tensor | None, x: Tensor, found: Prediction, deviation: Deviation
) -> tuple[Tensor, Prediction, Deviation]:
    """Return series x (B, T, C), their predictions and the noise with no other channels than `judged` (J,)."""
    if judged is None:
        return x, found, deviation
    x, mean, noise = (
        values.index_select(-1, judged) for values in (x, found.x_mean, deviation.noise.expand(x[0].shape))
    )
    return x, found.replace(x_mean=mean), replace(deviation, noise=noise)


def full_channels(judged: Tensor | None, x: Tensor, found: Prediction) -> Tensor:
    """Return the judged channels (B, T, J) of windows x (B, T, C), with what is expected where values are missing."""
    full = torch.where(x.isnan(), found.x_mean, x)
    return full if judged is None else full.index_select(-1, judged)


def spread(shares: Tensor, judged: Tensor, x: Tensor) -> Tensor:
    """Return shares (B, P, T * J) of the judged channels as shares (B, P, T * C) of all, 0 in the others."""
    every = shares.new_zeros(*shares.shape[:2], *x.shape[1:])
    every[..., judged] = shares.unflatten(2, (x.shape[1], len(judged)))
    return every.flatten(2)
