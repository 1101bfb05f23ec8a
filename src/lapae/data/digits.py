"""scikit-learn's digits: 1,797 images of 8x8, which come with the package. The default data set."""

from __future__ import annotations

from functools import cache

import numpy as np

from lapae.data.source import Records

N_TEST = 180
"""Images of the test split, always the same ones."""


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels and classes, read from their text file once."""
    from sklearn.datasets import load_digits  # takes a second to import

    pixels, classes = load_digits(return_X_y=True)
    return np.asarray(pixels).astype(np.uint8).reshape(-1, 1, 8, 8), np.asarray(classes, dtype=np.int64)


def read_digits() -> Records:
    """Images (1797, 1, 8, 8) uint8 from 0 to 16, classes (1797,)."""
    x, y = (part.copy() for part in _digits())
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
