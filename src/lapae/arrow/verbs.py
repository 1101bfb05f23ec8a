"""What a model says of rows, one verb at a time: each a class with its options, its output columns and its work.

A verb gets a chunk of rows as codes (n, F), in the user's units, and gives Arrow arrays (n). It calls the model in
blocks of a fixed size alone (`lapae.arrow.blocks`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingImports]

from lapae.arrow.blocks import FULL, LACKING, RowModel, by_pattern, in_blocks
from lapae.arrow.columns import NUMBERS, as_arrow, end_of, type_of, with_filled
from lapae.errors import ConfigError
from lapae.model import Guess, Model, check_guess
from lapae.space.frames import cells

Groups = tuple[list[np.ndarray], list[int]]
"""Indices of the rows of each group, and the number of rows in its blocks."""
REASONS = ("feature", "share", "expected", "low", "high")


@dataclass(frozen=True)
class Verb:
    """A verb with its options."""

    title: ClassVar[str]

    def imputes(self) -> bool:
        """Return whether it needs the fitted imputer."""
        return False

    def fields(self, model: Model) -> list[Any]:
        """Return the fields of the output."""
        raise NotImplementedError

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any]) -> list[Any]:
        """Return the output for rows.

        Args:
            loaded: the trained model.
            x: codes (n, F); NaN is missing.
            features: the columns of the model as they came, Arrow arrays (n).

        Returns:
            Arrow arrays (n), as `fields` has them.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Score(Verb):
    """How usual rows are.

    Attributes:
        false_alarm_rate: share of new normal rows that are called outliers; default that of the run.
        explain: also say which feature contributes most, its share, and what was expected there, with its interval.
    """

    title: ClassVar[str] = "score, p-value and verdict"
    false_alarm_rate: float | None = None
    explain: bool = False

    def __post_init__(self) -> None:
        if self.false_alarm_rate is not None and not 0 < self.false_alarm_rate < 1:
            raise ConfigError(f"false_alarm_rate = {self.false_alarm_rate}: expected a number between 0 and 1")

    def imputes(self) -> bool:
        return self.explain

    def fields(self, model: Model) -> list[Any]:
        found = [
            pa.field("anomaly_score", pa.float64()),
            pa.field("p_value", pa.float64()),
            pa.field("outlier", pa.bool_()),
        ]
        if self.explain:
            found += [pa.field(name, pa.float64() if name == "share" else pa.string()) for name in REASONS]
        return found

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any]) -> list[Any]:
        model = loaded.model
        groups = by_pattern(np.isnan(x), alone=loaded.one_by_one)
        found = in_blocks(lambda rows: _quiet(model.anomaly_score, rows), x, *groups)
        score, p = found or np.full((2, len(x)), np.nan)
        flagged = p <= model.rule(self.false_alarm_rate).rate
        nothing = np.isnan(p)
        out = [_numbers(score), _numbers(p), pa.array(flagged, mask=nothing)]
        return [*out, *self._reasons(loaded, x, groups)] if self.explain else out

    def _reasons(self, loaded: RowModel, x: np.ndarray, groups: Groups) -> list[Any]:
        model, n = loaded.model, len(x)
        columns = model.space.numbered
        (part,) = in_blocks(lambda rows: (model.explain(rows),), x, *groups) or (np.zeros(x.shape),)
        part = np.nan_to_num(part)
        first, total = part.argmax(1), part.sum(1)
        told = total > 0
        # what is hidden of a row decides what is computed for it: rows of a block have the same feature hidden
        hidden = np.isnan(x)
        hidden[np.arange(n), first] = True
        together, sizes = _alike(hidden, first, told, alone=loaded.filled_one_by_one)
        both = np.concatenate([x, part], 1)

        def expected(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            given, contribution = np.split(rows, 2, axis=1)
            return model.counterfactual(given, top=1, contribution=contribution)

        ends = in_blocks(expected, both, together, sizes) or np.full((3, *x.shape), np.nan)
        texts: dict[str, list[str | None]] = {name: [None] * n for name in REASONS[2:]}
        for i, column in enumerate(columns):
            rows = np.flatnonzero(told & (first == i))
            for name, values in zip(REASONS[2:], ends, strict=True):
                if name == "expected" or column.likelihood == "gaussian":
                    as_in = column if name == "expected" or column.kind != "count" else end_of(column)
                    for row, text in zip(rows, cells(values[rows, i], as_in), strict=True):
                        texts[name][row] = text
        names = [columns[i].name if t else None for i, t in zip(first, told, strict=True)]
        share = pa.array(part.max(1) / total.clip(1e-12), mask=~told)
        return [pa.array(names, pa.string()), share, *(pa.array(texts[name], pa.string()) for name in REASONS[2:])]


@dataclass(frozen=True)
class Embed(Verb):
    """Latent codes z0, z1, … and their standard deviations z0_std, z1_std, …."""

    title: ClassVar[str] = "latent codes with standard deviations"

    def fields(self, model: Model) -> list[Any]:
        k = int(np.prod(model.code_shape))
        return [pa.field(f"z{i}{end}", pa.float64()) for end in ("", "_std") for i in range(k)]

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any]) -> list[Any]:
        size = 1 if loaded.one_by_one else FULL

        def encode(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            return tuple(part.reshape(len(rows), -1) for part in loaded.model.encode(rows))

        found = in_blocks(encode, x, [np.arange(len(x))], [size])
        return [_numbers(column) for part in found for column in part.T]


@dataclass(frozen=True)
class Impute(Verb):
    """Rows with their missing values filled in.

    Attributes:
        level: also give intervals that hold missing values with this probability; None for none.
        guess: "median", or "mean": numbers are then real, whole ones too.
    """

    title: ClassVar[str] = "missing values filled in, with intervals"
    level: float | None = 0.9
    guess: Guess = "median"

    def __post_init__(self) -> None:
        check_guess(self.guess)
        if self.level is not None and not 0 < self.level < 1:
            raise ConfigError(f"level = {self.level}: expected a number between 0 and 1, such as 0.9")

    def imputes(self) -> bool:
        return True

    def fields(self, model: Model) -> list[Any]:
        return _value_fields(model, ends=self.level is not None, whole=self.guess == "median")

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any]) -> list[Any]:
        model, level, missing = loaded.model, self.level, np.isnan(x)
        lacking = np.asarray(missing.any(1))

        def fill(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            made = model.impute(rows, guess=self.guess)
            return (made,) if level is None else (made, *model.impute_interval(rows, level))

        # rows with nothing observed are filled in too
        alone = bool(lacking.any()) and loaded.filled_one_by_one
        groups = _alike(missing, np.zeros(len(x), int), lacking, alone=alone)
        found = in_blocks(fill, x, *groups) or (x,) * (1 if level is None else 3)
        made, *ends = (np.where(lacking[:, None], values, x) for values in found)
        columns = model.space.numbered
        out = []
        for i, (column, given) in enumerate(zip(columns, features, strict=True)):
            values = np.rint(made[:, i]) if column.kind == "boolean" else made[:, i]
            written = column if self.guess == "median" else end_of(column)
            out.append(with_filled(given, values, missing[:, i], written, "X"))
            if column.kind in NUMBERS:
                out += [as_arrow(end[:, i], end_of(column)) for end in ends]
        return out


@dataclass(frozen=True)
class Reconstruct(Verb):
    """What the model expects in place of every value, with intervals.

    Attributes:
        level: probability with which the intervals hold the values of new rows.
    """

    title: ClassVar[str] = "reconstructions with intervals"
    level: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ConfigError(f"level = {self.level}: expected a number between 0 and 1, such as 0.9")

    def imputes(self) -> bool:
        return True

    def fields(self, model: Model) -> list[Any]:
        return _value_fields(model, ends=True)

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any]) -> list[Any]:
        model, missing = loaded.model, np.isnan(x)
        lacking = np.asarray(missing.any(1))
        alone = bool(lacking.any()) and loaded.filled_one_by_one
        full = np.flatnonzero(~lacking)
        groups, sizes = _alike(missing, np.zeros(len(x), int), lacking, alone=alone)
        if len(full):
            groups, sizes = [full, *groups], [1 if loaded.one_by_one else FULL, *sizes]

        def expect(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            return model.expected(rows, self.level)

        found = in_blocks(expect, x, groups, sizes)
        out = []
        for i, column in enumerate(model.space.numbered):
            out.append(as_arrow(found[0][:, i], column))
            if column.kind in NUMBERS:
                out += [as_arrow(end[:, i], end_of(column)) for end in found[1:]]
        return out


VERBS: dict[str, type[Verb]] = {"score": Score, "impute": Impute, "embed": Embed, "reconstruct": Reconstruct}


def _value_fields(model: Model, *, ends: bool, whole: bool = True) -> list[Any]:
    found = []
    for column in model.space.numbered:
        found.append(pa.field(column.name, type_of(column if whole else end_of(column))))
        if ends and column.kind in NUMBERS:
            found += [pa.field(f"{column.name}_{end}", type_of(end_of(column))) for end in ("low", "high")]
    return found


def _alike(
    hidden: np.ndarray, kind: np.ndarray, chosen: np.ndarray, *, alone: bool
) -> tuple[list[np.ndarray], list[int]]:
    """Group the `chosen` rows (n,) by what is hidden of them (n, F) and by `kind` (n,), with the size of blocks."""
    groups: dict[tuple[bytes, int], list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        groups.setdefault((hidden[row].tobytes(), int(kind[row])), []).append(row)
    return [np.array(rows) for rows in groups.values()], [1 if alone else LACKING] * len(groups)


def _numbers(values: np.ndarray) -> Any:
    return pa.array(values, mask=np.isnan(values))


def _quiet(call: Any, *arguments: Any) -> Any:
    """Call without warnings: rows with nothing observed are null in the output."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments)
