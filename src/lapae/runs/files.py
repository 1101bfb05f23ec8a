"""Files and folders that appear whole or not at all: a reader, or a crash at any moment, sees the old or the new.

Everything that this package writes goes through here: under a temporary name beside the place, then onto the disk, then
into place. Names are `.NAME.….tmp`; whoever holds a folder may remove those that a killed process has left.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lapae.errors import ConfigError, RunError

TEMPORARY = ".tmp"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the body ends well, and is removed when it does not."""
    with _in_place(path) as temporary:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """The same for a folder; one that is there and not empty is left alone."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} exists and is not an empty folder: choose another")
    with _in_place(path) as temporary:
        temporary.mkdir()
        yield temporary
        if path.exists():
            path.rmdir()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that takes the place of what is at `path` when the body ends well: a reader sees the old or the new."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        temporary.mkdir()
        yield temporary
        sync_folder(temporary)
        if path.exists():
            _exchange(temporary, path)
        else:
            os.rename(temporary, path)
        sync_folder(path.absolute().parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchange(a: Path, b: Path) -> None:
    """Exchange two folders in one step where the system can (Linux), else in two."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2") and libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2) == 0:
        return  # -100: AT_FDCWD, 2: RENAME_EXCHANGE
    aside = b.with_name(f".{b.name}.{secrets.token_hex(8)}{TEMPORARY}")
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


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are not there yet."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file of that name is there" if isinstance(error, FileExistsError) else error.strerror
        raise RunError(f"cannot make the folder {path}: {reason}") from error


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
    """What changes when a file is written anew; None where there is none."""
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


@contextmanager
def _in_place(path: Path) -> Iterator[Path]:
    """A free name beside `path`; what the body creates there is moved to `path`, or removed if anything fails.

    The name is known before anything has it, so that a signal at any moment finds what it must remove.
    """
    if not path.parent.is_dir():
        raise RunError(f"cannot write {path}: there is no folder {path.parent}")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        yield temporary
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
