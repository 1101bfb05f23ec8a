"""`Space`: one description of data, made once from the training data, kept with the model and used by everything.

| array                                            | is       | scaled                               |
|--------------------------------------------------|----------|--------------------------------------|
| (n, F)                                           | a table  | standardised, per column             |
| (n, H, W), (n, C, H, W), (n, H, W, C), images    | images   | to [0, 1]; the model sees (C, H, W)  |
| (n, T, C), other numbers                         | windows  | standardised, per channel            |
| anything else with more axes                     | an array | standardised, per channel            |

Images are uint8, boolean, or floats within [0, 1]. Missing values are NaN everywhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from lapae.errors import DataError
from lapae.space.columns import Column, Spans
from lapae.space.frames import as_frame, code_frame, uncode_frame
from lapae.space.scaling import Number, Source, apply, chunks, invert, standardise

Kind: TypeAlias = Literal["table", "image", "series", "array"]
Layout: TypeAlias = Literal["plain", "gray", "last"]
Fit: TypeAlias = Literal["border", "crop", "stretch"]
CHANNELS = (1, 3, 4)
IMAGE_RANGE, STANDARD_RANGE = (0.0, 1.0), (-3.0, 3.0)
ABSURD = 100.0
"""Deviations of the training data from their mean, beyond which the median of new data is taken for a mistake."""
LEAST = 10
"""Values at least to judge a column by: a single broken sensor in a few rows is an outlier, not a mistake."""
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Space:
    """What data are: their kind, layout and scaling, their columns, and what may be missing."""

    kind: Kind
    shape: tuple[int, ...]
    """Of one datum as the user gives it."""
    layout: Layout = "plain"
    """plain; gray: (H, W) is (1, H, W) in the model; last: (H, W, C) is (C, H, W)."""
    offset: Number = 0.0
    """The model sees (value - offset) / scale: numbers, or arrays that broadcast to the model's shape."""
    scale: Number = 1.0
    columns: tuple[Column, ...] | None = None
    """Of a table whose columns have names."""
    label_names: tuple[str, ...] | None = None
    """Names of the classes, or of the attributes."""
    missing: bool = False
    """Whether values were missing in the data."""
    name: str = "X"
    """Of the data set."""
    n_data: int = 1
    """Number of training data."""
    fit: Fit | None = None
    """How images of other sizes were brought to this one; None where all were of one size."""

    @classmethod
    def of(
        cls,
        x: Source,
        *,
        most: float | None = None,
        columns: Sequence[Column] | None = None,
        within: tuple[float, float] | None = None,
        **about: Any,
    ) -> Space:
        """Decide what the training data x (n, *shape) are, and how to scale them.

        Args:
            x: numbers; NaN is missing.
            most: the greatest value that images of this kind can have; known of named sets alone.
            columns: of a table.
            within: least and greatest of the data, where they are known already.
            about: other fields: `name`, `label_names`, `missing`.
        """
        shape, about = tuple(x.shape[1:]), {"n_data": len(x), **about}
        if len(shape) == 1:
            columns = tuple(columns) if columns is not None else None
            names = None if columns is None else [column.name for column in columns]
            offset, scale = standardise(x, names)
            if columns is not None:
                offset, scale = Spans(columns).spread(offset, 0.0), Spans(columns).spread(scale, 1.0)
            return cls("table", shape, offset=offset, scale=scale, columns=columns, **about)
        if most is None:
            most = _greatest(x, within)
        if most is not None:
            image = len(shape) in (2, 3)
            return cls("image" if image else "array", shape, _layout(shape) if image else "plain", 0.0, most, **about)
        # (T, C), or with the channels before the rest as images have them
        channel = 1 if len(shape) == 3 and shape[0] in CHANNELS else len(shape)
        offset, scale = standardise(x, over=tuple(axis for axis in range(len(shape) + 1) if axis != channel))
        return cls("array", shape, offset=offset, scale=scale, **about)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Of one datum in the model."""
        if self.columns is not None:
            return (self._spans.n_features,)
        if self.layout == "gray":
            return (1, *self.shape)
        return (self.shape[-1], *self.shape[:-1]) if self.layout == "last" else self.shape

    @property
    def value_range(self) -> tuple[float, float]:
        """Where data lie in the model's space."""
        return IMAGE_RANGE if self.kind == "image" else STANDARD_RANGE

    @property
    def most(self) -> float:
        """The greatest value that an image can have."""
        return float(np.max(self.scale))

    @property
    def names(self) -> tuple[str, ...] | None:
        """Of the columns, of a table whose columns have names."""
        return None if self.columns is None else tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the model's features, of a table whose columns have names."""
        return None if self.columns is None else tuple(name for column in self.columns for name in column.features)

    @property
    def parts(self) -> tuple[tuple[str, int, int], ...]:
        """(likelihood, start, stop) of the spans of the model's features, of a table; gaussian everywhere else."""
        return (("gaussian", 0, math.prod(self.model_shape)),) if self.columns is None else self._spans.parts

    @property
    def maskable(self) -> bool:
        """Whether values can be hidden one by one: of more than one feature."""
        return len(self.model_shape) == 1 and self.model_shape[0] > 1

    @cached_property
    def _spans(self) -> Spans:
        return Spans(self.columns or ())

    @property
    def _mixed(self) -> bool:
        """Whether codes of columns are not what the model sees, but for their scale."""
        return self.columns is not None and any(column.kind != "number" for column in self.columns)

    def code(self, X: Any, where: str = "X", **options: Any) -> np.ndarray:
        """What a user hands over as numbers (n, *shape): a frame, an array, a tensor or nested lists.

        Columns of a frame are found by name, others are ignored; an array of numbers holds codes already. Images may
        come in another layout than in training. `where` begins messages, `options` are those of `code_frame`.
        """
        frame = as_frame(X)
        x = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X) if frame is None else X
        if frame is None and x.dtype.kind in "OUS" and x.ndim == 2:
            frame = as_frame(x.astype(object))
        if frame is not None and self.kind == "table":
            columns = self.columns or tuple(Column(str(i)) for i in range(self.shape[0]))
            return code_frame(frame, columns, where, **options)
        x = np.asarray(x)
        if x.dtype.kind not in "biuf":
            raise DataError(f"{where}: values of type {x.dtype}, expected numbers")
        x = x.view(np.uint8) if x.dtype == np.bool_ else x
        x = x[:, None] if x.ndim == 1 else x
        if x.ndim and x.shape[1:] == self.shape:
            return x
        if self.kind == "image" and x.ndim in (3, 4):
            arranged = _arranged(x, _layout(x.shape[1:]))
            if arranged.shape[1:] == self.model_shape:
                return self.as_given(arranged)
        raise DataError(f"{where}: data of shape {x.shape[1:]}, the model takes data of shape {self.shape}")

    def to_model(self, x: np.ndarray, where: str = "X") -> np.ndarray:
        """Numbers (n, *shape) in the user's units as float32 (n, *model_shape); checked, NaN is missing."""
        x = np.asarray(x)
        if tuple(x.shape[1:]) != self.shape:
            raise DataError(f"{where}: data of shape {x.shape[1:]}, the model takes data of shape {self.shape}")
        self.check(x, where)
        return np.ascontiguousarray(self.convert(x))

    def convert(self, x: T) -> T:
        """`to_model` without a check, of an array or of a tensor, which stays where it is."""
        return apply(self.arrange(x), self.offset, self.scale)  # type: ignore[type-var]

    def to_user(self, x: np.ndarray, *, deviation: bool = False) -> np.ndarray:
        """(…, *model_shape) in the model's space -> (…, *shape) in the user's units and layout.

        Of a table with columns these are codes: a count is whole, a boolean 0 or 1, a category its code.

        Args:
            x: data, or with `deviation` their standard deviations, which are scaled and not moved.
            deviation: see above.
        """
        scale = np.asarray(self.scale, x.dtype)
        units = x * scale if deviation else invert(x, self.offset, self.scale)
        return self._spans.gather(units, deviation=deviation) if self._mixed else self.as_given(units)

    def probabilities(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Of every category and boolean in (…, D) of the model's space, by the name of the column: (…, categories)."""
        found = {}
        for i in self._spans.of_kind("category", "boolean"):
            part = x[..., self._spans.starts[i] : self._spans.starts[i + 1]]
            column = self._spans.columns[i]
            found[column.name] = part if column.kind == "category" else np.concatenate([1 - part, part], -1)
        return found

    def uncode(self, x: np.ndarray, like: Any = None) -> Any:
        """Numbers (n, *shape) as what the model was trained on: a frame where it was one, with the types it had.

        Args:
            x: numbers, or several of them (m, n, *shape), which stay an array.
            like: the frame that they belong to: its index, and polars where it is of polars.
        """
        if self.columns is None or x.ndim != 2:
            return x
        frame = uncode_frame(x, self.columns, getattr(like, "index", None))
        if type(like).__module__.partition(".")[0] != "polars":
            return frame
        import polars as pl  # pyright: ignore[reportMissingImports]

        values = {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns}
        return pl.DataFrame(values, strict=False)

    def check(self, x: np.ndarray, where: str = "X", row: int = 0) -> None:
        """DataError where a value of x (n, *shape), whose first datum is number `row`, is infinite or out of range."""
        if x.dtype.kind == "f" and np.isinf(x).any():
            first = row + int(np.isinf(x).reshape(len(x), -1).any(1).argmax())
            raise DataError(f"{where}, row {first} (from 0): an infinite value")
        if self.kind != "image" or not x.size or (x.dtype.kind == "f" and np.isnan(x).all()):
            return
        low, high = float(np.nanmin(x)), float(np.nanmax(x))
        expected = f"the model takes images with values from 0 to {self.most:g}"
        if low < 0 or high > self.most:
            raise DataError(f"{where}: values from {low:g} to {high:g}, {expected}")

    def check_units(self, x: np.ndarray, where: str = "X") -> None:
        """DataError where x (n, *shape) as a whole, or half of one column, cannot be in the units of the training data.

        Unusual values are what an outlier detector is for, so that only the absurd is refused: data in other units, not
        standardised where the training data were, or of another table. NaN are left out.
        """
        if self.kind == "image":
            if self.most > 1 and x.dtype.kind == "f" and x.size and 0 < np.nan_to_num(x).max() <= 1:
                raise DataError(
                    f"{where}: floats from {np.nanmin(x):g} to {np.nanmax(x):g}, the model takes images with values "
                    f"from 0 to {self.most:g}: scale them by {self.most:g}"
                )
            return
        if not x.size:
            return
        values = x.reshape(len(x), -1).astype(np.float64)
        if self.columns is None:
            offset, scale = (np.broadcast_to(v, x.shape[1:]).ravel() for v in (self.offset, self.scale))
        else:
            offset, scale = (
                np.broadcast_to(v, self.model_shape)[self._spans.starts[:-1]] for v in (self.offset, self.scale)
            )
            values = np.where(np.isin(np.arange(len(offset)), self._spans.of_kind("number", "count")), values, np.nan)
        gaps = np.abs(values - offset) / scale
        known = ~np.isnan(gaps)
        far = known & (gaps > ABSURD)
        columns = np.flatnonzero((known.sum(0) >= LEAST) & (2 * far.sum(0) > known.sum(0)))
        if not len(columns) and 2 * far.sum() <= known.sum():
            return
        worst = int(columns[0]) if len(columns) else int(far.sum(0).argmax())
        column = repr(self.columns[worst].name) if self.columns else f"{worst} (from 0)"
        came = f"those of feature {column} are about {np.nanmedian(values[:, worst]):g}"
        expected = f"the model was trained on {offset[worst]:.4g} ± {scale[worst]:.4g}"
        raise DataError(
            f"{where}: values of another range: {came}, {expected}; other units? --any-range takes them as is"
        )

    def describe(self, n: int | None = None) -> str:
        """One line: how many (`n`, else those of training), and what they are."""
        n = self.n_data if n is None else n
        size = "x".join(map(str, self.shape))
        if self.kind == "image":
            channels, height, width = self.model_shape
            colour = {1: "gray", 3: "colour"}.get(channels, f"{channels}-channel")
            return f"{n:,} {colour} images of {height}x{width}"
        what = f"rows of {size} columns" if self.kind == "table" else f"arrays of {size}"
        if self._mixed:
            kinds = Counter(column.kind for column in self.columns or ())
            what += f" ({', '.join(f'{number} {_plural(kind, number)}' for kind, number in kinds.items())})"
        return f"{n:,} {what}" + (", with missing values" if self.missing else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types. Nothing is rounded."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "shape": list(self.shape),
            "offset": np.asarray(self.offset).tolist(),
            "scale": np.asarray(self.scale).tolist(),
            "columns": None if self.columns is None else [column.to_dict() for column in self.columns],
            "label_names": None if self.label_names is None else list(self.label_names),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Space:
        """Inverse of `to_dict`; a ValueError, TypeError or KeyError where the values are not of that kind."""
        shape, columns, labels = tuple(values["shape"]), values["columns"], values["label_names"]
        if not shape or not all(type(n) is int and n > 0 for n in (*shape, values["n_data"])):
            raise ValueError(f"shape {shape} and n_data {values['n_data']!r} must be whole numbers above 0")
        for name, known in (("kind", get_args(Kind)), ("layout", get_args(Layout)), ("fit", (None, *get_args(Fit)))):
            if values[name] not in known:
                raise ValueError(f"{name} {values[name]!r}: expected one of {', '.join(map(str, known))}")
        offset, scale = (np.asarray(values[key], dtype=np.float64) for key in ("offset", "scale"))
        if not (np.isfinite(offset).all() and np.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError("offset and scale must be finite, and the scale above 0")
        space = cls(
            **{
                **values,
                "shape": shape,
                "columns": None if columns is None else tuple(map(Column.from_dict, columns)),
                "label_names": None if labels is None else tuple(map(str, labels)),
                "offset": offset if offset.ndim else float(offset),
                "scale": scale if scale.ndim else float(scale),
                "missing": bool(values["missing"]),
                "name": str(values["name"]),
            }
        )
        if space.layout != "plain" and len(shape) != (2 if space.layout == "gray" else 3):
            raise ValueError(f"the layout {space.layout!r} for data of shape {shape}")
        if any(not _fits(v.shape, space.model_shape) for v in (offset, scale)):
            raise ValueError(f"offset and scale of shapes {offset.shape} and {scale.shape} for data of shape {shape}")
        if space.columns is not None and len(space.columns) != shape[0]:
            raise ValueError(f"{len(space.columns)} columns for data of shape {shape}")
        return space

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Space) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compared by value, and values are arrays

    def arrange(self, x: Any) -> Any:
        """(n, *shape) -> (n, *model_shape), values as they are; categories one-hot."""
        if not self._mixed:
            return _arranged(x, self.layout)
        if isinstance(x, np.ndarray):
            return self._spans.expand(x)
        import torch

        return torch.from_numpy(self._spans.expand(x.cpu().numpy())).to(x.device)

    def as_given(self, x: np.ndarray) -> np.ndarray:
        """(…, *model_shape) -> (…, *shape), values as they are; those of a category are added up."""
        if self._mixed:
            return np.add.reduceat(x, self._spans.starts[:-1], axis=-1)
        if self.layout == "gray":
            return np.squeeze(x, -3)
        return np.moveaxis(x, -3, -1) if self.layout == "last" else x


def _plural(kind: str, number: int) -> str:
    return kind if number == 1 else "categories" if kind == "category" else f"{kind}s"


def _layout(shape: tuple[int, ...]) -> Layout:
    """Of images (H, W), (C, H, W) or (H, W, C)."""
    if len(shape) == 2:
        return "gray"
    return "last" if shape[0] not in CHANNELS and shape[-1] in CHANNELS else "plain"


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether arrays of `shape` broadcast to `whole`."""
    rest = whole[len(whole) - len(shape) :]
    return len(shape) <= len(whole) and all(a in (1, b) for a, b in zip(shape, rest, strict=True))


def _arranged(x: Any, layout: Layout) -> Any:
    if layout == "gray":
        return x[:, None]
    if layout == "last":
        return np.moveaxis(x, -1, 1) if isinstance(x, np.ndarray) else x.movedim(-1, 1)
    return x


def _greatest(x: Source, within: tuple[float, float] | None) -> float | None:
    """The greatest value that images x can have; None where they are no images."""
    if x.dtype == np.uint8:
        return 255.0
    if x.dtype == np.bool_:
        return 1.0
    if x.dtype.kind != "f":
        return None
    low, high = within or bounds(x)
    return 1.0 if low >= 0 and high <= 1 else None


def bounds(x: Source) -> tuple[float, float]:
    """Least and greatest of x, NaN left out; (inf, -inf) where there is none."""
    low, high = np.inf, -np.inf
    for _, part in chunks(x):
        known = part[~np.isnan(part)]
        if known.size:
            low, high = min(low, float(known.min())), max(high, float(known.max()))
    return low, high
