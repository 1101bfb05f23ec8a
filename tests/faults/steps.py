"""What a process does to its disk, step by step, with a fault at one of them: it fails, or the process is killed."""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lapae.runs import files

FAULTS = ("fail", "kill")
REMOVING = ("unlink", "rmdir")


class Steps:
    """Counts the calls that create, write, rename, sync, close or remove something under `root`.

    Args:
        root: the folder that counts.
        at: the step, from 1, at which the fault comes; 0 for none.
        fault: "fail", with an OSError (a full disk; half of a write is done), or "kill", with SIGKILL.
    """

    def __init__(self, root: Path, at: int = 0, fault: str = "fail") -> None:
        self.root, self.at, self.fault = os.path.realpath(root), at, fault
        self.names: list[str] = []

    def step(self, name: str, half: Callable[[], Any] = lambda: None) -> None:
        self.names.append(name)
        if len(self.names) != self.at:
            return
        half()
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, "No space left on device")

    def within(self, path: Any, dir_fd: int | None = None) -> bool:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fsdecode(path))
        return os.path.abspath(os.fsdecode(path)).startswith(self.root)

    def begin(self) -> None:
        """From here on, for the life of the process."""
        for name in ("replace", "rename", "mkdir", "rmdir", "unlink", "fsync", "write", "truncate"):
            setattr(os, name, self._counted(name, getattr(os, name)))
        os.remove = os.unlink
        os.open = self._creating(os.open)
        builtins.open = io.open = self._opening(io.open)
        files._exchange = self._counted("exchange", files._exchange)

    def _counted(self, name: str, function: Callable) -> Callable:
        def call(path, *arguments, **options):
            if self.within(path, options.get("dir_fd")):
                self.step(name)
            return function(path, *arguments, **options)

        return call

    def _creating(self, function: Callable) -> Callable:
        def call(path, flags, *arguments, **options):
            if flags & os.O_CREAT and self.within(path, options.get("dir_fd")):
                self.step("create")
            return function(path, flags, *arguments, **options)

        return call

    def _opening(self, function: Callable) -> Callable:
        def call(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
            if not set(mode) & set("wax+") or not self.within(file):
                return function(file, mode, buffering, encoding, errors, newline, closefd, opener)
            self.step("create")
            raw = File(self, file, "".join(c for c in mode if c not in "bt"), closefd, opener)
            held = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return held if "b" in mode else io.TextIOWrapper(held, encoding, errors, newline)

        return call


class File(io.FileIO):
    """An open file whose writes and whose end are steps."""

    def __init__(self, steps: Steps, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps = steps

    def write(self, content: Any) -> int:
        self.steps.step("write", lambda: super(File, self).write(memoryview(content)[: len(content) // 2]))
        return super().write(content)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.steps.step("close")
