"""What resuming needs, in one safetensors file per checkpoint, with the previous one kept beside it.

Tensors: `method.*` (weights and posterior), `optimizer.<parameter>.*`, and `best.*` where the best epoch is not this
one. Everything else is JSON in the file's metadata, the configuration and the history of the epochs included, so that
a damaged config.toml or metrics.jsonl costs nothing. Randomness is a function of the seed and the epoch: no state.
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
from lapae.train.distributed import copy_from_first, from_first
from lapae.train.history import append_history, write_history

FORMAT = "lapae checkpoint 1"
TIME_SHARE = 0.05
"""Share of the training time that writing checkpoints may take."""
_SCHEDULE = ("best", "num_bad_epochs")
_FORMER = ("cooldown_counter", "last_epoch")
"""What checkpoints of earlier versions hold besides."""

Tensors = dict[str, Tensor]


@dataclass
class TrainState:
    """How far training is: plain numbers."""

    n_data: int
    """Number of training data: on resuming it tells whether the data are still the same."""
    epoch: int = 0
    """Epochs done."""
    best_epoch: int = 0
    """The epoch of the best validation loss; 0 is the initial weights."""
    best_loss: float | None = None
    """The best validation loss."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One record per epoch."""

    def stop_reason(self, epochs: int, patience: int) -> str | None:
        """Why training is over, or None."""
        if self.epoch - self.best_epoch >= patience and self.epoch > 0:
            return f"no better validation loss in {patience} epochs"
        return f"{epochs} epochs done" if self.epoch >= epochs else None

    def add(self, record: dict[str, Any], loss: float) -> bool:
        """Add an epoch with its validation loss; return whether that is the best so far."""
        self.epoch += 1
        self.history.append(record)
        is_best = loss < (math.inf if self.best_loss is None else self.best_loss)
        if is_best:
            self.best_epoch, self.best_loss = self.epoch, loss
        return is_best


def copy_state(module: nn.Module) -> Tensors:
    """A copy of the weights and buffers, where they are."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


class Checkpoints:
    """Write the checkpoints of a run as often as takes at most `TIME_SHARE` of the training time.

    What the next one takes is judged by the last one. Between two of them the state of the last epoch is held in memory
    and written when training ends early: a kill loses the epochs since the last checkpoint, Ctrl-C or a loss that
    becomes NaN lose none.

    Args:
        run: folder of the run.
        about: plain JSON for every checkpoint: the configuration, the data.
        history: records of the epochs done so far, which metrics.jsonl is made to hold.
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
        """Write a checkpoint (see `gather`), or hold it: copies, but for `best`, which training does not change."""
        self.held = None  # its memory is free for the next
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
        """Write what is held. Training ends with an error, and that one counts: what fails here is a warning."""
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
    """Tensors and metadata of the checkpoint of the epoch that `state` ends with."""
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
        # its `best` is infinite as long as it has not taken a step (cosine); a new schedule's is too
        "schedule": {name: value for name in _SCHEDULE if math.isfinite(value := getattr(schedule, name))},
        "about": dict(about),
    }
    return tensors, metadata


def _put_in_place(run: Run) -> None:
    """Whole already under its first name, where loading looks too: a kill between the two renames loses nothing."""
    try:
        if (run / CHECKPOINT).exists():
            os.replace(run / CHECKPOINT, run / PREVIOUS)
        os.replace(run / NEXT, run / CHECKPOINT)
        sync_folder(run.path)
    except OSError as error:
        raise RunError(f"cannot write {run / CHECKPOINT}: {error.strerror}") from error


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as read from a file."""

    tensors: Tensors
    metadata: dict[str, Any]
    path: str

    @property
    def about(self) -> dict[str, Any]:
        """What the caller of training had put in: the configuration and the data, as plain JSON."""
        about = self.metadata.get("about")
        if not isinstance(about, dict):
            raise RunError(f"{self.path} is damaged: it does not say what it is about")
        return about

    @property
    def state(self) -> TrainState:
        """How far training was."""
        try:
            state = TrainState(**self.metadata["state"])
            if any(type(n) is not int or n < 0 for n in (state.n_data, state.epoch, state.best_epoch)):
                raise ValueError("a count that is no whole number")
            if not isinstance(state.history, list) or not all(isinstance(record, dict) for record in state.history):
                raise ValueError("a history that is none")
            if state.best_loss is not None:
                state.best_loss = float(state.best_loss)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self.path} is damaged: {error!r}") from error
        return state

    def group(self, name: str) -> Tensors:
        """The tensors under "name.", without that prefix."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): tensor for key, tensor in self.tensors.items() if key.startswith(prefix)}

    @property
    def best(self) -> Tensors:
        """Weights and buffers of the best epoch."""
        return self.group("best") or self.group("method")

    def restore(self, method: nn.Module, optimizer: Adam, schedule: Plateau, n_data: int) -> tuple[TrainState, Tensors]:
        """Put everything back where it was when the checkpoint was written.

        Args:
            method, optimizer, schedule: what gets its state back.
            n_data: size of the training set, which must be that of the checkpoint.

        Returns:
            How far training was, and weights and buffers of the best epoch, on the device of the method.
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
            raise ValueError(f"a schedule of {saved}")
        vars(schedule).update({name: saved[name] for name in _SCHEDULE if name in saved})


def load_state(method: nn.Module, state: Tensors, origin: str) -> None:
    """`load_state_dict` with an error that says where the weights came from and what does not fit."""
    try:
        method.load_state_dict(state)
    except RuntimeError as error:
        detail = " ".join(str(error).split())
        raise RunError(f"{origin} does not fit this model: {detail[:300]}") from error


def take_up(run: Run) -> Checkpoint | None:
    """The checkpoint to continue from, on all processes as the first one reads it: which that is, it alone decides.

    It is under its own name again if a kill or a full disk came before the renames.
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
    """The newest readable checkpoint of a run; None where none was written yet.

    A damaged newest one is passed over with a warning: the one before it leads to the same weights, an epoch later.
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
            if (run / name).exists():  # else a training has just moved it on to the next name
                failures.append(str(error))
            continue
        if failures:
            warnings.warn(f"{failures[0]}; continuing from the checkpoint before it, {run / name}", stacklevel=2)
        return Checkpoint(tensors, metadata, str(run / name))
    if failures:
        raise RunError("no readable checkpoint: " + "; ".join(failures))
    return None
