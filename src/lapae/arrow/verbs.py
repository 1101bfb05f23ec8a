"""Results of a model for rows. Each verb is a class with its options, its output columns and its computation.

A verb gets a chunk of rows as codes (n, F), in the user's units, and returns Arrow arrays (n). It calls the model only
in blocks of a fixed size (`lapae.arrow.blocks`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa  # pyright: ignore[reportMissingImports]

from lapae.arrow.blocks import FULL, LACKING, SCORED, Group, RowModel, by_pattern, in_blocks
from lapae.arrow.columns import as_arrow, end_of, type_of, with_filled
from lapae.errors import ConfigError
from lapae.model import Guess, Model, check_guess
from lapae.space.columns import WITH_INTERVALS
from lapae.view.reasons import REASONS, choose_reasons, never_seen

Words = dict[tuple[int, int], str]


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

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any], words: Words) -> list[Any]:
        """Return the output for rows.

        Args:
            loaded: the trained model.
            x: codes (n, F); NaN is missing.
            features: the columns of the model in their original form, Arrow arrays (n).
            words: levels that training has not seen, by row and column.

        Returns:
            Arrow arrays (n), as `fields` has them.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Score(Verb):
    """How usual rows are.

    Attributes:
        false_alarm_rate: share of new normal rows that are called outliers; default: that of the run.
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
        if model.calibration is not None and model.calibration.unseen is not None:
            found.append(pa.field("unseen", pa.string()))
        return found

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any], words: Words) -> list[Any]:
        model, stride, missing = loaded.model, loaded.scored_stride, np.isnan(x)
        lacking = np.asarray(missing.any(1))
        groups = [Group(np.flatnonzero(~lacking), FULL if self.explain else SCORED, stride)]
        groups += [Group(rows, LACKING, stride) for rows in by_pattern(missing, lacking & ~missing.all(1))]

        def judge(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            found = quiet(model.judge, rows, reasons=self.explain)
            both = found.anomaly_score, found.p_value
            return both if found.contribution is None else (*both, found.contribution)

        unknown = (*np.full((2, len(x)), np.nan), np.zeros(x.shape))
        score, p, *part = in_blocks(judge, x, groups) or unknown
        flagged = p <= model.rule(self.false_alarm_rate).rate
        out = [numbers(score), numbers(p), pa.array(flagged, mask=np.isnan(p))]
        if self.explain:
            out += self._reasons(loaded, x, part[0], words)
        if "unseen" in (field.name for field in self.fields(model)):
            out.append(_texts(never_seen(model, x, words)))
        return out

    def _reasons(self, loaded: RowModel, x: np.ndarray, part: np.ndarray, words: Words) -> list[Any]:
        """Return the columns of the reasons of rows x (n, F), with what each value contributes (n, F)."""
        model = loaded.model
        first = np.nan_to_num(part).argmax(1)

        def expected_of(rows: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, ...]:
            # hidden values decide how a row is computed: rows of a block have the same values hidden
            at = np.arange(len(rows))
            hidden = np.isnan(model.space.known(x[rows]))
            hidden[at, first[rows]] = hidden[at, j] = True
            groups = _to_fill(hidden, np.ones(len(rows), bool), loaded, j)

            def expected(block: np.ndarray) -> tuple[np.ndarray, ...]:
                given, contribution, asked = np.split(block, 3, axis=1)
                return model.counterfactual(given, contribution=contribution, asked=asked > 0)

            asked = np.arange(x.shape[1]) == j[:, None]
            ends = in_blocks(expected, np.concatenate([x[rows], part[rows], asked], 1), groups)
            return tuple(end[at, j] for end in ends)

        found = choose_reasons(model.space.numbered, model.marked(x), part, expected_of)
        texts = found.texts(model.space.numbered, words)
        share = pa.array(found.share, mask=found.feature < 0)
        return [share if name == "share" else _texts(texts[name]) for name in REASONS]


@dataclass(frozen=True)
class Embed(Verb):
    """Latent codes z0, z1, … and their standard deviations z0_std, z1_std, …."""

    title: ClassVar[str] = "latent codes with standard deviations"

    def fields(self, model: Model) -> list[Any]:
        k = int(np.prod(model.code_shape))
        return [pa.field(f"z{i}{end}", pa.float64()) for end in ("", "_std") for i in range(k)]

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any], words: Words) -> list[Any]:
        def encode(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            return tuple(part.reshape(len(rows), -1) for part in loaded.model.encode(rows))

        found = in_blocks(encode, x, [Group(np.arange(len(x)), FULL, loaded.stride)])
        return [numbers(column) for part in found for column in part.T]


@dataclass(frozen=True)
class Impute(Verb):
    """Rows with their missing values filled in.

    Attributes:
        level: also return intervals that contain missing values with this probability; None for none.
        guess: "median", or "mean", which makes whole numbers real.
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

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any], words: Words) -> list[Any]:
        model, level, missing = loaded.model, self.level, np.isnan(x)
        lacking = np.asarray(missing.any(1))

        def fill(rows: np.ndarray) -> tuple[np.ndarray, ...]:
            made = model.impute(rows, guess=self.guess)
            return (made,) if level is None else (made, *model.impute_interval(rows, level))

        # rows with nothing observed are filled in too
        found = in_blocks(fill, x, _to_fill(missing, lacking, loaded)) or (x,) * (1 if level is None else 3)
        made, *ends = (np.where(lacking[:, None], values, x) for values in found)
        truths = [column.kind == "boolean" for column in model.space.numbered]
        made[:, truths] = np.rint(made[:, truths])
        return value_columns(model, self.filled(model, x, features, made), ends)

    def filled(self, model: Model, x: np.ndarray, features: list[Any], made: np.ndarray) -> list[Any]:
        """Return the columns of rows x (n, F) with the values `made` (n, F) in place of missing ones."""
        columns = model.space.numbered if self.guess == "median" else map(end_of, model.space.numbered)
        return [with_filled(features[i], x[:, i], made[:, i], column, "X") for i, column in enumerate(columns)]


