"""A data set in four splits, of a user's array or of what a reader has read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lapae.data.arrays import examine
from lapae.data.labels import as_classes
from lapae.data.source import Records, Split, take
from lapae.data.splits import partition
from lapae.data.table import table_records
from lapae.space import Space
from lapae.space.frames import as_frame


@dataclass(frozen=True)
class Data:
    """A data set in four splits, and what its data are."""

    space: Space
    train: Split
    valid: Split
    """Steers training."""
    calib: Split
    """Calibrates what is reported of a trained model: not seen in training, and not what stopped it."""
    test: Split

    @property
    def name(self) -> str:
        return self.space.name

    @property
    def kind(self) -> str:
        return self.space.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one datum in the model: (C, H, W) of an image, (F,) of a table."""
        return self.space.model_shape

    @property
    def label_names(self) -> tuple[str, ...] | None:
        return self.space.label_names

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        return self.space.feature_names

    @classmethod
    def of(
        cls,
        X: Any,
        y: Any = None,
        *,
        name: str = "X",
        columns: Any = None,
        drop: Any = None,
        label_column: str | int | None = None,
        test: float | int | None = 0,
        allow_nan: bool = True,
        **options: Any,
    ) -> Data:
        """A user's data in splits: the same as those of a file with the same content.

        Args:
            X: (n, *shape) an array, a tensor or nested lists of numbers; or a frame of pandas or polars.
            y: (n,) classes, or (n, A) attributes that are 0 or 1.
            name: of the data set, and of messages.
            columns: the columns of a frame to learn, and those not to.
            drop: see `columns`.
            label_column: the column of a frame that holds the classes.
            test: share of the data to test on.
            allow_nan: take missing values; an error otherwise.
            options: `validation`, `calibration`, `seed` and `limit` of `lapae.data.splits.partition`.
        """
        frame = as_frame(X)
        x = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X) if frame is None else frame
        about: dict[str, Any] = {"allow_nan": allow_nan}
        if y is not None:
            about["y"], about["label_names"] = as_classes(name, np.asarray(y), len(x))
        if frame is not None:
            about |= {"columns": columns, "drop": drop, "label_column": label_column}
            records = table_records(frame, name, name, **about)
        else:
            records = examine(name, name, np.asarray(x), **about)
        return cls.divide(records, test=test, **options)

    @classmethod
    def divide(cls, records: Records, **options: Any) -> Data:
        """What a reader has read in splits, with `options` of `lapae.data.splits.partition`."""
        parts = partition(len(records.x), records.partition, **options)
        train, valid, calib, held_out = (
            Split(take(records.x, index), None if records.y is None else records.y[index], index) for index in parts
        )
        space = Space.of(
            train.x,
            most=records.most,
            columns=records.columns,
            within=records.within,
            name=records.name,
            label_names=records.label_names,
            missing=records.missing,
            fit=records.fit,
        )
        return cls(space, train, valid, calib, held_out)
