"""scikit-learn's digits: 1,797 images of 8x8, which come with the package. The default data set."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lapae.data.named import NamedSet
from lapae.data.source import Records

FILE = "datasets/data/digits.csv.gz"
"""Path of the file in scikit-learn."""
N_TEST = 180
"""Number of images in the test split, which is always the same."""


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels and classes, read once from scikit-learn's file: importing the package would take seconds."""
    package = Path(getattr(find_spec("sklearn"), "origin", "")).parent
    try:
        with gzip.open(package / FILE) as file:
            table = np.loadtxt(file, np.int64, delimiter=",")
    except FileNotFoundError:  # another release may keep it elsewhere
        from sklearn.datasets import load_digits

        pixels, classes = (np.asarray(part, np.int64) for part in load_digits(return_X_y=True))
        table = np.column_stack([pixels, classes])
    return table[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), table[:, -1]


def read_digits(folder: Path | None = None) -> Records:
    """Return images (1797, 1, 8, 8), uint8 from 0 to 16, with classes (1797,). They need no folder."""
    x, y = (part.copy() for part in digits())
    partition = np.zeros(len(x), int)
    partition[np.random.default_rng(0).permutation(len(x))[:N_TEST]] = 2
    return Records(
        name="digits",
        x=x,
        y=y,
        partition=partition,
        most=16.0,
        label_names=tuple("0123456789"),
    )


DIGITS = NamedSet(read_digits)
