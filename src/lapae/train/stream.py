"""Training on a stream: a few steps on the newest samples.

The online posterior is a running one, H_{t+1} = (1 - α) H_t + GGN: old samples are forgotten at the rate α
(`forgetting`), in the precision and in the weights that it constrains.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapae.config import TrainConfig
from lapae.errors import DivergedError
from lapae.methods import Method
from lapae.methods.seeds import derive_seed, seed_all
from lapae.methods.step import StepContext
from lapae.train.checkpoint import copy_state
from lapae.train.step import LossSum, make_optimizer, make_step

FEWEST_STEPS = 40
"""Minimum number of steps on a portion of a stream: a portion of a few batches is used several times."""
HOLD_OUT = 4
"""One sample in `HOLD_OUT` is held out of training, for calibration."""


def held_out(n: int, seed: int, turn: int) -> Tensor:
    """Return which of the n samples of portion `turn` are held out: (n,) bool, true for a random `1 / HOLD_OUT` of
    them."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "held out", turn))
    return torch.randperm(n, generator=generator) % HOLD_OUT == HOLD_OUT - 1


def learn(method: Method, x: Tensor, options: TrainConfig, turn: int, *, by_width: bool) -> None:
    """Train on the newest samples: one pass, or `FEWEST_STEPS` steps. The state of torch's generators is restored.

    Args:
        method: the method to train; if its loss is not finite, it is restored and a DivergedError is raised.
        x: samples (n, *shape) in the model's space.
        options: batch size, learning rate, seed.
        turn: number of the portion, which has its own noise.
        by_width: see `make_optimizer`.
    """
    numbers = options.filled()
    device = next(method.parameters()).device
    before, generator, losses = copy_state(method), torch.Generator(device), LossSum(device)
    method.requires_grad_(True).train()
    optimizer = make_optimizer(method, numbers.learning_rate, device, by_width=by_width)
    step = make_step(method, optimizer, StepContext(generator), losses, batch_size=numbers.batch_size, capture=False)
    passes = max(1, math.ceil(FEWEST_STEPS / max(1, math.ceil(len(x) / numbers.batch_size))))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_all(numbers.seed, "stream", turn, generator=generator)
        for _ in range(passes):
            for index in torch.randperm(len(x)).split(numbers.batch_size):
                step(x[index].to(device))
    method.requires_grad_(False).eval()
    loss, _ = losses.read()
    if not math.isfinite(loss):
        method.load_state_dict(before)
        raise DivergedError(f"the loss is {loss} on these samples: the model is left as it was")
