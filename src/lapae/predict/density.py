"""A density over codes: where the training data are in the latent space, to generate from.

Codes are drawn as a training code plus a part of the way to a neighbour of it, and noise of the posterior: a kernel
density whose kernels follow the local spread of the data, at no cost of fitting.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEIGHBOURS = 5
KEEP = 0.6
"""A drawn code lies at most this part of the way from a code to its neighbour."""


def draw_codes(codes: Tensor, n: int, *, seed: int = 0) -> Tensor:
    """n codes (n, *code) from the density of training codes (R, *code)."""
    shape, codes = codes.shape[1:], codes.flatten(1)
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(len(codes), (n,), generator=generator)
    start = codes[at]
    k = min(NEIGHBOURS, len(codes) - 1)
    if k < 1:
        return start.unflatten(1, shape)
    near = torch.cdist(start, codes).topk(k + 1, largest=False).indices[:, 1:]
    other = codes[near.gather(1, torch.randint(k, (n, 1), generator=generator))[:, 0]]
    part = KEEP * torch.rand(n, 1, generator=generator, dtype=codes.dtype)
    return (start + part * (other - start)).unflatten(1, shape)
