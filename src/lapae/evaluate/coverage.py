"""Coverage: do prediction intervals contain as many values, and p-values flag as many samples, as they promise?

Both promises are marginal: they hold on average over new samples from the same source, not for each column.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lapae.config.fields import Count, Probability, Whole, check
from lapae.evaluate.held_out import columns_of, held_out
from lapae.runs.results import Table
from lapae.space.columns import WITH_INTERVALS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.data import Data
    from lapae.model import Model

RATES = (0.01, 0.05, 0.1)
"""p-values up to which shares of samples are shown."""
Tenths: TypeAlias = tuple[float | None, ...]
"""Share of the values of a table's columns in their intervals, by the tenth of the column that a value is in, from the
lowest; None for a tenth without values. The promise is about all values: if the other values of a row say little, an
interval that contains 90 % of them misses more of the lowest and of the highest."""
AT_ONCE = 2**22
"""Maximum number of values of samples that are predicted together."""


@dataclass(frozen=True)
class ColumnCoverage:
    """Intervals of one column."""

    inside: float
    """Share of its values in their intervals."""
    width: float
    """Mean width of the intervals, in the units of the column."""
    n: int
    """Number of values."""


@dataclass(frozen=True)
class CoverageResult:
    """Share of values in their intervals, and of samples with small p-values."""

    level: float
    inside: float | None
    """Share of all values in their intervals; None if no column has intervals."""
    standard_error: float | None
    """Standard error of `inside`, from how it varies between samples."""
    columns: dict[str, ColumnCoverage]
    p_value: np.ndarray
    """(n,) p-values of the samples with something observed."""
    split: str
    """Which samples were used: "test", "validation" or "calibration"."""
    tenths: Tenths = ()
    """Results for each tenth of a column of a table, see `Tenths`."""

    @property
    def flagged(self) -> dict[float, float]:
        """Share of samples with a p-value of at most each of `RATES`."""
        return {rate: float((self.p_value <= rate).mean()) for rate in RATES}

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers."""
        return {
            "level": self.level,
            "inside": self.inside,
            "standard_error": self.standard_error,
            "columns": {name: vars(column) for name, column in self.columns.items()},
            "tenths": list(self.tenths),
            "p_values": {f"{rate:g}": share for rate, share in self.flagged.items()},
            "n_data": len(self.p_value),
            "split": self.split,
        }

    def table(self) -> Table:
        """Return the promised and the measured shares."""
        n, rows = len(self.p_value), []
        if self.inside is not None:
            what = f"values in their {100 * self.level:g} % interval"
            rows.append((what, self.level, round(self.inside, 3), self.standard_error))
            for name, found in self.columns.items() if len(self.columns) > 1 else ():
                rows.append((f"  {name} (mean width {found.width:.4g})", self.level, round(found.inside, 3), None))
            rows += [(what, self.level, share, None) for what, share in told(self.tenths)]
        for rate, share in self.flagged.items():
            rows.append((f"samples with p <= {rate:g}", rate, round(share, 3), float(np.sqrt(rate * (1 - rate) / n))))
        return Table((f"of {n:,} {self.split} samples", "promised", "found", "standard error"), rows)

    def figures(self) -> dict[str, Figure]:
        """Return the share of samples below every p-value, which is on the diagonal if p-values hold."""
        from lapae.evaluate.figures import on_diagonal

        p = np.sort(self.p_value)
        line = (p, np.arange(1, len(p) + 1) / len(p))
        return {"coverage_p_values": on_diagonal({"found": line}, "-", xlabel="p-value", ylabel="share of samples")}


@dataclass(frozen=True)
class CoverageOptions:
    """Coverage of intervals and p-values."""

    level: Probability = 0.9
    """Share of values that an interval should contain."""
    limit: Count | None = 5000
    """Maximum number of samples to use."""
    seed: Whole = 0
    """Seed for the choice of samples."""


def evaluate(model: Model, data: Data, options: CoverageOptions) -> CoverageResult:
    """Compare held-out samples with the model's intervals and p-values."""
    check(options)
    held = held_out(data, options.limit, options.seed)
    x, size = held.x, max(1, AT_ONCE // max(1, int(np.prod(model.shape))))
    parts = [x[start : start + size] for start in range(0, len(x), size)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing observed")  # such rows have no p-value and are left out
        p = np.concatenate([model.anomaly_score(part)[1] for part in parts])
    ends = [model.interval(part, options.level) for part in parts]
    low, high = (np.concatenate(end) for end in zip(*ends, strict=True))
    values = x.astype(float)
    with np.errstate(invalid="ignore"):
        inside = (values >= low) & (values <= high)
    places = {name: index for name, (index, kind) in columns_of(model.space).items() if kind in WITH_INTERVALS}
    known, columns = np.zeros(x.shape, bool), {}
    for name, index in places.items():
        there = ~np.isnan(values[..., index])
        known[..., index] = there
        if there.any():
            share, width = inside[..., index][there].mean(), (high - low)[..., index][there].mean()
            columns[name] = ColumnCoverage(float(share), float(width), int(there.sum()))
    share, error = _share(inside, known) if known.any() else (None, None)
    tenths = by_tenth(values, inside, known) if model.space.kind == "table" and columns else ()
    return CoverageResult(options.level, share, error, columns, p[~np.isnan(p)], held.split, tenths)


def by_tenth(values: np.ndarray, inside: np.ndarray, asked: np.ndarray) -> Tenths:
    """Return the share of values of a table (n, F) that are `inside`, by the tenth of its column that a value is in.

    Equal values get their mean rank in the column; `asked` (n, F) are the values that count.
    """
    hits, counts = np.zeros((2, 10))
    for own, within, there in zip(values.T, inside.T, asked.T, strict=True):
        ordered = np.sort(own[~np.isnan(own)])
        place = np.searchsorted(ordered, own[there]) + np.searchsorted(ordered, own[there], side="right")
        tenth = (5 * place / max(len(ordered), 1)).astype(int).clip(0, 9)
        hits += np.bincount(tenth, weights=within[there], minlength=10)
        counts += np.bincount(tenth, minlength=10)
    return tuple(float(hit / n) if n else None for hit, n in zip(hits, counts, strict=True))


def told(tenths: Tenths) -> list[tuple[str, float]]:
    """Return the names of the tenths in tables, and their shares."""
    ends = {0: " (the lowest)", 9: " (the highest)"}
    every = ((f"  tenth {i + 1}{ends.get(i, '')} of their column", share) for i, share in enumerate(tenths))
    return [(what, round(share, 3)) for what, share in every if share is not None]


def _share(inside: np.ndarray, known: np.ndarray) -> tuple[float, float]:
    """Return the share of known values that are inside, and its standard error.

    The values of a sample are inside or outside together, so the error is that of a ratio of sums over samples (n,
    ...).
    """
    n = len(inside)
    hits, counts = ((part & known).reshape(n, -1).sum(1).astype(float) for part in (inside, known))
    share = hits.sum() / counts.sum()
    residual = hits - share * counts
    error = np.sqrt(np.square(residual).sum() * n / max(n - 1, 1)) / counts.sum()
    return float(share), float(error)
