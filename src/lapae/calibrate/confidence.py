"""Confidence of a verdict: the share of the networks that the data allow which give it too.

Networks are linearised in their weights: a draw δ of the weights moves the code of a sample by J_z δ and its
reconstruction by J_x δ, and with them its anomaly score, which is compared with the calibration rows as before. Where
the data say little, draws disagree, and so do their verdicts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.calibration import Calibration, Predict
from lapae.methods.base import Method
from lapae.methods.laplace import with_posterior
from lapae.predict.linearized_lowrank import draws, tangents
from lapae.predict.mc import evaluating
from lapae.predict.once import Once

DRAWS = 100
ROWS_AT_ONCE = 256
BUDGET = 1 << 26
"""Numbers in memory."""


def confidence(
    method: Method,
    calibration: Calibration,
    predict: Predict,
    x: Tensor,
    rate: float,
    n_draws: int = DRAWS,
    surprises: Tensor | None = None,
) -> np.ndarray:
    """Return how many of the drawn networks agree with the verdict on samples.

    Args:
        method: the trained method, with a posterior.
        calibration: compares anomaly scores.
        predict: the model.
        x: samples (B, *features) in the model's space.
        rate: false alarm rate of the verdict.
        n_draws: networks to draw.
        surprises: of levels that no row has had, (B, C).

    Returns:
        Shares (B,) from 0 to 1; NaN for samples with nothing observed.
    """
    blocks = x.split(ROWS_AT_ONCE)
    of_blocks = [None] * len(blocks) if surprises is None else surprises.split(ROWS_AT_ONCE)
    parts = [
        _confidence(method, calibration, predict, part, rate, n_draws, more)
        for part, more in zip(blocks, of_blocks, strict=True)
    ]
    return np.concatenate([*parts, np.empty(0)])


def _confidence(
    method: Method,
    calibration: Calibration,
    predict: Predict,
    x: Tensor,
    rate: float,
    n_draws: int,
    surprises: Tensor | None,
) -> np.ndarray:
    laplace = with_posterior(method, "a confidence of verdicts")
    weight = next(method.parameters())
    found = predict(x)
    score, rank = calibration.score(found, x), calibration.rank(Once(predict, x, found))
    shifts = [torch.zeros_like(score)]
    with evaluating(method, len(x)):
        moves = tangents(laplace, x.to(weight.device, weight.dtype), draws(laplace.posterior, range(n_draws)), BUDGET)
        for codes, outputs in moves:
            for z, y in zip(codes.cpu(), outputs.cpu(), strict=True):
                moved = found.replace(z_mean=found.z_mean + z, x_mean=found.x_mean + y)
                shifts.append(calibration.score(moved, x) - score)
    p, *drawn = calibration.reference.compare(rank, x, torch.stack(shifts).double().numpy(), surprises)[1]
    agree = ((np.stack(drawn) <= rate) == (p <= rate)).mean(0)
    return np.where(np.isnan(p), np.nan, agree)
