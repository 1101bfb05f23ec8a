"""The error of a trained method on data that it has not seen, as the paper reports it."""

from __future__ import annotations

import torch

from lapae.data import Batches
from lapae.methods import Draws, Method
from lapae.models.threads import few_threads
from lapae.train.distributed import stand_in, total

N_DRAWS = 10
"""Networks drawn for the error under sampled networks."""


@torch.no_grad()
def evaluate(method: Method, batches: Batches, n_draws: int = N_DRAWS) -> dict[str, float]:
    """Squared error per datum, summed over its elements, in model space.

    "squared_error" is that of the point estimate; "squared_error_sampled", for a stochastic method, the average over
    `n_draws` sampled networks (the paper's "-log p"). Batches that are split over processes are summed over them.
    """
    method.eval()
    draws: dict[str, Draws] = {"squared_error": method.draw_mean()}
    if method.stochastic:
        draws["squared_error_sampled"] = method.draw(range(n_draws))
    totals: dict[str, torch.Tensor] = {}
    with few_threads(method, batches.batch_size * n_draws):
        for part in batches.epoch(0):
            x = stand_in(part)
            for name, networks in draws.items():
                output = networks.decode(networks.encode(x[None])).loc
                mean = method.likelihood.mean(output.flatten(0, 1)).unflatten(0, output.shape[:2])
                error = (mean - x).square().flatten(2).nansum(2).mean(0).sum().double()
                totals[name] = totals.get(name, torch.zeros_like(error)) + error * bool(len(part))
    sums = torch.stack([*totals.values()])
    if batches.world_size > 1:
        sums = total(sums)
    return {name: value / batches.n_data for name, value in zip(totals, sums.tolist(), strict=True)}
