"""Files and folders that appear whole or not at all: a reader, or a crash at any moment, sees the old or the new.

Everything that this package writes goes through here: under a temporary name beside the place, then onto the disk, then
into place. Names are `.NAME.TOKEN.tmp`. Who writes one holds a lock on it, which the system lets go of when the process
ends, however it ends: what nobody holds was left by a killed process, and the next that writes there removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from lapae.errors import ConfigError, RunError

_STRAY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_open: set[Path] = set()
"""What this process is writing."""


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the body ends well, and is removed when it does not."""
    with _beside(path, lambda name: os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)) as temporary:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)


@contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Write a folder whole or not at all; one that is there and not empty is refused, unless it is to be replaced."""
    if not replace and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} exists and is not an empty folder: choose another")
    with _beside(path, _make_folder) as temporary:
        yield temporary
        sync_folder(temporary)
        if replace and path.exists():
            _exchange(temporary, path)
        else:
            os.rename(temporary, path)  # an empty folder gives way


def _exchange(a: Path, b: Path) -> None:
    """Exchange two folders in one step where the system can (Linux), else in two."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2") and libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2) == 0:
        return  # -100: AT_FDCWD, 2: RENAME_EXCHANGE
    aside = b.with_name(f".{b.name}.{secrets.token_hex(8)}.tmp")
    os.rename(b, aside)
    os.rename(a, b)
    os.rename(aside, a)


def check_place(path: Path) -> None:
    """RunError where no file can be written at `path`: asked before long work, whose result would be lost."""
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
    """Make a folder and those above it, where they are not there yet; `new`: FileExistsError where it is."""
    try:
        path.mkdir(parents=True, exist_ok=not new)
    except OSError as error:
        if new and isinstance(error, FileExistsError):
            raise
        reason = "a file of that name is there" if isinstance(error, FileExistsError) else error.strerror
        raise RunError(f"cannot make the folder {path}: {reason}") from error


def remove(path: Path) -> None:
    """Remove a file, where there is one."""
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
    """A function that appends arrays (B, ...), n data in all and of one type, to a .npy file on the disk.

    With plain writes and not through a memory map: a full disk is then an error and not a crash.
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
    """Return what changes when a file is written anew; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def sync_folder(path: Path) -> None:
    """fsync the folder, so that renames survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove what killed processes have left in a folder."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _STRAY.fullmatch(entry.name):
                _remove_stray(Path(entry.path))


def abandon() -> None:
    """Remove what this process is writing: it ends here and now."""
    for temporary in list(_open):
        _remove(temporary)


@contextmanager
def _beside(path: Path, create: Callable[[Path], int]) -> Iterator[Path]:
    """A new file or folder beside `path`, which the body moves there; what is left under its name is removed."""
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
    """A new file or folder beside `path` that is removed when the body ends, unless it was moved.

    The name is known before anything has it, so that a signal at any moment finds what it must remove.

    Args:
        path: the place beside which it is made.
        create: makes it under a name, and gives an open descriptor of it.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        _open.add(temporary)
        try:
            held = create(temporary)
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
    """Lock what has just been made, where the file system has locks; whether it is still there."""
    import fcntl  # here, for systems that have none

    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return is_at(descriptor, path)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that is at `path` now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _remove_stray(path: Path) -> None:
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return  # not ours to open, or gone
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    except OSError:
        pass  # somebody holds it, or there are no locks here
    finally:
        os.close(descriptor)


def _make_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY)


def _remove(path: Path) -> None:
    """Remove a file or folder of ours. One that cannot be removed is no failure: the next that writes there tries."""
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
