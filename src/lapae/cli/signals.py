"""SIGTERM, which clusters send, and Ctrl-C: a command ends and leaves nothing half-written."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from types import FrameType

from lapae.train.torchrun import job_size


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command like Ctrl-C."""


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Make SIGTERM end the command as Ctrl-C does, so that half-written outputs are removed."""
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield  # someone else's to handle
        return
    try:
        if job_size() == 1:
            signal.signal(signal.SIGTERM, _terminate)
            yield
        else:
            with _listening():
                yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def _listening() -> Iterator[None]:
    """Handle signals in a thread if there are several processes: one that waits for another in a collective would not
    notice a signal. The thread removes what is half-written and lets the process die from the signal, as torchrun
    expects."""
    from ctypes import CDLL

    from lapae.runs.files import abandon

    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def listen() -> None:
        while number := os.read(reading, 1):
            if number[0] == signal.SIGTERM:
                abandon()
                CDLL(None).signal(signal.SIGTERM, 0)  # SIG_DFL; Python's own function is for the main thread alone
                os.kill(os.getpid(), signal.SIGTERM)
        os.close(reading)

    Thread(target=listen, daemon=True, name="lapae-signals").start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # after who listens: none is lost
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
