"""Floating-point precision of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from lapae.config import TrainConfig


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Run forward passes in bfloat16 if `precision` is "bf16"; weights and curvature stay in float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


@contextmanager
def matrix_products(config: TrainConfig) -> Iterator[None]:
    """Set the precision of float32 matrix products: on a GPU, "tf32" rounds their factors to 10 bits."""
    before = torch.get_float32_matmul_precision()
    if config.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
