"""scikit-learn's digits: 1,797 images of 8x8, which come with the package. The default data set."""

from __future__ import annotations

import numpy as np

from lapae.data.source import Records


def read_digits() -> Records:
    """Images (1797, 1, 8, 8) uint8 from 0 to 16, classes (1797,)."""
    from sklearn.datasets import load_digits  # takes a second to import

    pixels, classes = load_digits(return_X_y=True)
    return Records(
        name="digits",
        x=np.asarray(pixels).astype(np.uint8).reshape(-1, 1, 8, 8),
        y=np.asarray(classes, dtype=np.int64),
        most=16.0,
        label_names=tuple("0123456789"),
    )
