"""Missing values filled in: the best guess, and completions that scatter around it as the truth does.

A network that was trained with hidden values says what they are in one pass. One that was not is iterated: its own
reconstruction stands in for what is missing until the two agree (complete.py, the paper's procedure).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lapae.calibrate.calibration import Calibration, Predict
from lapae.impute.chains import impute
from lapae.impute.recall import Memory, best_guess
from lapae.methods import Method
from lapae.networks.missing import Observe
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.prediction import Prediction
from lapae.predict.statistics import expected

STEPS = 5
"""Encodings and decodings of a chain: by then the missing values agree with the observed ones."""
CHAINS, AVERAGE = 5, 5
"""Chains behind a best guess, and networks averaged at the end of each."""


def is_masked(method: Method) -> bool:
    """Whether the network was trained with hidden values."""
    return any(isinstance(module, Observe) for module in method.modules())


def complete(
    method: Method,
    predict: Predict,
    x: Tensor,
    *,
    memory: Memory | None = None,
    seed: int,
    value_range: tuple[float, float],
) -> Prediction:
    """Predictions of x (n, *shape), with the best guess of what is missing in its place; from `memory`, if any."""
    if is_masked(method) or not x.isnan().any():
        return predict(x)
    if memory is not None:
        filled = best_guess(method, memory, x, seed=seed)
    else:
        options: dict[str, Any] = {"modes": CHAINS, "average": AVERAGE, "steps": STEPS}
        filled = impute(method, x, **options, seed=seed, value_range=value_range).mean
    found = predict(filled)
    return replace(found, x_mean=torch.where(x.isnan(), filled, found.x_mean))


def completions(
    method: Method,
    calibration: Calibration,
    predict: Predict,
    x: Tensor,
    n: int,
    *,
    seed: int,
    value_range: tuple[float, float],
) -> Tensor:
    """Completions of data with missing values: networks of their own, and noise for what networks do not account for.

    Args:
        method: the trained method.
        calibration: what the noise is taken from.
        predict: makes predictions of data.
        x: data (N, *shape) in the model's space; NaN is missing.
        n: completions of each; the result is (n, N, *shape).
        seed: of networks and noise.
        value_range: range of the data.
    """
    missing = x.isnan()
    found = complete(method, predict, x, seed=seed, value_range=value_range)
    center = torch.where(missing, found.x_mean, x)
    assert calibration.hidden is not None
    deviation = calibration.hidden.deviation(found, x)
    spread = _networks(method, x, n, seed, value_range).to(center.dtype) - center
    spread = torch.where(missing, spread - spread.mean(0), 0.0)
    # Beyond what the calibrated deviation allows networks do not scatter; what they lack is noise.
    size = spread.square().mean(0).sqrt()
    spread = spread * (deviation / size.clamp_min(1e-12)).clamp_max(1.0)
    left = (deviation.square() - spread.square().mean(0)).clamp_min(0.0).sqrt()
    noise = torch.randn(spread.shape, generator=torch.Generator().manual_seed(seed), dtype=center.dtype)
    return center + torch.where(missing, spread + left * noise, 0.0)


def _networks(method: Method, x: Tensor, n: int, seed: int, value_range: tuple[float, float]) -> Tensor:
    """What n networks say about x: (n, N, *shape)."""
    weight = next(method.parameters())
    if not is_masked(method):
        return impute(method, x, modes=n, average=0, steps=STEPS, seed=seed, value_range=value_range).samples
    seeds = draw_seeds(seed, n_distinct(method, n))
    with evaluating(method, len(seeds) * len(x)):
        draws = method.draw(seeds)
        made = expected(method.likelihood, draws.decode(draws.encode(x.to(weight.device, weight.dtype)[None]))).cpu()
    return made[torch.arange(n) % len(made)]
