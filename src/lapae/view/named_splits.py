"""The samples that a page is about, in named parts: the splits of a run, or data given by the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lapae.data import Data, Split
from lapae.data.features import images_of
from lapae.data.source import Lazy
from lapae.runs.numbers import number

GIVEN = "given"
"""Name of the only part of data given by the user: it is not known which samples were trained on."""
WORDS = {
    "train": "training samples",
    "validation": "validation samples (they decide when training stops)",
    "calibration": "calibration samples (held out of training)",
    "test": "test samples (held out of training)",
    GIVEN: "given samples",
}
"""Descriptions of the parts."""


@dataclass(frozen=True)
class NamedSplits:
    """Samples in named parts, none of them empty; no parts if there are no data."""

    parts: dict[str, Split] = field(default_factory=dict)
    label_names: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    """Names of the samples of given data, such as file names; None if they are known by their rows."""

    @classmethod
    def of(cls, data: Data) -> NamedSplits:
        """Take the splits of a run; with features, of the images that these are of."""
        named = {"train": data.train, "validation": data.valid, "calibration": data.calib, "test": data.test}
        if data.space.features is not None:
            named = {name: replace(split, x=images_of(split.x)) for name, split in named.items()}
        return cls({name: split for name, split in named.items() if len(split)}, data.label_names)

    @classmethod
    def given(cls, x: np.ndarray, y: Any = None, ids: Sequence[str] | None = None) -> NamedSplits:
        """Take samples (n, *shape) of a user, with their classes (n,) and names."""
        codes = names = None
        if y is not None:
            if len(y) != len(x):
                raise ValueError(f"y has {len(y)} labels for {len(x)} samples")
            found, codes = np.unique(np.asarray(y).astype(str), return_inverse=True)
            names = tuple(found.tolist())
        return cls({GIVEN: Split(x, codes)}, names, None if ids is None else tuple(ids))

    @property
    def main(self) -> str:
        """Name of the part shown on the map: the training data."""
        return next(iter(self.parts))

    def held_out(self, *order: str) -> str:
        """Return the first part of `order` that exists, else the main part."""
        return next((name for name in order if name in self.parts), self.main)

    def id(self, part: str, i: int) -> str:
        """Return the name of a sample, such as its file, or its row in the whole data set."""
        if self.ids is not None:
            return self.ids[i]
        x = self.parts[part].x
        name = x.name(int(i)) if isinstance(x, Lazy) else None
        return f"row {self.parts[part].row(i)}" if name is None else name

    def find(self, text: str) -> tuple[str, int] | None:
        """Find a sample by its name or its row in the whole data set: its part and index there, or None."""
        if self.ids is not None and text in self.ids:
            return self.main, self.ids.index(text)
        for name, split in self.parts.items():
            if (
                isinstance(split.x, Lazy)
                and (i := next((i for i in range(len(split)) if split.x.name(i) == text), -1)) >= 0
            ):
                return name, i
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            return None
        row = int(text)
        for name, split in self.parts.items():
            if split.rows is None:
                if row < len(split):
                    return name, row
            elif len(found := np.flatnonzero(split.rows == row)):
                return name, int(found[0])
        return None

    def label(self, part: str, i: int) -> str | None:
        """Return the class of a sample, by name if classes have names."""
        y = self.parts[part].y
        if y is None or y.ndim != 1:
            return None
        value, names = int(y[i]), self.label_names
        return names[value] if names is not None and 0 <= value < len(names) else str(value)

    def card(self, part: str, i: int, p: float) -> dict[str, Any]:
        """Return what the report says about every sample that it shows, with its p-value."""
        return {"id": self.id(part, i), "label": self.label(part, i), "p": number(float(p), 2)}

    @property
    def are_given(self) -> bool:
        """Whether the samples are the user's, and not those of a run."""
        return GIVEN in self.parts

    def labelings(self, index: np.ndarray) -> list[dict[str, Any]]:
        """Return ways to colour the samples `index` of the main part: by class, or by one attribute at a time."""
        labels = self.parts[self.main].y if self.parts else None
        if labels is None:
            return []
        y = np.asarray(labels)[index]
        if y.ndim == 1:
            names = list(self.label_names or [])
            names += [str(i) for i in range(len(names), int(y.max(initial=0)) + 1)]
            return [{"name": "class", "names": names, "values": y.astype(int).tolist()}]
        titles = self.label_names or [f"attribute {a + 1}" for a in range(y.shape[1])]
        return [
            {"name": title, "names": [f"not {title}", title], "values": y[:, a].astype(int).tolist()}
            for a, title in enumerate(titles)
        ]
