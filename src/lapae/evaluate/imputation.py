"""Imputation: known values are hidden at random, imputed, and compared with the imputed ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lapae.config.fields import Count, Probability, Whole, check
from lapae.errors import ConfigError
from lapae.evaluate.coverage import Tenths, by_tenth, told
from lapae.evaluate.held_out import HeldOut, columns_of, held_out
from lapae.runs.results import Table
from lapae.space.columns import WITH_INTERVALS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.data import Data
    from lapae.model import Model


@dataclass(frozen=True)
class ColumnImputation:
    """Imputed values of one column."""

    n: int
    """Number of values that were hidden."""
    mae: float | None = None
    """Mean absolute error of numbers, in the units of the column."""
    rmse: float | None = None
    """Root mean squared error of numbers, in the units of the column."""
    relative: float | None = None
    """`mae` as a share of the mean absolute error of the median (of each pixel or step): below 1 is better."""
    wrong: float | None = None
    """Share of categories and booleans that were imputed wrongly."""
    inside: float | None = None
    """Share of numbers in their intervals."""
    width: float | None = None
    """Mean width of these intervals."""


@dataclass(frozen=True)
class ImputationResult:
    """Errors of imputed values, and coverage of their intervals."""

    level: float
    columns: dict[str, ColumnImputation]
    inside: float | None
    """Share of all hidden numbers in their intervals; None if there are none."""
    relative: float | None
    """Mean over columns of the error as a share of that of the median."""
    missing: float
    """Share of the values that was hidden."""
    n_data: int
    split: str
    """Which samples were used: "test", "validation" or "calibration"."""
    tenths: Tenths = ()
    """Results for each tenth of a column of a table, see `Tenths`."""

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers."""
        columns = {name: vars(column) for name, column in self.columns.items()}
        return vars(self) | {"columns": columns, "tenths": list(self.tenths)}

    def table(self) -> Table:
        """Return one row per column, and one for all."""
        heads = ("hidden", "mean absolute error", "relative to the median", "root mean squared error", "wrong words")
        rows = [(name, c.n, c.mae, c.relative, c.rmse, c.wrong, c.inside, c.width) for name, c in self.columns.items()]
        if len(rows) > 1:
            rows.append(("all", sum(row[1] for row in rows), None, self.relative, None, None, self.inside, None))
        rows += [(what, None, None, None, None, None, share, None) for what, share in told(self.tenths)]
        about = f"{self.n_data:,} {self.split} samples"
        return Table((about, *heads, f"inside {100 * self.level:g} %", "mean width"), rows)

    def figures(self) -> dict[str, Figure]:
        """Return no figures: the table is enough."""
        return {}


@dataclass(frozen=True)
class ImputationOptions:
    """Error of imputed values, and coverage of their intervals."""

    missing: Probability = 0.2
    """Share of the known values to hide."""
    level: Probability = 0.9
    """Share of values that an interval should contain."""
    limit: Count | None = 1000
    """Maximum number of samples to use."""
    seed: Whole = 0
    """Seed for the choice of samples and of the values to hide."""


def evaluate(model: Model, data: Data, options: ImputationOptions) -> ImputationResult:
    """Hide values of held-out samples, impute them, and compare."""
    check(options)
    held = held_out(data, options.limit, options.seed)
    truth = held.x.astype(float)
    hidden = hide(truth, options.missing, options.seed)
    if not hidden.any():
        raise ConfigError(f"no value was hidden in {len(truth)} samples: hide more with --missing, or use more samples")
    guess, low, high = imputed(model, held, np.where(hidden, np.nan, truth), options.level)
    gap = np.abs(guess - truth)
    inside = (truth >= low) & (truth <= high)
    columns: dict[str, ColumnImputation] = {}
    numbers = np.zeros(hidden.shape, bool)
    for name, (index, kind) in columns_of(model.space).items():
        where = hidden[..., index]
        if not where.any():
            continue
        off = gap[..., index][where]
        if kind not in WITH_INTERVALS:
            columns[name] = ColumnImputation(len(off), wrong=float((off > 0.5).mean()))
            continue
        numbers[..., index] = where
        values, width = truth[..., index], (high - low)[..., index][where]
        plain = np.abs(values - _median(np.where(where, np.nan, values)))[where].mean()
        columns[name] = ColumnImputation(
            n=len(off),
            mae=float(off.mean()),
            rmse=float(np.sqrt(np.square(off).mean())),
            relative=float(off.mean() / plain) if plain > 0 else None,
            inside=float(inside[..., index][where].mean()),
            width=float(width.mean()),
        )
    relative = [column.relative for column in columns.values() if column.relative is not None]
    return ImputationResult(
        level=options.level,
        columns=columns,
        inside=float(inside[numbers].mean()) if numbers.any() else None,
        relative=float(np.mean(relative)) if relative else None,
        missing=float(hidden.sum() / np.sum(~np.isnan(truth))),
        n_data=len(truth),
        split=held.split,
        tenths=by_tenth(truth, inside, numbers) if model.space.kind == "table" and numbers.any() else (),
    )


def _median(x: np.ndarray) -> np.ndarray:
    """Return the median over samples x (n, ...) at each position, or over all positions where nothing is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of places without a value
        middle = np.nanmedian(x, axis=0)
        return np.where(np.isnan(middle), np.nanmedian(x), middle)


def hide(x: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Choose which known values of x (n, *shape) to hide, at random: (n, *shape) bool.

    A sample keeps at least one of its values.
    """
    rng = np.random.default_rng(seed)
    chance = np.where(np.isnan(x), np.inf, rng.random(x.shape)).reshape(len(x), -1)
    hidden = chance < share
    emptied = hidden.sum(1) == np.isfinite(chance).sum(1)
    last = np.where(np.isinf(chance), -1.0, chance).argmax(1)  # the value that is hidden last stays
    hidden[np.flatnonzero(emptied), last[emptied]] = False
    return hidden.reshape(x.shape)


def imputed(model: Model, held: HeldOut, x: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Impute x (n, *shape), the samples `held` with values hidden.

    Returns:
        Best guesses, and the ends of the intervals: (n, *shape) each.
    """
    if held.is_new:
        return model.impute(x), *model.impute_interval(x, level)
    # these rows are donors of the table, but a row must not be filled in from itself
    return model._filled(x, level, held.x.astype(float))
