"""Codes of training samples, kept for recalling samples and for the density of codes.

Shapes: N samples x (N, *shape) in the model's space, R codes kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.methods.base import Draws, Method
from lapae.predict.decode import encode_mean
from lapae.predict.mc import evaluating
from lapae.predict.rows import evenly
from lapae.predict.statistics import expected
from lapae.score.code_density import CodeDensity, most_codes

KEPT = 2000
"""Maximum number of held-out codes to choose the density by."""
BATCH = 256
MOST_VALUES = 2**25
"""Maximum number of residuals held in memory at once."""


@dataclass(frozen=True)
class LatentCodes:
    """Codes of training samples and their density.

    Attributes:
        codes: codes of training samples by the mean network, (R, *code).
        scale: variance of a value around its reconstruction, times the number of values that vary together, ().
        density: density of the codes.
    """

    codes: Tensor
    scale: Tensor
    density: CodeDensity

    @classmethod
    def fit(cls, method: Method, train: Tensor, held_out: Tensor) -> LatentCodes:
        """Encode samples.

        Args:
            method: the trained method.
            train: training samples (n, *shape).
            held_out: samples that training has not seen; if there are none, training samples are used.
        """
        codes = encode_mean(method, train, batch_size=BATCH)
        unseen = held_out if len(held_out) else train[:KEPT]
        of_unseen = encode_mean(method, unseen, batch_size=BATCH)
        gap = (unseen - expected_samples(method, of_unseen)).nan_to_num().flatten(1).double()
        gap = gap[: max(1, MOST_VALUES // gap.shape[1])]
        # The trace of C² from pairs of samples, C being the covariance of residuals; (tr C)² / tr C² values are free.
        products = (gap @ gap.T).square()
        trace, n = gap.square().sum(1).mean(), len(gap)
        pairs = (products.sum() - products.diagonal().sum()) / (n * (n - 1)) if n > 1 else trace.square()
        together = (gap.shape[1] * pairs / trace.square().clamp_min(1e-30)).clamp(1.0, gap.shape[1])
        scale = (trace / gap.shape[1] * together).clamp_min(1e-12).to(codes.dtype)
        codes = evenly(codes, most_codes(codes[0].numel()))
        unseen = evenly(of_unseen, KEPT) if len(held_out) else of_unseen[:0]
        return cls(codes, scale, CodeDensity.fit(codes, unseen))


def expected_samples(method: Method, z: Tensor, seed: int | None = None) -> Tensor:
    """Decode codes.

    Args:
        method: the trained method.
        z: codes (n, *code).
        seed: seed of a drawn network; default: the mean network.

    Returns:
        The expected samples (n, *shape) on the CPU.
    """
    weight = next(method.parameters())
    with evaluating(method, BATCH):
        draws: Draws = method.draw_mean() if seed is None else method.draw([seed])
        parts = (draws.decode(part.to(weight.device, weight.dtype)[None]) for part in z.split(BATCH))
        return torch.cat([expected(method.likelihood, output)[0].cpu() for output in parts])
