"""The training loop, one for all methods. It never knows which method it trains.

Adam; the learning rate is halved after 5 epochs without a better validation loss (or falls along a cosine); training
stops after 8 such epochs (`patience`); the best weights are put back at the end, and the method finishes on them (a
post-hoc posterior is fitted there).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lapae.config import TrainConfig
from lapae.data import Batches
from lapae.errors import DivergedError, ElsewhereError, RunError
from lapae.methods import Method
from lapae.methods.adam import Plateau
from lapae.methods.seeds import seed_all
from lapae.methods.step import Step
from lapae.runs import Run, plain
from lapae.train import distributed as processes
from lapae.train.checkpoint import Checkpoint, Checkpoints, TrainState, copy_state, gather
from lapae.train.distributed import from_first, stand_in, take_place, together, total
from lapae.train.held_out import errors, is_better, judge, mean, set_noise, variance
from lapae.train.history import append_history, write_history
from lapae.train.precision import autocast
from lapae.train.progress import Observer
from lapae.train.step import LossSum, anneal, make_optimizer, make_step


@dataclass(frozen=True)
class TrainResult:
    """What training came to. The method holds the best weights."""

    history: list[dict[str, Any]]
    """One record per epoch: epoch, loss, valid_loss, learning_rate, seconds, what the method validates; of held-out
    data the squared error per value (`error`) and the share of their variance that is explained (`explained`)."""
    best_epoch: int
    best_loss: float | None
    stopped: str
    """Why training ended."""
    finish: dict[str, float]
    """What `Method.finish` reported."""
    explained: float | None = None
    """Share of the variance of held-out data that their reconstructions explain: 0 or less is no better than the mean
    of the data. None where they do not vary."""
    rival: float | None = None
    """The same for the weights that training had to beat, where there were some."""
    kept: bool = False
    """Whether it did not, and the initial weights are kept."""


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
    rival: Callable[[Method], None] | None = None,
) -> TrainResult:
    """Train a method.

    Args:
        method: what to train; it is left at its best weights.
        batches: of training data.
        valid: of validation data, whose loss steers the learning rate and early stopping; without them, the training
            loss does.
        options: epochs, learning rate, schedule, patience, precision, seed.
        run: folder that keeps the metrics and the checkpoints.
        about: plain JSON to keep in the checkpoints: the configuration, the data.
        device: where to train; where the method is, by default.
        resume: checkpoint to continue from.
        observers: are told how training goes.
        rival: for initial weights that were chosen with care: they are moved with care too, and kept unless training
            has made held-out errors smaller, beyond doubt, than the weights that this puts into the method.
    """
    numbers: Any = options.filled()
    device = take_place(options) if device is None else device
    method.to(device)
    state = TrainState(batches.n_data)
    rank, world_size = processes.rank(), processes.world_size()
    run, observers = (run, observers) if rank == 0 else (None, ())  # one process writes, and speaks

    valid = valid if valid is not None and valid.n_data else None
    held_out = valid or batches
    spread, given = variance(held_out.epoch(0), held_out.n_data, device), None
    stopped, keep = "nothing to train", False
    if any(parameter.requires_grad for parameter in method.parameters()):
        optimizer = make_optimizer(method, numbers.learning_rate, device, by_width=rival is not None)
        schedule = Plateau(optimizer)
        if resume is None and numbers.epochs:
            method.begin(lambda: batches.epoch(0), together())
        begun = copy_state(method)
        if rival is not None:
            rival(method)
        first = errors(method, held_out.epoch(0), device)
        judged = judge(method, lambda: held_out.epoch(0), device)
        before = judged()
        method.load_state_dict(begun)
        given = mean(first) if rival is not None else None
        if resume is not None:
            resume.restore(method, optimizer, schedule)
            state = resume.state
            if state.n_data != batches.n_data:
                raise RunError(f"{resume.path} is of {state.n_data} training data, there are {batches.n_data} now")
        else:
            set_noise(method, lambda: held_out.epoch(0), device, per_feature=False)
        best = {k: v.to(device) for k, v in resume.best.items()} if resume is not None else copy_state(method)
        generator = torch.Generator(device)
        context = together(generator)
        noise: dict[str, Any] = {"generator": generator, "own": context.own, "common": context.common, "rank": rank}
        losses = LossSum(device)
        step = make_step(
            method,
            optimizer,
            context,
            losses,
            batch_size=numbers.batch_size,
            precision=numbers.precision,
        )
        checkpoints = None if run is None else Checkpoints(run)
        if checkpoints is not None:
            write_history(checkpoints.run, state.history)
        for observer in observers:
            observer.start(state.epoch, numbers.epochs, len(batches))
        try:
            while not state.stop_reason(numbers.epochs, numbers.patience):
                began = time.monotonic()
                epoch = state.epoch + 1

                if numbers.schedule == "cosine":
                    anneal(optimizer, numbers.learning_rate, (epoch - 1) / numbers.epochs)
                method.train()
                seed_all(numbers.seed, "train", epoch, **noise)
                losses.reset()
                sizes = batches.sizes() if world_size > 1 else [None] * len(batches)
                for x, n_batch in zip(batches.epoch(epoch), sizes, strict=True):
                    step(x.to(device), n_batch)
                    for observer in observers:
                        observer.step()
                loss, n_finite = losses.read()
                record: dict[str, Any] = {"epoch": epoch, "loss": loss}

                square, n_values = set_noise(method, lambda: held_out.epoch(0), device, per_feature=False)
                record["error"] = square / max(n_values, 1)
                if spread > 0:
                    record["explained"] = 1 - square / held_out.n_data / spread
                if valid is not None:
                    seed_all(numbers.seed, "valid", epoch, **noise)
                    found = validate(method, valid, context, device, numbers.precision)
                    record |= {f"valid_{name}": value for name, value in found.items()}
                record = from_first(record.copy)  # what is decided by it is decided alike everywhere
                loss, steering = record["loss"], record.get("valid_loss", record["loss"])
                if not math.isfinite(loss) or not math.isfinite(steering):
                    method.load_state_dict(best)
                    message = _diverged(record, n_finite, len(batches), state, run)
                    raise DivergedError(message) if rank == 0 else ElsewhereError(message)

                record |= {
                    "learning_rate": max(float(group["lr"]) for group in optimizer.param_groups),
                    "seconds": time.monotonic() - began,
                }
                state.epoch = epoch
                state.history.append(plain(record))
                if state.is_best(steering):
                    state.best_epoch, state.best_loss = epoch, steering
                    best = copy_state(method)
                if numbers.schedule == "plateau":
                    schedule.step(steering)

                if checkpoints is not None:
                    append_history(checkpoints.run, state.history[-1])
                    due = checkpoints.due() or bool(state.stop_reason(numbers.epochs, numbers.patience))
                    kept = gather(method, optimizer, schedule, state, best, about or {})
                    checkpoints.keep(*kept, best, write=due)
                for observer in observers:
                    observer.epoch(record)
        except BaseException:
            if checkpoints is not None:
                checkpoints.end()
            raise
        finally:
            for observer in observers:
                observer.close()
        stopped = state.stop_reason(numbers.epochs, numbers.patience) or stopped
        method.load_state_dict(best)
        reached = mean(errors(method, held_out.epoch(0), device))
        if reached > max(spread, mean(first)):  # it has diverged to a finite number
            method.load_state_dict(begun)
            state.best_epoch = 0
            if rank == 0:
                warnings.warn(
                    f"training has led away: a squared error of {reached:.4g} on held-out data, where their mean has "
                    f"{spread:.4g}. The initial weights are kept. Try a learning_rate below {numbers.learning_rate:g}",
                    stacklevel=2,
                )
        elif rival is not None and not is_better(judged(), before):
            kept = {name: value for name, value in begun.items() if name in dict(method.named_parameters())}
            method.load_state_dict({**best, **kept})  # with the posterior that training has found
            state.best_epoch, keep = 0, True
    set_noise(method, lambda: held_out.epoch(0), device, per_feature=True)

    method.eval()
    common = torch.Generator(device) if world_size > 1 else None
    seed_all(numbers.seed, "finish", common=common, rank=rank)
    finish = method.finish(lambda: batches.epoch(0), batches.n_data, replace(together(), generator=common))
    error = mean(errors(method, held_out.epoch(0), device))
    explained, before = (1 - e / spread if spread > 0 and e is not None else None for e in (error, given))
    if explained is not None and explained <= 0 and rank == 0:
        advice = "nothing was learned. Try a smaller learning_rate or more epochs"
        if numbers.epochs == 0:
            advice = "the network is of other data, or X is in other units than it was trained on; it gets X as it is"
        warnings.warn(
            f"held-out data are reconstructed no better than by their mean (squared error {error:.4g}, of the mean "
            f"{spread:.4g}): {advice}",
            stacklevel=2,
        )
    return TrainResult(state.history, state.best_epoch, state.best_loss, stopped, finish, explained, before, keep)


@torch.no_grad()
def validate(method: Method, valid: Batches, step: Step, device: torch.device, precision: str) -> dict[str, float]:
    """Means over the validation data of what `Method.validate` sums."""
    method.eval()
    sums: dict[str, Tensor] = {}
    for x in valid.epoch(0):
        with autocast(precision, device):
            batch = method.validate(stand_in(x).to(device), step)
        for name, value in batch.items():
            sums[name] = sums.get(name, torch.zeros_like(value)) + value.double() * bool(len(x))
    # One reduction and one read for all of them.
    values = total(torch.stack([*sums.values()])).tolist()
    return {name: value / valid.n_data for name, value in zip(sums, values, strict=True)}


def _diverged(record: dict[str, Any], n_finite: int, n_steps: int, state: TrainState, run: Run | None) -> str:
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
