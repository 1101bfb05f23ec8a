"""Locks on open files, which the system releases when their process ends: flock on Unix, a locked byte on Windows."""

from __future__ import annotations

import os

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FAR = 2**30
"""Position of the byte that is locked on Windows, far behind the content, which others can then read."""


def on_unix() -> bool:
    """Return whether folders can be opened and locked, and open files be renamed and removed."""
    return fcntl is not None


def lock(file: int, *, wait: bool = False) -> None:
    """Lock an open file for this process.

    Args:
        file: its descriptor.
        wait: whether to wait until another process releases it.

    Raises:
        BlockingIOError: another process holds it.
        OSError: its file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    kind = msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK  # pyright: ignore[reportAttributeAccessIssue]
    os.lseek(file, FAR, os.SEEK_SET)
    try:
        msvcrt.locking(file, kind, 1)  # pyright: ignore[reportAttributeAccessIssue]
    except OSError as error:
        raise BlockingIOError(error.errno, "another process holds the lock") from error
    finally:
        os.lseek(file, 0, os.SEEK_SET)
