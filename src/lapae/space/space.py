"""`Space`: one description of data, made once from the training data, kept with the model and used by everything.

| array                                            | is       | scaled                               |
|--------------------------------------------------|----------|--------------------------------------|
| (n, F)                                           | a table  | standardised, per column             |
| (n, H, W), (n, C, H, W), (n, H, W, C), images    | images   | to [0, 1]; the model sees (C, H, W)  |
| (n, T, C), other numbers                         | windows  | standardised, per channel            |
| anything else with more axes                     | an array | standardised, per channel            |

`lapae.space.layout` defines what images are. Missing values are NaN everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from lapae.errors import DataError
from lapae.space.checks import check_values
from lapae.space.columns import UNSEEN, Column, Spans, counted
from lapae.space.constants import Constants
from lapae.space.features import Features
from lapae.space.frames import as_frame, code_frame, is_frame, numbers_frame, uncode_frame
from lapae.space.layout import CHANNELS, Layout, Range, arranged, greatest, layout_of, restored
from lapae.space.levels import confirmed, with_levels
from lapae.space.possible import Possible
from lapae.space.scaling import Number, Source, apply, invert, standardise
from lapae.space.series import cut, starts

Kind: TypeAlias = Literal["table", "image", "series", "array"]
Fit: TypeAlias = Literal["border", "crop", "stretch"]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Space:
    """Description of data: their kind, layout and scaling, their columns, and whether values may be missing."""

    kind: Kind
    shape: tuple[int, ...]
    """Shape of one sample in the user's layout."""
    layout: Layout = "plain"
    """plain; gray: (H, W) is (1, H, W) in the model; last: (H, W, C) is (C, H, W)."""
    offset: Number = 0.0
    """The model sees (value - offset) / scale: numbers, or arrays that broadcast to the model's shape."""
    scale: Number = 1.0
    columns: tuple[Column, ...] | None = None
    """Columns of a table, or channels of a series, if they have names."""
    left_out: Mapping[str, str | None] = field(default_factory=dict)
    """The other columns of the training data by name, with the only value of those that were constant, else None."""
    label_names: tuple[str, ...] | None = None
    """Names of the classes, or of the attributes."""
    missing: bool = False
    """Whether values were missing in the data."""
    name: str = "X"
    """Name of the data set."""
    n_data: int = 1
    """Number of training samples."""
    fit: Fit | None = None
    """How images of other sizes were scaled to this one; None if all had the same size."""
    stride: int | None = None
    """Steps between the windows of a series."""
    interval: float | None = None
    """Time between the steps of a series, in seconds or in the units of its clock; None without a clock."""
    tile: bool = False
    """Whether images are tiles of larger ones."""
    unit: float | None = None
    """A network that was trained elsewhere gets the user's values divided by this; None: it gets the model's values."""
    features: Features | None = None
    """How images become the feature maps that are learned; None if the data themselves are learned."""

    @classmethod
    def of(
        cls,
        x: Source,
        *,
        most: float | None = None,
        columns: Sequence[Column] | None = None,
        values: Range | None = None,
        stride: int | None = None,
        **about: Any,
    ) -> Space:
        """Determine the kind of the training data x (n, *shape), and how to scale them.

        Args:
            x: numbers; NaN is missing.
            most: the greatest value that images of this kind can have; known only for named sets.
            columns: columns of a table.
            values: range of the values, if already known.
            stride: steps between windows, if x are windows of a series.
            about: other fields: `name`, `left_out`, `label_names`, `missing`, `fit`, `tile`, `interval`.
        """
        shape, about = tuple(x.shape[1:]), {"n_data": len(x), "stride": stride, **about}
        columns = None if columns is None else tuple(columns)
        names = None if columns is None else [column.name for column in columns]
        if len(shape) == 1:
            offset, scale = standardise(x, names)
            if columns is not None:
                columns = with_levels(columns, np.asarray(x))
                offset, scale = Spans(columns).spread(offset, 0.0), Spans(columns).spread(scale, 1.0)
            return cls("table", shape, offset=offset, scale=scale, columns=columns, **about)
        if stride is None and (top := most or greatest(x, values)) is not None:
            image = len(shape) in (2, 3)
            return cls("image" if image else "array", shape, layout_of(shape) if image else "plain", 0.0, top, **about)
        # (T, C), or with the channels before the rest as images have them
        channel = 1 if len(shape) == 3 and shape[0] in CHANNELS else len(shape)
        over = tuple(axis for axis in range(len(shape) + 1) if axis != channel)
        offset, scale = standardise(x, over=over, names=names if len(shape) == 2 else None)
        kind = "array" if stride is None else "series"
        return cls(kind, shape, offset=offset, scale=scale, columns=columns, **about)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Shape of one sample in the model."""
        if self._spans is not None:
            return (self._spans.n_features,)
        if self.layout == "gray":
            return (1, *self.shape)
        return (self.shape[-1], *self.shape[:-1]) if self.layout == "last" else self.shape

    @property
    def value_range(self) -> tuple[float, float]:
        """The range of data in the model's space."""
        return (0.0, 1.0) if self.kind == "image" else (-3.0, 3.0)

    @property
    def most(self) -> float:
        """The greatest value that an image can have."""
        return float(np.max(self.scale))

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns of a table, or of the channels of a series; None if they have none."""
        return None if self.columns is None else tuple(column.name for column in self.columns)

    @property
    def numbered(self) -> tuple[Column, ...]:
        """The columns of a table, or the channels of a series; numbers are their names if they have none."""
        return self.columns or tuple(Column(str(i)) for i in range(self.shape[-1]))

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the model's features, for a table whose columns have names."""
        return None if self._spans is None else tuple(n for column in self._spans.columns for n in column.features)

    @property
    def parts(self) -> tuple[tuple[str, int, int], ...]:
        """(likelihood, start, stop) of the spans of features of a table; gaussian for other data."""
        return (("gaussian", 0, math.prod(self.model_shape)),) if self._spans is None else self._spans.parts

    @property
    def maskable(self) -> bool:
        """Whether values can be hidden one by one, which takes more than one feature."""
        return len(self.model_shape) == 1 and self.model_shape[0] > 1

    @cached_property
    def _spans(self) -> Spans | None:
        return Spans(self.columns) if self.columns is not None and self.kind == "table" else None

    @cached_property
    def _mixed(self) -> Spans | None:
        """The columns, if their codes differ from the model's values by more than their scale."""
        spans = self._spans
        return spans if spans is not None and any(column.kind != "number" for column in spans.columns) else None

    def code(self, X: Any, where: str = "X", *, words: dict[tuple[int, int], str] | None = None) -> np.ndarray:
        """Return the user's data (a frame, an array, a tensor or nested lists) as numbers (n, *shape).

        Columns of a frame are found by name, others are ignored; an array of numbers already contains codes. Images may
        have another layout than in training, and may be bytes for a model of floats. A series (T, C) is cut into
        windows. Levels that are not in the training data are `UNSEEN`, and put into `words` by row and column. Messages
        begin with `where`.
        """
        frame = as_frame(X)
        x = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X) if frame is None else X
        if frame is None and x.dtype.kind in "OUS" and x.ndim == 2:
            frame = as_frame(x.astype(object))
        if frame is not None and self.kind in ("table", "series"):
            x = code_frame(frame, self.numbered, where, words=words)
            constants = Constants(self.left_out, where)
            constants.look(frame)
            constants.warn()
        x = np.asarray(x)
        if self.features is not None and x.shape[1:] != self.shape and x.dtype.kind in "biuf":
            return self.features(x, where)
        if x.dtype.kind not in "biuf":
            raise DataError(f"{where}: values of type {x.dtype}, expected numbers")
        x = x.view(np.uint8) if x.dtype == np.bool_ else x
        x = x[:, None] if x.ndim == 1 else x
        if self.kind == "series" and x.ndim == 2 and x.shape[1] == self.shape[1]:
            return self.windows(x, where)[0]
        if self.kind == "image" and x.ndim in (3, 4) and x.shape[1:] != self.shape:
            images = arranged(x, layout_of(x.shape[1:]))
            x = self.as_given(images) if images.shape[1:] == self.model_shape else x
        if x.ndim == 0 or x.shape[1:] != self.shape:
            raise DataError(f"{where}: data of shape {x.shape[1:]}, the model takes data of shape {self.shape}")
        if self.kind == "image" and self.most == 1 and x.dtype == np.uint8 and x.size and x.max() > 1:
            return (x / np.float32(255)).astype(np.float32)
        return x

    def known(self, coded: np.ndarray) -> np.ndarray:
        """Return codes (n, *shape) in which levels that are not in the training data are missing."""
        words = () if self._mixed is None else self._mixed.of_kind("category", "boolean")
        if not len(words) or not (coded[:, words] == UNSEEN).any():
            return coded
        found = np.array(coded, np.float64)
        found[:, words] = np.where(found[:, words] == UNSEEN, np.nan, found[:, words])
        return found

    def code_given(self, given: Mapping[Any, Any]) -> dict[int, float]:
        """Return the values that a user gives for columns of a table, by the index of the column.

        Args:
            given: values by the name of their column, or by its number if columns have no names. None is missing.
        """
        import pandas as pd

        if not isinstance(given, Mapping):
            raise DataError(f"given={given!r}: expected values by the names of columns, such as {{'color': 'red'}}")
        places = {column.name: i for i, column in enumerate(self.numbered)}
        found: dict[int, float] = {}
        for name, value in given.items():
            if str(name) not in places:
                raise DataError(f"given: no column {str(name)!r}; the model was trained on {', '.join(places)}")
            column = self.numbered[places[str(name)]]
            unknown: dict[str, set[str]] = {}
            code = code_frame(pd.DataFrame({column.name: [value]}), [column], "given", unknown=unknown)[0, 0]
            if unknown:
                seen = f"; seen: {', '.join(column.categories[:20])}" if column.categories else ""
                raise DataError(f"given: {column.name} = {value!r} was not seen in training{seen}")
            found[places[str(name)]] = float(code)
        return found

    def windows(self, x: np.ndarray, where: str = "X") -> tuple[np.ndarray, np.ndarray]:
        """Return a series (T, C) as windows (n, *shape), the last one at its end, and their first steps (n,)."""
        every = cut(x, self.shape[0], where)
        first = starts(len(x), self.shape[0], self.stride or 1)
        return every[first], first

    def to_model(self, x: Source) -> np.ndarray:
        """Return numbers (n, *shape) in the user's units as float32 (n, *model_shape), after checks; NaN is missing."""
        x = np.asarray(x)
        check_values(self, x, "X")
        return np.ascontiguousarray(self.convert(x))

    def convert(self, x: T) -> T:
        """Convert an array, or a tensor on its device, as `to_model` does, without checks."""
        return apply(self.arrange(x), self.offset, self.scale)  # type: ignore[type-var]

    def to_user(self, x: np.ndarray, *, deviation: bool = False, whole: bool = True) -> np.ndarray:
        """(…, *model_shape) in the model's space -> (…, *shape) in the user's units and layout.

        For a table with columns these are codes: a count is whole, a boolean 0 or 1, a category its code.

        Args:
            x: data, or with `deviation` their standard deviations, which are scaled but not shifted.
            deviation: see above.
            whole: whether counts are, and booleans written as numbers; not so means and the ends of an interval.
        """
        units = x * np.asarray(self.scale, x.dtype) if deviation else invert(x, self.offset, self.scale)
        return self._mixed.gather(units, deviation=deviation, whole=whole) if self._mixed else self.as_given(units)

    def probabilities(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return probabilities (…, levels) of categories and booleans from (…, D), by the name of the column."""
        return {} if self._spans is None else self._spans.probabilities(x)

    def uncode(self, x: np.ndarray, like: Any = None, *, observed: bool = False, others: bool = True) -> Any:
        """Return numbers (n, *shape) in the form of the training data: as a frame with its types if that was one.

        Args:
            x: numbers, or several of them (m, n, *shape): a list of frames.
            like: the frame to which they belong, which determines library, columns and index.
            observed: whether the cells of `like` that are not missing stay as they are, whatever the numbers are.
            others: whether columns of `like` that are not learned stay as they are; else they are missing.
        """
        columns = self._frame_columns(like)
        if columns is None or x.ndim not in (2, 3) or self.kind != "table":
            return x
        if x.ndim == 3:
            return [uncode_frame(part, columns, like, observed=observed, others=others) for part in x]
        return uncode_frame(x, columns, like, observed=observed, others=others)

    def numbers(self, x: np.ndarray, like: Any) -> Any:
        """Return numbers (n, F), one for each value of a table, as a frame like `like`; NaN in columns that are not
        learned."""
        return numbers_frame(x, self.numbered, like) if self.kind == "table" else x

    def _frame_columns(self, like: Any) -> tuple[Column, ...] | None:
        """Return the columns of the frame that codes become; None if they stay an array."""
        return self._spans.columns if self._spans is not None else self.numbered if is_frame(like) else None

    def units(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return offset and scale of each value of a sample, flat; NaN for columns that have no unit."""
        if self._spans is None:
            return tuple(np.broadcast_to(v, shape).ravel() for v in (self.offset, self.scale))  # pyright: ignore
        judged = np.isin(np.arange(shape[0]), self._spans.of_kind("number", "count"))
        first = self._spans.starts[:-1].clip(max=self._spans.n_features - 1)
        every = (np.broadcast_to(v, self.model_shape)[first] for v in (self.offset, self.scale))
        return tuple(np.where(judged, v, np.nan) for v in every)  # pyright: ignore

    def describe(self, n: int | None = None) -> str:
        """Return one line with the number (`n`, else that of training) and the kind of samples."""
        n = self.n_data if n is None else n
        size = "x".join(map(str, self.shape))
        if self.kind == "image":
            channels, height, width = self.model_shape
            colour = {1: "gray", 3: "colour"}.get(channels, f"{channels}-channel")
            fitted = {"border": ", with borders", "crop": ", cropped", "stretch": ", stretched"}.get(self.fit or "", "")
            return f"{n:,} {colour} {'tiles' if self.tile else 'images'} of {height}x{width}{fitted}"
        what = f"rows of {size} columns" if self.kind == "table" else f"arrays of {size}"
        if self.features is not None:
            what = f"images, by {size} features of {self.features.name}"
        if self.kind == "series":
            what = f"windows of {self.shape[0]} steps, {self.stride} apart, of {self.shape[1]} channels"
        if self._mixed:
            what += f" ({counted(self._mixed.columns)})"
        return f"{n:,} {what}" + (", with missing values" if self.missing else "")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types without rounding."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {
            "shape": list(self.shape),
            "offset": np.asarray(self.offset).tolist(),
            "scale": np.asarray(self.scale).tolist(),
            "columns": None if self.columns is None else [column.to_dict() for column in self.columns],
            "left_out": dict(self.left_out),
            "label_names": None if self.label_names is None else list(self.label_names),
            "features": None if self.features is None else self.features.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Space:
        """Inverse of `to_dict`; a ValueError, TypeError or KeyError where the values are not of that kind."""
        from lapae.space.storing import checked

        return checked(values)

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Space) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compared by value, and values are arrays

    def arrange(self, x: Any) -> Any:
        """(n, *shape) -> (n, *model_shape), values as they are; categories one-hot."""
        if self._mixed is None:
            return arranged(x, self.layout)
        if isinstance(x, np.ndarray):
            return self._mixed.expand(x)
        import torch

        return torch.from_numpy(self._mixed.expand(x.cpu().numpy())).to(x.device)

    def put_back(
        self, made: np.ndarray, coded: np.ndarray, possible: Possible | None = None, *, whole: bool = True
    ) -> np.ndarray:
        """Return completions in the user's units, with observed values unchanged.

        Args:
            made: completed samples in the model's space, (…, n, *model_shape).
            coded: samples as the user has them, NaN where missing, (n, *shape).
            possible: values that the columns of a table can have; default: any.
            whole: as in `to_user`.
        """
        filled = self.to_user(np.clip(made, *self.value_range) if self.kind == "image" else made, whole=whole)
        if coded.dtype.kind != "f":
            return np.broadcast_to(coded, filled.shape).copy()
        if self.kind == "table":
            filled = self.rounded(filled)
            filled = filled if possible is None else possible.fill(filled, whole=whole)
        implied = self.implied(coded)
        filled = np.where(np.isnan(implied), filled, implied)
        return np.where(np.isnan(coded), filled, coded)

    def implied(self, coded: np.ndarray) -> np.ndarray:
        """Return the codes of values of `coded` (n, *shape) that another column of their row determines, else NaN."""
        return np.full(coded.shape, np.nan) if self._spans is None else self._spans.look_up(coded)

    def limits(self, coded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the greatest code that values can have that another column of their row determines."""
        none = np.full(coded.shape, np.nan)
        return (none, none) if self._spans is None else self._spans.limits(coded)

    def confirmed(self, coded: np.ndarray) -> Space:
        """Return the space of a table without relations of numbers that do not hold in held-out rows (n, F)."""
        return self if self._spans is None else replace(self, columns=confirmed(self._spans.columns, coded))

    def feature_of(self, column: np.ndarray) -> np.ndarray:
        """Return the model's first feature of a column of each of n rows of a table, (n,)."""
        return column if self._spans is None else self._spans.starts[column].clip(max=self.model_shape[0] - 1)

    def booleans(self, *features: np.ndarray) -> Iterator[tuple[Any, ...]]:
        """Yield the index of each boolean of a table, with what is said of it in features (n, D): (n,) each."""
        for j in () if self._spans is None else self._spans.of_kind("boolean"):
            yield j, *(part[:, self._spans.starts[j]] for part in features)  # pyright: ignore

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Return values of a table (…, F), rounded to a millionth of the standard deviation of their column: a 28 that
        was filled in from another row is 28 again."""
        unit = self.to_user(np.ones((1, *self.model_shape)), deviation=True)[0]
        unit = np.where(unit > 0, np.maximum(unit, 1e-290), 1.0)  # codes of what the network does not see have none
        out = np.array(values)
        for j, n in enumerate((6 - np.ceil(np.log10(unit)).astype(int)).tolist()):
            out[..., j] = np.round(out[..., j], n)
        return out

    def as_given(self, x: np.ndarray) -> np.ndarray:
        """(…, *model_shape) -> (…, *shape), values as they are; those of a category are added up."""
        if self._mixed is not None:
            return self._mixed.add_up(x)
        return restored(x, self.layout)
