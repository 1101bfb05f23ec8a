"""A data set in four splits, from a user's array or from a reader."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lapae.data.arrays import examine
from lapae.data.batches import portions_of
from lapae.data.copies import copied
from lapae.data.extremes import without_absurd
from lapae.data.frame import table_records
from lapae.data.groups import as_groups, divide_groups, linked
from lapae.data.labels import as_classes
from lapae.data.source import Records, Split, Streamed, take
from lapae.data.splits import LEAST_ROWS, partition
from lapae.data.tiles import divide_images
from lapae.errors import DataError
from lapae.space import Space, chunks
from lapae.space.frames import as_frame

SPLITS = ("validation", "calibration", "test", "seed", "limit")


@dataclass(frozen=True)
class Data:
    """A data set in four splits, and a description of its data."""

    space: Space
    train: Split
    valid: Split
    """Validation set."""
    calib: Split
    """Calibration set, which is neither used for training nor to stop it."""
    test: Split

    @property
    def kind(self) -> str:
        return self.space.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample in the model: (C, H, W) of an image, (F,) of a table."""
        return self.space.model_shape

    @property
    def label_names(self) -> tuple[str, ...] | None:
        return self.space.label_names

    @classmethod
    def of(cls, X: Any, y: Any = None, *, groups: Any = None, name: str = "X", **options: Any) -> Data:
        """Split a user's data in the same way as a file with the same content.

        Args:
            X: (n, *shape) an array, a tensor or nested lists of numbers; or a frame of pandas or polars.
            y: (n,) classes, or (n, A) attributes that are 0 or 1.
            groups: (n,) the group of each row, such as a customer or a machine; rows of a group are in the same split.
            name: name of the data set, for messages.
            options: options of `lapae.data.load` for splits, series and missing values; for a frame also for columns.
        """
        frame = as_frame(X)
        x: Any = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X) if frame is None else frame
        splits = {option: options.pop(option) for option in SPLITS if option in options}
        if y is not None:
            options["y"], options["label_names"] = as_classes(name, np.asarray(y), len(x))
        read = examine if frame is None else table_records
        records = read(x, name, name, **options)
        if groups is not None:
            records = replace(records, together=as_groups(groups, len(x), name))
        return cls.divide(records, **splits)

    @property
    def portion(self) -> int | None:
        """Number of samples in an epoch of streamed training data; None if an epoch is all of them."""
        x = self.train.x
        return -(-len(x) // portions_of(len(x))) if isinstance(x, Streamed) else None

    @property
    def n_groups(self) -> int:
        """Number of groups of rows that were put into the same split; 0 if there are none."""
        splits = (self.train, self.valid, self.calib, self.test)
        return sum(len(np.unique(split.together)) for split in splits if split.together is not None)

    @property
    def in_memory(self) -> Data:
        """The data, with a random sample instead of streamed training data."""
        x = self.train.x
        return replace(self, train=Split(x.sample, None, x.sample_rows)) if isinstance(x, Streamed) else self

    @property
    def held_out(self) -> Split:
        """Return samples to evaluate a model on: the test set or, without one, the calibration set."""
        return next((split for split in (self.test, self.calib, self.valid) if len(split)), self.train)

    @classmethod
    def divide(cls, records: Records, **options: Any) -> Data:
        """Split the records of a reader.

        Args:
            records: all samples.
            options: options of `lapae.data.splits.partition`.
        """
        records = without_absurd(records)
        if records.together is not None and (records.stride is not None or records.groups is not None):
            raise DataError(f"{records.name}: groups are for rows; windows are split by time, and tiles by image")
        if records.stride is not None:  # windows that share a step are in the same part
            options["gap"] = -(-records.x.shape[1] // records.stride) - 1
        seen, every = observed(records), records
        if seen is not None:
            records = at(records, seen)
        whole = records.groups is not None and records.groups.max() + 1 >= LEAST_ROWS
        parts = divide_images(records, **options) if whole else _divide_rows(records, **options)

        def part(index: np.ndarray) -> Split:
            images = records.groups if whole else None
            y, images, together = (None if of is None else of[index] for of in (records.y, images, records.together))
            rows = index if seen is None else seen[index]
            return Split(take(every.x, rows), y, rows, images, together)

        train, valid, calib, held_out = map(part, parts)
        known = ("most", "columns", "left_out", "values", "stride", "name", "label_names", "missing", "fit")
        known += ("features", "interval")
        about = {field: getattr(records, field) for field in known}
        space = Space.of(train.x, **about, tile=records.groups is not None)
        warn_of_unlearned(records, space, train)
        return cls(space, train, valid, calib, held_out)


def observed(records: Records) -> np.ndarray | None:
    """Return the indices of records (n, …) with any value, in increasing order; None if all have one.

    The others are left out: there is nothing to learn from them, and new rows are not compared with them.
    """
    if not records.missing:
        return None
    empty = np.concatenate([np.isnan(part).reshape(len(part), -1).all(1) for _, part in chunks(records.x)])
    if not empty.any():
        return None
    told = f"{int(empty.sum())} of {len(empty)} rows, the first is row {np.argmax(empty)}"
    warnings.warn(f"{records.name}: nothing observed in {told}: they are left out", stacklevel=4)
    return np.flatnonzero(~empty)


def warn_of_unlearned(records: Records, space: Space, train: Split) -> None:
    """Warn of columns of a table and channels of windows that have no value in the training set.

    The model ignores their values in new data, whatever these are. (Positions of images may lack values for good.)
    """
    if not records.missing or space.kind == "image" or len(space.shape) > 2:
        return
    known = np.zeros(train.x.shape[-1], bool)
    for _, part in chunks(train.x):
        known |= ~np.isnan(part).reshape(-1, len(known)).all(0)
        if known.all():
            return
    what, names = ("column" if space.kind == "table" else "channel"), space.names
    told = ", ".join(repr(names[i]) if names else f"{i} (from 0)" for i in np.flatnonzero(~known))
    warnings.warn(
        f"{records.name}: no value at all in {what} {told} of the training set: nothing is learned of it, and its "
        "values in new data have no effect on scores",
        stacklevel=4,
    )


def at(records: Records, index: np.ndarray) -> Records:
    """Return the records at an increasing index (n,)."""
    parts = {name: getattr(records, name) for name in ("y", "partition", "groups", "together")}
    chosen = {name: None if part is None else part[index] for name, part in parts.items()}
    return replace(records, x=take(records.x, index), **chosen)


def _divide_rows(records: Records, **options: Any) -> tuple[np.ndarray, ...]:
    """Split rows; groups and copies of a row stay together, and one row of each is used for calibration."""
    x, together, copies = records.x, records.together, None
    if isinstance(x, np.ndarray) and x.ndim == 2 and records.partition is None and records.stride is None:
        copies = copied(x)
    if together is not None:
        return divide_groups(together if copies is None else linked(together, copies), records.name, **options)
    if copies is None:
        return partition(len(x), records.partition, **options)
    first = np.unique(copies, return_index=True)[1]
    if len(first) < LEAST_ROWS:
        raise DataError(f"{records.name}: {len(x)} rows, of which only {len(first)} differ: too few to learn from")
    train, valid, calib, test = partition(len(first), **options)
    whole = [np.flatnonzero(np.isin(copies, part))[: options.get("limit")] for part in (train, valid, test)]
    return whole[0], whole[1], np.sort(first[calib]), whole[2]