@dataclass(frozen=True)
class Reconstruct(Verb):
    """What the model expects in place of every value, with intervals.

    Attributes:
        level: probability with which the intervals contain the values of new rows.
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

    def __call__(self, loaded: RowModel, x: np.ndarray, features: list[Any], words: Words) -> list[Any]:
        model, missing = loaded.model, np.isnan(x)
        lacking = np.asarray(missing.any(1))
        full = Group(np.flatnonzero(~lacking), FULL, loaded.stride)
        groups = [full, *_to_fill(missing, lacking, loaded)]
        made, *ends = in_blocks(lambda rows: model.expected(rows, self.level), x, groups)
        return value_columns(model, self.expected(model, made), ends)

    def expected(self, model: Model, made: np.ndarray) -> list[Any]:
        """Return the columns of expected values `made` (n, F)."""
        return [as_arrow(made[:, i], column) for i, column in enumerate(model.space.numbered)]


VERBS: dict[str, type[Verb]] = {"score": Score, "impute": Impute, "embed": Embed, "reconstruct": Reconstruct}


def _value_fields(model: Model, *, ends: bool, whole: bool = True) -> list[Any]:
    found = []
    for column in model.space.numbered:
        found.append(pa.field(column.name, type_of(column if whole else end_of(column))))
        if ends and column.kind in WITH_INTERVALS:
            found += [pa.field(f"{column.name}_{end}", type_of(end_of(column))) for end in ("low", "high")]
    return found


def value_columns(model: Model, values: list[Any], ends: Sequence[np.ndarray]) -> list[Any]:
    """Return the columns of values (n,), each of numbers followed by the ends (n, F) of its intervals."""
    out = []
    for i, (column, array) in enumerate(zip(model.space.numbered, values, strict=True)):
        out.append(array)
        if column.kind in WITH_INTERVALS:
            out += [as_arrow(end[:, i], end_of(column)) for end in ends]
    return out


def _to_fill(hidden: np.ndarray, chosen: np.ndarray, loaded: RowModel, kind: np.ndarray | None = None) -> list[Group]:
    """Group the `chosen` rows (n,), whose `hidden` values (n, F) are filled in; their stride requires an imputer."""
    return [Group(rows, LACKING, loaded.filled_stride) for rows in by_pattern(hidden, chosen, kind)]


def _texts(values: list[str]) -> Any:
    return pa.array([text or None for text in values], pa.string())


def numbers(values: np.ndarray) -> Any:
    """Return numbers (n,) as an Arrow array; NaN is null."""
    return pa.array(values, mask=np.isnan(values))


def quiet(call: Any, *arguments: Any, **asked: Any) -> Any:
    """Call without warnings: rows with nothing observed are null in the output."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments, **asked)
