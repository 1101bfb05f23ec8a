"""Files and folders that are written whole or not at all: a reader, or a crash, sees either the old or the new one.

Everything that this package writes goes through here: it is written under a temporary name in the same folder, synced
to disk, and renamed. Temporary names are `.NAME.TOKEN.tmp`. The writing process holds a lock on the file, which the
system releases when the process ends, however it ends. A file without a lock was left by a killed process, and the next
process that writes there removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from lapae.errors import ConfigError, RunError
from lapae.runs.locks import lock, on_unix

_STRAY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_open: set[Path] = set()
"""Files and folders that this process is writing."""
_DAY = 24 * 3600
"""Age in seconds of a temporary file that is considered left behind, on file systems without locks."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary file next to `path`, which replaces it if the body succeeds and is removed otherwise."""
    with _beside(path, lambda name: os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)) as temporary:
        yield temporary
        with temporary.open("rb" if on_unix() else "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)


@contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Write a folder whole or not at all; an existing one that is not empty is refused, unless it is to be replaced."""
    if not replace and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} exists and is not an empty folder: choose another")
    with _beside(path, _make_folder) as temporary:
        yield temporary
        sync_folder(temporary)
        if replace and path.exists():
            _exchange(temporary, path)
        else:
            if path.exists() and not on_unix():
                path.rmdir()
            os.rename(temporary, path)  # an empty folder gives way


def _exchange(a: Path, b: Path) -> None:
    """Exchange two folders, in one step if the system can (Linux), else in two."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True) if on_unix() else None
    if (
        libc is not None
        and hasattr(libc, "renameat2")
        and libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2) == 0
    ):
        return  # -100: AT_FDCWD, 2: RENAME_EXCHANGE
    aside = b.with_name(f".{b.name}.{secrets.token_hex(8)}.tmp")
    os.rename(b, aside)
    os.rename(a, b)
    os.rename(aside, a)


def check_place(path: Path) -> None:
    """Raise RunError if no file can be written at `path`; called before long work whose result would be lost."""
    if not path.parent.is_dir():
        raise RunError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise RunError(f"cannot write {path}: it is a folder")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def make_folder(path: Path, *, new: bool = False) -> None:
    """Create a folder and its parents if they do not exist; with `new`, raise FileExistsError if it exists."""
    try:
        path.mkdir(parents=True, exist_ok=not new)
    except OSError as error:
        if new and isinstance(error, FileExistsError):
            raise
        reason = "a file of that name is there" if isinstance(error, FileExistsError) else error.strerror
        raise RunError(f"cannot make the folder {path}: {reason}") from error


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"cannot remove {path}: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of known content."""
    with whole(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def npy_rows(path: Path, n: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that appends arrays (B, ...), with n samples in all and of one type, to a .npy file.

    It uses plain writes instead of a memory map, so that a full disk is an error and not a crash.
    """
    with whole(path) as temporary, temporary.open("wb") as file:
        begun = False

        def write(part: np.ndarray) -> None:
            nonlocal begun
            if not begun:
                begun = True
                descr = np.lib.format.dtype_to_descr(part.dtype)
                header = {"descr": descr, "fortran_order": False, "shape": (n, *part.shape[1:])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(part).data)

        yield write
        if not begun:
            raise ConfigError(f"{path}: there are no data to write")


def stamp(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes when a file is rewritten; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def sync_folder(path: Path) -> None:
    """fsync the folder, so that renames survive a crash."""
    if not on_unix():
        return  # folders cannot be opened there
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove temporary files that killed processes have left in a folder."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _STRAY.fullmatch(entry.name):
                _remove_stray(Path(entry.path))


def abandon() -> None:
    """Remove everything that this process is writing, because it is about to end."""
    for temporary in list(_open):
        _remove(temporary)


@contextmanager
def _beside(path: Path, create: Callable[[Path], int]) -> Iterator[Path]:
    """Yield a new file or folder next to `path`, which the body moves there; otherwise it is removed."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise RunError(f"cannot write {path}: there is no folder {path.parent}")
    sweep(folder)
    try:
        with _for_a_time(path, create) as temporary:
            yield temporary
            sync_folder(folder)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def _for_a_time(path: Path, create: Callable[[Path], int]) -> Iterator[Path]:
    """Yield a new file or folder next to `path` that is removed when the body ends, unless it was moved.

    The name is registered before anything has it, so that a signal at any moment finds what must be removed.

    Args:
        path: the path next to which it is created.
        create: creates it under a name, and returns an open descriptor of it.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        _open.add(temporary)
        try:
            held = create(temporary)
            if not on_unix():  # what is open cannot be moved there
                os.close(held)
                yield temporary
                return
            try:
                if not _hold(held, temporary):
                    continue  # a sweep was faster
                yield temporary
                return
            finally:
                os.close(held)
        finally:
            _remove(temporary)
            _open.discard(temporary)


def _hold(descriptor: int, path: Path) -> bool:
    """Lock a new file, if the file system has locks; return whether it still exists."""
    with suppress(OSError):
        lock(descriptor, wait=True)
    return is_at(descriptor, path)


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is the one that is now at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_stray(path: Path) -> None:
    if not on_unix():
        if time.time() - path.stat().st_mtime > _DAY:
            _remove(path)
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return  # not ours to open, or gone
    try:
        lock(descriptor)
        _remove(path)
    except OSError:
        pass  # somebody holds it, or there are no locks here
    finally:
        os.close(descriptor)


def _make_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path if on_unix() else os.devnull, os.O_RDONLY)


def _remove(path: Path) -> None:
    """Remove one of our files or folders. If that fails, the next process that writes there tries again."""
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
