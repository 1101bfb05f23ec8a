"""How much each value of a sample adds to its anomaly score."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lapae.predict.prediction import Prediction
from lapae.score.score import Score

MOST_COLUMNS = 64
"""Maximum number of columns that are hidden one by one; with more, only the parts of the score are used."""


def explain(
    score: Score, predict: Callable[[Tensor], Prediction], x: Tensor, widths: Sequence[int] | None = None
) -> Tensor:
    """Divide the anomaly scores of samples among their values.

    Args:
        score: the fitted score.
        predict: the model.
        x: samples (B, *features).
        widths: number of features of each column, for a table whose model takes missing values. Half of the score is
            then divided by how much it falls when a column is hidden, as a value may agree with each of the others but
            not with all of them together. Default: no column is hidden.

    Returns:
        Contributions (B, *features), at least 0.
    """
    found = predict(x)
    parts = score.explain(found, x)
    if widths is None or not 1 < len(widths) <= MOST_COLUMNS:
        return parts
    whole, falls = score(found, x), torch.zeros_like(x)
    for start, stop in itertools.pairwise(np.cumsum([0, *widths])):
        without = x.clone()
        without[:, start:stop] = torch.nan
        fall = (whole - score(predict(without), without)).nan_to_num().clamp_min(0)
        falls[:, start:stop] = fall[:, None] / (stop - start)
    total = falls.sum(1, keepdim=True)
    split = parts.nan_to_num().sum(1, keepdim=True) * falls / total.clamp_min(1e-12)
    return torch.where(total > 0, (parts + split) / 2, parts)
