"""Observers of training: a progress bar on a terminal, plain lines elsewhere, TensorBoard on request."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TextIO

from lapae.errors import ConfigError

Record = dict[str, Any]


class Observer:
    """Base class of observers of the loop. Each overrides the methods that it needs."""

    def say(self, text: str) -> None:
        """Show a summary: the data and the choices before training, the result after it."""

    def start(self, epoch: int, epochs: int, n_batches: int) -> None:
        """Start after `epoch` of at most `epochs` epochs, with `n_batches` steps each."""

    def step(self) -> None:
        """Count a training step."""

    def epoch(self, record: Record) -> None:
        """Receive the record of an epoch that has ended."""

    def close(self) -> None:
        """End, after success or failure."""


def describe(record: Record) -> str:
    """Return the numbers of an epoch in one line."""
    parts = []
    if record.get("error") is not None:
        parts.append(f"error per value {record['error']:.4g}")
    if record.get("explained") is not None:
        parts.append(_explained(record["explained"]))
    names = ("loss", "valid_loss", "learning_rate")
    parts += [f"{name.replace('_', ' ')} {record[name]:.6g}" for name in names if record.get(name) is not None]
    return "  ".join(parts)


def _explained(share: float) -> str:
    return f"explained {100 * share:.1f} %" if share > 0 else "explained nothing"


class Lines(Observer):
    """Observer that prints a line for the first and the last epoch and every tenth, or after half a minute."""

    EVERY, SECONDS = 10, 30

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.held = ""

    def say(self, text: str) -> None:
        print(text, file=self.file, flush=True)

    def start(self, epoch: int, epochs: int, n_batches: int) -> None:
        """Remember when training began, to estimate the remaining time."""
        self.first, self.epochs, self.began = epoch, epochs, time.monotonic()
        self.shown = self.began

    def epoch(self, record: Record) -> None:
        """Print the epoch with the remaining time, or hold it back."""
        now, epoch = time.monotonic(), record["epoch"]
        left = (now - self.began) / max(epoch - self.first, 1) * (self.epochs - epoch)
        times = f"{record['seconds']:.1f} s, at most {left:.0f} s left"
        self.held = f"epoch {epoch}/{self.epochs}  {describe(record)}  {times}"
        if epoch in (self.first + 1, self.epochs) or epoch % self.EVERY == 0 or now - self.shown > self.SECONDS:
            self.shown = now
            self._show()

    def close(self) -> None:
        """Print the last epoch if training ended before it was due."""
        self._show()

    def _show(self) -> None:
        if self.held:
            self.say(self.held)
            self.held = ""


class Bar(Observer):
    """Observer that shows a progress bar over all steps, with the numbers of the last epoch on held-out samples."""

    REFRESH = 0.1
    """Seconds between updates: a step of a small network is shorter than one."""

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, TimeRemainingColumn(elapsed_when_finished=True), console=Console(file=file))

    def say(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False)

    def start(self, epoch: int, epochs: int, n_batches: int) -> None:
        self.n_batches, self.n_steps, self.shown = max(n_batches, 1), 0, 0.0
        self.task = self.bar.add_task("", total=epochs, completed=epoch)
        self.done = epoch
        self.bar.start()

    def step(self) -> None:
        """Advance by a step, on the screen every `REFRESH` seconds."""
        self.n_steps += 1
        now = time.monotonic()
        if now - self.shown > self.REFRESH:
            self.shown = now
            # The bar counts whole epochs: a part of one moves the bar, but not the number.
            self.bar.update(self.task, completed=self.done + min(self.n_steps / self.n_batches, 0.999))

    def epoch(self, record: Record) -> None:
        self.done, self.n_steps = record["epoch"], 0
        short = [f"error {record['error']:.3g}"] if record.get("error") is not None else []
        short += [_explained(record["explained"])] if record.get("explained") is not None else []
        short.append(f"loss {record.get('valid_loss', record['loss']):.4g}")
        self.bar.update(self.task, completed=self.done, description="  ".join(short))

    def close(self) -> None:
        self.bar.stop()


class TensorBoard(Observer):
    """Observer that writes every number of an epoch as a TensorBoard scalar."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("tensorboard is not installed: pip install 'lapae[tensorboard]'") from error
        self.folder, self.writer_class = folder, SummaryWriter

    def start(self, epoch: int, epochs: int, n_batches: int) -> None:
        """Open the event file; events after `epoch` in an earlier one are discarded."""
        self.writer = self.writer_class(str(self.folder), purge_step=epoch + 1)

    def epoch(self, record: Record) -> None:
        for name, value in record.items():
            if name != "epoch" and value is not None:
                self.writer.add_scalar(name, value, record["epoch"])

    def close(self) -> None:
        self.writer.close()


def make_progress(file: TextIO) -> Observer:
    """Return a progress bar if `file` is a terminal, lines otherwise."""
    return Bar(file) if file.isatty() else Lines(file)
