"""The training loop, which is the same for all methods.

Adam; the learning rate is halved after 5 epochs without a better validation loss, or falls along a cosine that reaches
0 with the last epoch or when the patience ends, whichever is first; training stops after `patience` such epochs. The
method is left at the weights of its best epoch. Afterwards `lapae.train.select` decides whether these are kept, and
`lapae.train.finish` fits everything that depends on the final weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lapae.config import TrainConfig
from lapae.data import Batches
from lapae.errors import DivergedError, ElsewhereError
from lapae.methods import Method
from lapae.methods.adam import Plateau
from lapae.methods.seeds import seed_all
from lapae.methods.step import StepContext
from lapae.runs import Run, plain
from lapae.train.checkpoint import Checkpoint, Checkpoints, Tensors, TrainState, copy_state
from lapae.train.distributed import from_first, rank, stand_in, take_place, together, total, world_size
from lapae.train.float_precision import autocast
from lapae.train.held_out import HeldOut
from lapae.train.progress import Observer
from lapae.train.step import LossSum, TakeStep, anneal, make_optimizer, make_step


@dataclass(frozen=True)
class TrainResult:
    """Result of training. The method holds the weights of the best epoch."""

    history: list[dict[str, Any]]
    """One record per epoch: epoch, loss, learning_rate, seconds, the results of validation (valid_loss and others), and
    for held-out samples the squared error per value (`error`) and the share of variance explained (`explained`)."""
    best_epoch: int
    """Epoch of the best validation loss; 0 if there was no epoch."""
    best_loss: float | None
    stopped: str
    """Why training ended."""
    start: Tensors
    """Weights and buffers before the first step."""
    held_out: HeldOut
    """The validation set or, without one, the training set."""


def is_trainable(method: Method) -> bool:
    """Return whether any weight of the method requires a gradient."""
    return any(parameter.requires_grad for parameter in method.parameters())


def train(
    method: Method,
    batches: Batches,
    valid: Batches | None,
    options: TrainConfig,
    *,
    run: Run | None = None,
    about: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
    resume: Checkpoint | None = None,
    observers: Sequence[Observer] = (),
    by_width: bool = False,
) -> TrainResult:
    """Train a method until its last epoch, or until the validation loss has not fallen for `patience` epochs.

    Args:
        method: the method to train; it is left at the weights of its best epoch.
        batches: batches of the training set.
        valid: batches of the validation set, whose loss decides on the learning rate, early stopping and the best
            epoch; without a validation set the training loss does.
        options: epochs, learning rate, schedule, patience, precision, seed.
        run: folder for the metrics and the checkpoints; nothing is written by default.
        about: plain JSON to keep in the checkpoints: the configuration, the data.
        device: where to train; default: that of `options`.
        resume: checkpoint to continue from.
        observers: are told how training goes.
        by_width: lower the learning rate of units with many inputs (see `make_optimizer`).

    Returns:
        The history, why training stopped, and what `select` and `finish` need. A loss that is not finite raises
        DivergedError, with the best weights so far in the method.
    """
    numbers: Any = options.filled()
    device = take_place(options) if device is None else device
    method.to(device)
    valid = valid if valid is not None and valid.n_data else None
    held_out = HeldOut(valid or batches, device)
    if not is_trainable(method):
        return TrainResult([], 0, None, "nothing to train", copy_state(method), held_out)
    if rank() > 0:
        run, observers = None, ()  # one process writes and speaks

    optimizer = make_optimizer(method, numbers.learning_rate, device, by_width=by_width)
    schedule = Plateau(optimizer)
    if resume is None and numbers.epochs:
        method.begin(lambda: batches.epoch(0), together())
    start = copy_state(method)
    if resume is None:
        held_out.set_noise(method, per_feature=False)
        state, best = TrainState(batches.n_data), copy_state(method)
    else:
        state, best = resume.restore(method, optimizer, schedule, batches.n_data)
    context = together(torch.Generator(device))
    seed = partial(
        seed_all, numbers.seed, generator=context.generator, own=context.own, common=context.common, rank=context.rank
    )
    losses = LossSum(device)
    step = make_step(method, optimizer, context, losses, batch_size=numbers.batch_size, precision=numbers.precision)
    checkpoints = None if run is None else Checkpoints(run, about or {}, state.history)

    with _watched_by(observers, checkpoints, state.epoch, numbers.epochs, len(batches)):
        while not state.stop_reason(numbers.epochs, numbers.patience):
            began, epoch = time.monotonic(), state.epoch + 1
            if numbers.schedule == "cosine":
                anneal(optimizer, numbers.learning_rate, state.done(numbers.epochs, numbers.patience))
            seed("train", epoch)
            loss, n_finite = _take_steps(method, step, losses, batches, epoch, observers)
            record: dict[str, Any] = {"epoch": epoch, "loss": loss, **held_out.measure(method)}
            if valid is not None:
                seed("valid", epoch)
                record |= validate(method, valid, context, device, numbers.precision)
            record = from_first(record.copy)  # so that all processes decide alike
            watched = record.get("valid_loss", record["loss"])
            if not math.isfinite(record["loss"]) or not math.isfinite(watched):
                method.load_state_dict(best)
                message = _diverged(record, n_finite, len(batches), state, run)
                raise DivergedError(message) if rank() == 0 else ElsewhereError(message)

            record["learning_rate"] = max(float(group["lr"]) for group in optimizer.param_groups)
            record["seconds"] = time.monotonic() - began
            if state.add(plain(record), watched):
                best = copy_state(method)
            if numbers.schedule == "plateau":
                schedule.step(watched)
            if checkpoints is not None:
                last = state.stop_reason(numbers.epochs, numbers.patience) is not None
                checkpoints.save(method, optimizer, schedule, state, best, last=last)
            for observer in observers:
                observer.epoch(record)
    method.load_state_dict(best)
    stopped = state.stop_reason(numbers.epochs, numbers.patience) or ""
    return TrainResult(state.history, state.best_epoch, state.best_loss, stopped, start, held_out)


@contextmanager
def _watched_by(
    observers: Sequence[Observer], checkpoints: Checkpoints | None, epoch: int, epochs: int, n_batches: int
) -> Iterator[None]:
    """Tell observers of the start and the end; if training breaks off, write the checkpoint that is held in memory."""
    for observer in observers:
        observer.start(epoch, epochs, n_batches)
    try:
        yield
    except BaseException:
        if checkpoints is not None:
            checkpoints.end()
        raise
    finally:
        for observer in observers:
            observer.close()


def _take_steps(
    method: Method, step: TakeStep, losses: LossSum, batches: Batches, epoch: int, observers: Sequence[Observer]
) -> tuple[float, int]:
    """Take one step on each batch of an epoch; the mean loss, and the number of steps up to which it was finite."""
    method.train()
    losses.reset()
    sizes = batches.sizes(epoch) if world_size() > 1 else [None] * len(batches)
    for x, n_batch in zip(batches.epoch(epoch), sizes, strict=True):
        step(x.to(losses.sums.device), n_batch)
        for observer in observers:
            observer.step()
    return losses.read()


@torch.no_grad()
def validate(
    method: Method, valid: Batches, step: StepContext, device: torch.device, precision: str
) -> dict[str, float]:
    """Return means over the validation set of the numbers that `Method.validate` sums over a batch.

    Their names have the prefix `valid_`: {"valid_loss": mean, ...}. The method is set to evaluation mode.
    """
    method.eval()
    sums: dict[str, Tensor] = {}
    for x in valid.epoch(0):
        with autocast(precision, device):
            batch = method.validate(stand_in(x).to(device), step)
        for name, value in batch.items():
            sums[name] = sums.get(name, torch.zeros_like(value)) + value.double() * bool(len(x))
    # One reduction and one read for all of them.
    values = total(torch.stack([*sums.values()])).tolist()
    return {f"valid_{name}": value / valid.n_data for name, value in zip(sums, values, strict=True)}


def _diverged(record: dict[str, Any], n_finite: int, n_steps: int, state: TrainState, run: Run | None) -> str:
    """Say where the loss stopped being finite, which weights are kept, and what to try."""
    epoch = record["epoch"]
    if math.isfinite(record["loss"]):
        what = f"the validation loss is {record['valid_loss']} in epoch {epoch}, the training loss {record['loss']:.6g}"
    else:
        what = f"the training loss is {record['loss']} since step {n_finite + 1} of {n_steps} in epoch {epoch}"
    kept = "the initial weights are kept"
    if state.best_epoch:
        where = f" in {run.path}" if run is not None else ""
        kept = f"the weights of epoch {state.best_epoch} (loss {state.best_loss:.6g}) are kept{where}"
    advice = "Try a smaller learning_rate, a larger prior_precision or precision 32, and look for outliers in the data"
    return f"{what}; {kept}. {advice}"
