"""Feature maps of images: those of several layers on one grid, with a vector for each position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, interpolate

from lapae.config.names import FEATURES
from lapae.errors import ConfigError

MOST_POSITIONS = 1024
"""Largest number of positions of a grid; finer maps are averaged."""
MOST_FEATURES = 192
"""Largest number of features of a position; more are projected at random, as in PaDiM."""
AT_ONCE = 8


@cache
def load(name: str) -> nn.Module:
    """Return a network by name, frozen, with its trained weights."""
    return FEATURES.find(name).load()()


def feature_maps(network: nn.Module, images: np.ndarray) -> np.ndarray:
    """Return feature maps of images.

    Args:
        network: takes images (B, 3, H, W) in [0, 1]; it is used in evaluation mode and not changed.
        images: (n, 1 or 3, H, W) of float32 in [0, 1].

    Returns:
        (n, h, w, D) of float32. The grid is that of the network's finest map with at most 1,024 positions; each
        position is the mean over a square of 3x3. Features are rotated, or projected to 192, by a fixed matrix.
    """
    was_training = network.training
    parameter = next(network.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    network.eval()
    try:
        with torch.no_grad():
            parts = []
            for start in range(0, len(images), AT_ONCE):
                x = torch.from_numpy(np.ascontiguousarray(images[start : start + AT_ONCE], np.float32)).to(device)
                parts.append(_on_one_grid(network(x.expand(-1, 3, -1, -1)), len(x)).cpu())
    finally:
        network.train(was_training)
    found = torch.cat(parts).movedim(1, -1)
    return (found @ torch.from_numpy(_rotation(found.shape[-1]))).numpy()


def _on_one_grid(found: Any, n: int) -> Tensor:
    """Return the maps (n, C, h, w) that a network has returned as one (n, D, h, w)."""
    maps = list(found.values()) if isinstance(found, Mapping) else found
    maps = [maps] if isinstance(maps, Tensor) else list(maps) if isinstance(maps, Sequence) else [maps]
    for each in maps:
        if not isinstance(each, Tensor) or each.ndim != 4 or len(each) != n:
            came = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
            raise ConfigError(
                f"features: the network returned {came} for {n} images; expected feature maps ({n}, C, h, w), one or a "
                "list of them: leave out its pooling and its classifier"
            )
    sizes = sorted({(each.shape[2], each.shape[3]) for each in maps}, key=lambda size: -size[0] * size[1])
    fine = [size for size in sizes if size[0] * size[1] <= MOST_POSITIONS]
    size = fine[0] if fine else _shrunk(sizes[-1])
    return torch.cat([avg_pool2d(_resized(each.float(), size), 3, 1, 1, count_include_pad=False) for each in maps], 1)


def _resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Return maps x (n, C, h, w) on another grid: averaged if they are finer, interpolated if they are coarser."""
    if tuple(x.shape[2:]) == size:
        return x
    if x.shape[2] >= size[0] and x.shape[3] >= size[1]:
        return adaptive_avg_pool2d(x, size)
    return interpolate(x, size=size, mode="bilinear", align_corners=False)


def _shrunk(size: tuple[int, int]) -> tuple[int, int]:
    """Return a grid with at most the allowed number of positions, and sides in the same proportion."""
    factor = (MOST_POSITIONS / (size[0] * size[1])) ** 0.5
    return max(1, int(size[0] * factor)), max(1, int(size[1] * factor))


@cache
def _rotation(n: int) -> np.ndarray:
    """Return orthonormal columns (n, at most 192), always the same: the stream of RandomState is frozen."""
    drawn = np.random.RandomState(0).standard_normal((n, n))
    q, r = np.linalg.qr(drawn)
    return (q * np.sign(np.diag(r)))[:, :MOST_FEATURES].astype(np.float32)
