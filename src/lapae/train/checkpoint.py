"""Checkpoints: everything that is needed to resume, in one safetensors file; the previous one is kept too.

Tensors: `method.*` (weights and posterior), `optimizer.<parameter>.*`, and `best.*` if this is not the best epoch.
Everything else is JSON in the file's metadata, including the configuration and the history of the epochs, so that a
damaged config.toml or metrics.jsonl does no harm. Random numbers are a function of the seed and the epoch, so they have
no state.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lapae.errors import RunError
from lapae.methods.adam import Adam, Plateau, set_rate
from lapae.runs import CHECKPOINT, NEXT, PREVIOUS, Run, read_tensor_file, tensor_file
from lapae.runs.files import sync_folder, write_whole
from lapae.runs.parts import under
from lapae.train.distributed import copy_from_first, from_first
from lapae.train.history import append_history, write_history

FORMAT = "lapae checkpoint 1"
TIME_SHARE = 0.05
"""Share of the training time that writing checkpoints may take."""
_SCHEDULE = ("best", "num_bad_epochs")
_FORMER = ("cooldown_counter", "last_epoch")
"""Further fields in checkpoints of earlier versions."""

Tensors = dict[str, Tensor]


@dataclass
class TrainState:
    """Progress of training, in plain numbers."""

    n_data: int
    """Size of the training set, which must be the same on resuming."""
    epoch: int = 0
    """Number of completed epochs."""
    best_epoch: int = 0
    """Epoch of the best validation loss; 0: the initial weights."""
    best_loss: float | None = None
    """Best validation loss."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One record per epoch."""

    def stop_reason(self, epochs: int, patience: int) -> str | None:
        """Return why training has ended; None if it has not."""
        if self.epoch - self.best_epoch >= patience and self.epoch > 0:
            return f"no better validation loss in {patience} epochs"
        return f"{epochs} epochs done" if self.epoch >= epochs else None

    def done(self, epochs: int, patience: int) -> float:
        """Return the share of training that is done, from 0 to 1: of its epochs or of its patience."""
        return max(self.epoch / epochs, (self.epoch - self.best_epoch) / patience)

    def add(self, record: dict[str, Any], loss: float) -> bool:
        """Add an epoch with its validation loss; return whether that is the best so far."""
        self.epoch += 1
        self.history.append(record)
        is_best = loss < (math.inf if self.best_loss is None else self.best_loss)
        if is_best:
            self.best_epoch, self.best_loss = self.epoch, loss
        return is_best


