"""Confidence of a verdict: the share of networks drawn from the posterior that give the same verdict.

Networks are linearised in their weights: a draw δ of the weights moves the code of a sample by J_z δ and its
reconstruction by J_x δ, and with them its anomaly score. The calibration rows move by the same draw, so a shift of all
rows changes no verdict. If the data say little about a row, draws disagree, and so do their verdicts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.calibration import Calibration, Predict
from lapae.methods.base import Method
from lapae.methods.laplace import Laplace
from lapae.predict.linearized_lowrank import draws, tangents
from lapae.predict.mc import evaluating
from lapae.predict.once import Once
from lapae.predict.prediction import Prediction

DRAWS = 100
ROWS_AT_ONCE = 256
BUDGET = 1 << 26
"""Maximum number of values in memory."""
MOST_MOVED = 300
"""Maximum number of calibration rows that are scored by each network; others move like the nearest of these in rank."""


def confidence(
    method: Method,
    calibration: Calibration,
    predict: Predict,
    x: Tensor,
    rate: float,
    n_draws: int = DRAWS,
    surprises: Tensor | None = None,
) -> np.ndarray:
    """Return the share of drawn networks that agree with the verdict on samples.

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
    if not isinstance(method, Laplace):
        raise ValueError(
            "the confidence of a verdict is a share of networks drawn from a posterior over weights, got "
            f"{type(method).__name__}, which has none: train with method='online' or 'posthoc'"
        )
    laplace, reference = method, calibration.reference
    order = reference.scores.argsort(stable=True)
    places = np.linspace(0, len(order) - 1, min(len(order), MOST_MOVED)).round().astype(int)
    some = order[places]
    moved = _shifts(
        laplace, calibration, predict(reference.rows[some]), reference.rows[some], n_draws, reference.own[some]
    )
    theirs = np.empty((n_draws + 1, len(order)))
    theirs[:, order.numpy()] = moved[:, np.abs(np.arange(len(order))[:, None] - places).argmin(1)]
    blocks = x.split(ROWS_AT_ONCE)
    of_blocks = [None] * len(blocks) if surprises is None else surprises.split(ROWS_AT_ONCE)
    parts = [np.empty(0)]
    for part, more in zip(blocks, of_blocks, strict=True):
        found = predict(part)
        shifts, rank = _shifts(laplace, calibration, found, part, n_draws), calibration.rank(Once(predict, part, found))
        p, *drawn = reference.compare(rank, part, (shifts, theirs), more)[1]
        agree = ((np.stack(drawn) <= rate) == (p <= rate)).mean(0)
        parts.append(np.where(np.isnan(p), np.nan, agree))
    return np.concatenate(parts)


def _shifts(
    laplace: Laplace, calibration: Calibration, found: Prediction, x: Tensor, n_draws: int, own: Tensor | None = None
) -> np.ndarray:
    """Return by how much the scores of rows x (B, *features) are higher for each drawn network, (1 + S, B); first 0."""
    weight, score = next(laplace.parameters()), calibration.score(found, x, own)
    shifts = [torch.zeros_like(score)]
    with evaluating(laplace, len(x)):
        moves = tangents(laplace, x.to(weight.device, weight.dtype), draws(laplace.posterior, range(n_draws)), BUDGET)
        for codes, outputs in moves:
            for z, y in zip(codes.cpu(), outputs.cpu(), strict=True):
                moved = found.replace(z_mean=found.z_mean + z, x_mean=found.x_mean + y)
                shifts.append(calibration.score(moved, x, own) - score)
    return torch.stack(shifts).double().numpy()
