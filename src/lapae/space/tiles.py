"""A large image as tiles, and results for tiles as results for each pixel."""

from __future__ import annotations

import numpy as np

from lapae.space.series import starts


def corners(size: tuple[int, int], tile: int) -> np.ndarray:
    """Upper left corners (m, 2) of the tiles of an image (height, width), row by row.

    They are adjacent. The last one of a row or a column ends with the image, and so may overlap the previous one.
    """
    down, right = (starts(n, tile, tile) for n in size)
    return np.stack(np.meshgrid(down, right, indexing="ij"), -1).reshape(-1, 2)


def cut_tiles(image: np.ndarray, tile: int, at: np.ndarray) -> np.ndarray:
    """The tiles (m, C, tile, tile) of an image (C, H, W) at corners (m, 2)."""
    return np.stack([image[:, row : row + tile, column : column + tile] for row, column in at.tolist()])


def fold_tiles(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Values (m, …, tile, tile) of all tiles of an image as values (…, H, W): the mean, where tiles overlap."""
    tile = values.shape[-1]
    height, width = (at.max(0) + tile).tolist()
    total, count = np.zeros((*values.shape[1:-2], height, width)), np.zeros((height, width))
    for (row, column), part in zip(at.tolist(), values, strict=True):
        total[..., row : row + tile, column : column + tile] += part
        count[row : row + tile, column : column + tile] += 1
    return total / count