def copy_state(module: nn.Module) -> Tensors:
    """Return a copy of the weights and buffers, on their device."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


class Checkpoints:
    """Write the checkpoints of a run, so often that it takes at most `TIME_SHARE` of the training time.

    The time for the next one is estimated from the last one. Between two of them the state of the last epoch is held in
    memory and written if training ends early: a kill loses the epochs since the last checkpoint; Ctrl-C, or a loss that
    becomes NaN, loses none.

    Args:
        run: folder of the run.
        about: plain JSON for every checkpoint: the configuration, the data.
        history: records of the epochs so far, which are written to metrics.jsonl.
    """

    def __init__(self, run: Run, about: Mapping[str, Any], history: list[dict[str, Any]]) -> None:
        self.run, self.about = run, about
        write_history(run, history)
        self.held: tuple[Tensors, dict[str, Any]] | None = None
        self._cost = 0.0
        self._ended = time.monotonic()

    def due(self) -> bool:
        """Return whether to write the state of the epoch that has just ended."""
        return time.monotonic() - self._ended >= (1 / TIME_SHARE - 1) * self._cost

    def save(
        self, method: nn.Module, optimizer: Adam, schedule: Plateau, state: TrainState, best: Tensors, *, last: bool
    ) -> None:
        """Add the epoch that has just ended to metrics.jsonl; write a checkpoint if it is due or the `last`."""
        append_history(self.run, state.history[-1])
        due = self.due() or last
        self.keep(*gather(method, optimizer, schedule, state, best, self.about), best, write=due)

    def keep(self, tensors: Tensors, metadata: dict[str, Any], best: Tensors, *, write: bool) -> None:
        """Write a checkpoint (see `gather`), or hold copies of its tensors, except `best`, which does not change."""
        self.held = None  # free its memory for the next
        if write:
            self._write(tensors, metadata)
            return
        lasting = {id(tensor) for tensor in best.values()}
        copies = {name: t if id(t) in lasting else t.detach().clone() for name, t in tensors.items()}
        self.held = copies, metadata

    def _write(self, tensors: Tensors, metadata: dict[str, Any]) -> None:
        self.held = tensors, metadata  # until it is on the disk: Ctrl-C while it is written loses nothing either
        began = time.monotonic()
        try:
            write_whole(self.run / NEXT, tensor_file(tensors, metadata))
            _put_in_place(self.run)
        except Exception:
            self.held = None
            raise
        self._ended = time.monotonic()
        self._cost = self._ended - began
        self.held = None

    def end(self) -> None:
        """Write the state that is held in memory if training ends with an error; a failure here is only a warning."""
        if self.held is None:
            return
        try:
            self._write(*self.held)
        except Exception as error:
            warnings.warn(f"{error}; the epochs since the last checkpoint are lost", stacklevel=2)


def gather(
    method: nn.Module,
    optimizer: Adam,
    schedule: Plateau,
    state: TrainState,
    best: Tensors,
    about: Mapping[str, Any],
) -> tuple[Tensors, dict[str, Any]]:
    """Return tensors and metadata of a checkpoint of the last epoch.

    `best` are weights and buffers of the best epoch, `about` is plain JSON to keep: the configuration, the data.
    """
    is_best = state.best_epoch == state.epoch
    tensors = {f"method.{name}": tensor for name, tensor in (best if is_best else method.state_dict()).items()}
    for index, values in optimizer.state.items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
    if not is_best:
        tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    metadata = {
        "format": FORMAT,
        "state": asdict(state),
        "learning_rates": [float(group["lr"]) for group in optimizer.param_groups],
        # `best` is infinite before the first step (always, with a cosine), as in a new schedule
        "schedule": {name: value for name in _SCHEDULE if math.isfinite(value := getattr(schedule, name))},
        "about": dict(about),
    }
    return tensors, metadata


def _put_in_place(run: Run) -> None:
    """Rename a new checkpoint, which loading finds by its first name too: a kill between two renames loses nothing."""
    try:
        if (run / CHECKPOINT).exists():
            os.replace(run / CHECKPOINT, run / PREVIOUS)
        os.replace(run / NEXT, run / CHECKPOINT)
        sync_folder(run.path)
    except OSError as error:
        raise RunError(f"cannot write {run / CHECKPOINT}: {error.strerror}") from error


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read from a file."""

    tensors: Tensors
    metadata: dict[str, Any]
    path: str

    @property
    def about(self) -> dict[str, Any]:
        """Configuration and data of the run, as plain JSON."""
        about = self.metadata.get("about")
        if not isinstance(about, dict):
            raise RunError(f"{self.path} is damaged: the configuration is missing")
        return about

    @property
    def state(self) -> TrainState:
        """Progress of training when the checkpoint was written."""
        try:
            state = TrainState(**self.metadata["state"])
            if any(type(n) is not int or n < 0 for n in (state.n_data, state.epoch, state.best_epoch)):
                raise ValueError("a count is not a whole number")
            if not isinstance(state.history, list) or not all(isinstance(record, dict) for record in state.history):
                raise ValueError("the history is not a list of records")
            if state.best_loss is not None:
                state.best_loss = float(state.best_loss)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self.path} is damaged: {error!r}") from error
        return state

    def group(self, name: str) -> Tensors:
        """Return the tensors whose names start with "name.", without that prefix."""
        return under(name, self.tensors)

    @property
    def best(self) -> Tensors:
        """Weights and buffers of the best epoch."""
        return self.group("best") or self.group("method")

    def restore(self, method: nn.Module, optimizer: Adam, schedule: Plateau, n_data: int) -> tuple[TrainState, Tensors]:
        """Restore everything to the state in which the checkpoint was written.

        Args:
            method: gets its weights and buffers back.
            optimizer: gets its state back.
            schedule: gets its state back.
            n_data: size of the training set, which must be that of the checkpoint.

        Returns:
            Progress of training, and weights and buffers of the best epoch on the device of the method.
        """
        load_state(method, self.group("method"), self.path)
        try:
            self._restore(optimizer, schedule)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise RunError(f"{self.path} is damaged: {error!r}") from error
        state = self.state
        if state.n_data != n_data:
            raise RunError(f"{self.path} is of {state.n_data} training samples, there are {n_data} now")
        device = next(method.parameters()).device
        return state, {name: tensor.to(device) for name, tensor in self.best.items()}

    def _restore(self, optimizer: Adam, schedule: Plateau) -> None:
        values: dict[int, Tensors] = {}
        for key, tensor in self.group("optimizer").items():
            index, name = key.split(".")
            values.setdefault(int(index), {})[name] = tensor
        optimizer.load(values)
        for group, saved in zip(optimizer.param_groups, self.metadata["learning_rates"], strict=True):
            set_rate(group, float(saved))
        saved = self.metadata["schedule"]
        if set(saved) - {*_SCHEDULE, *_FORMER} or not all(isinstance(v, int | float) for v in saved.values()):
            raise ValueError(f"the schedule is {saved}")
        vars(schedule).update({name: saved[name] for name in _SCHEDULE if name in saved})


