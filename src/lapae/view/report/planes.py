"""The maps of the report: codes decoded on grids over pairs of axes, at a bounded cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lapae.model import Model
from lapae.predict import evaluating
from lapae.view.display import Display, shorts, tiles
from lapae.view.latent_map import LatentSpace, plane
from lapae.view.verdicts import batch_size

SIDES = (32, 24, 20, 16, 12, 8)
MOST_FLOPS = 1e11
"""Maximum number of operations for all maps together: a few seconds on one core."""
MOST_TILES = 1024
"""Maximum number of tiles in all maps together: they are part of the page."""


class Operations(TorchDispatchMode):
    """Counts operations as torch's own counter does, which takes two seconds to import."""

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping dynamo would import it first

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


def cost_of_code(model: Model, space: LatentSpace) -> float:
    """Count the operations needed to decode one code with one network."""
    weight = next(model.method.parameters())
    code = torch.as_tensor(space.codes[:1]).to(weight.device, weight.dtype)
    with Operations() as counter, evaluating(model.method):
        model.method.draw_mean().decode(code[None])
    return float(counter.total)


def side_of(cost: float, n_maps: int) -> int:
    """Return the number of tiles along a side of each of `n_maps` maps, if one tile takes `cost` operations."""
    fits = (s for s in SIDES if s**2 * n_maps * cost <= MOST_FLOPS and s**2 * n_maps <= MOST_TILES)
    return next(fits, SIDES[-1])


def planes(
    model: Model, space: LatentSpace, display: Display, side: int, n_samples: int | None, seed: int
) -> list[dict[str, Any]]:
    """Return shades and tiles for every pair of axes, for the page's script."""
    found = []
    size = batch_size(int(np.prod(model.shape)))
    for axes in space.pairs:
        decoded = plane(model.method, space, axes, side=side, n_samples=n_samples, seed=seed, batch_size=size)
        found.append({"axes": list(axes), "heat": shorts(decoded.total), **tiles(model, display, decoded, side)})
    return found
