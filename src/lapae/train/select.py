"""Choice of the weights that a trained method keeps: those of its best epoch, or those from which it started.

Training may make things worse: it may diverge to weights that are finite and useless, and on few rows it may be no
better than principal component analysis. Both are decided on held-out samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lapae.methods import Method
from lapae.train.checkpoint import copy_state
from lapae.train.distributed import rank
from lapae.train.held_out import is_better, judge
from lapae.train.loop import TrainResult, is_trainable


@dataclass(frozen=True)
class Selection:
    """Weights that a method has after `select`."""

    weights: Literal["trained", "start", "rival"]
    """trained: those of the best epoch; start: all that was there before training, which has diverged; rival: the
    initial weights with the posterior of training, which did not beat the rival."""
    rival_explained: float | None = None
    """Share of the variance of held-out samples that the rival explains; None without a rival, or without variance."""


def select(method: Method, result: TrainResult, rival: Callable[[Method], None] | None = None) -> Selection:
    """Keep the trained weights of a method if they are better than those from which it started.

    Trained weights have diverged if their error on held-out samples exceeds the variance of these and the error before
    training. Against a rival they must be significantly better: the errors must have fallen by more than one standard
    error of the difference.

    Args:
        method: at its trained weights; it is left at the selected ones.
        result: what `lapae.train.loop.train` returned.
        rival: sets the weights of the method that training has to beat, such as principal components; without it,
            training only must not have diverged.

    Returns:
        Which weights the method has now. A warning says so if training has diverged.
    """
    if not is_trainable(method):
        return Selection("trained")
    held_out, trained = result.held_out, copy_state(method)
    method.load_state_dict(result.start)
    if rival is not None:
        rival(method)
    first = held_out.error(method)
    losses = judge(method, held_out, held_out.device)
    before = losses()
    explained = held_out.explained(first) if rival is not None else None

    method.load_state_dict(trained)
    reached = held_out.error(method)
    if reached > max(held_out.variance, first):
        method.load_state_dict(result.start)
        if rank() == 0:
            rate = result.history[0]["learning_rate"]
            warnings.warn(
                f"training has diverged: the squared error of held-out samples is {reached:.4g}, that of their mean "
                f"{held_out.variance:.4g}. The initial weights are kept. Try a learning_rate below {rate:g}",
                stacklevel=2,
            )
        return Selection("start", explained)
    if rival is not None and not is_better(losses(), before):
        weights = {name: result.start[name] for name, _ in method.named_parameters()}
        method.load_state_dict({**trained, **weights})
        return Selection("rival", explained)
    return Selection("trained", explained)