def load_state(method: nn.Module, state: Tensors, origin: str) -> None:
    """Load weights; raise RunError that names their file and what does not fit."""
    try:
        method.load_state_dict(state)
    except RuntimeError as error:
        detail = " ".join(str(error).split())
        raise RunError(f"{origin} does not fit this model: {detail[:300]}") from error


def load_shared_checkpoint(run: Run) -> Checkpoint | None:
    """Return the checkpoint to continue from, as the first process reads it, on all processes; None if there is none.

    A checkpoint that a kill or a full disk left under its temporary name gets its own name.
    """
    read: list[Checkpoint] = []

    def load() -> dict[str, Any] | None:
        checkpoint = load_checkpoint(run)
        if checkpoint is None:
            return None
        if checkpoint.path == str(run / NEXT):
            _put_in_place(run)
        read.append(checkpoint)
        shapes = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in checkpoint.tensors.items()}
        return {"metadata": checkpoint.metadata, "path": checkpoint.path, "shapes": shapes}

    found = from_first(load)
    if found is None:
        return None
    shapes = found.pop("shapes")
    if read:
        tensors = read[0].tensors
    else:
        tensors = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in shapes.items()}
    for name in shapes:
        copy_from_first(tensors[name])
    return Checkpoint(tensors, **found)


def load_checkpoint(run: Run) -> Checkpoint | None:
    """Return the newest readable checkpoint of a run; None if none has been written.

    A damaged one is skipped with a warning: the one before it leads to the same weights, an epoch later.
    """
    failures = []
    for name in (NEXT, CHECKPOINT, PREVIOUS):
        if not (run / name).exists():
            continue
        try:
            tensors, metadata = read_tensor_file(run / name)
            if metadata.get("format") != FORMAT:
                raise RunError(f"{run / name} is not a checkpoint: expected format {FORMAT!r}")
        except RunError as error:
            if (run / name).exists():  # otherwise a training has just renamed it
                failures.append(str(error))
            continue
        if failures:
            warnings.warn(f"{failures[0]}; continuing from the checkpoint before it, {run / name}", stacklevel=2)
        return Checkpoint(tensors, metadata, str(run / name))
    if failures:
        raise RunError("no readable checkpoint: " + "; ".join(failures))
    return None
