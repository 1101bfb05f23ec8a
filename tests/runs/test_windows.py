"""Run folders where there is no flock: Windows, stood in for by locks on single bytes of files."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from lapae.errors import RunError
from lapae.runs import Run, locks
from lapae.runs.files import whole, whole_folder, write_whole


@pytest.fixture
def windows(monkeypatch):
    """No fcntl, folders that cannot be opened, open files that cannot be moved, and `msvcrt` with its byte locks."""
    held: dict[tuple[int, int], int] = {}
    opened, replaced = os.open, os.replace

    def locking(file: int, kind: int, n: int) -> None:
        found = os.fstat(file)
        assert n == 1
        assert os.lseek(file, 0, os.SEEK_CUR) >= found.st_size  # the content stays readable
        for (inode, descriptor), holder in list(held.items()):
            try:
                alive = os.fstat(descriptor).st_ino == inode
            except OSError:
                alive = False
            if not alive:
                del held[inode, descriptor]
            elif inode == found.st_ino and descriptor != file:
                raise OSError(errno.EACCES, f"held by {holder}")
        held[found.st_ino, file] = os.getpid()

    def open_file(path, flags, *arguments, **options):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "a folder", str(path))
        return opened(path, flags, *arguments, **options)

    def replace(source, target, **options):
        there = os.stat(source)
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.path.samestat(os.fstat(int(name)), there):
                    raise PermissionError(errno.EACCES, "open", str(source))
            except OSError as error:
                if isinstance(error, PermissionError):
                    raise
        return replaced(source, target, **options)

    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # as there: folders are removed by their names
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_LOCK=1, LK_NBLCK=2))
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "replace", replace)
    return held


def test_a_run_has_one_writer(windows, tmp_path):
    run = Run.create(tmp_path / "run", name="run")
    with run.lock():
        assert windows
        write_whole(run / "metrics.jsonl", b"{}")
        with pytest.raises(RunError, match=f"is in use: process {os.getpid()} on"), Run(run.path).lock():
            pass
    with run.lock():
        pass


def test_files_and_folders_appear_whole(windows, tmp_path):
    write_whole(tmp_path / "a.txt", b"one")
    write_whole(tmp_path / "a.txt", b"two")
    assert (tmp_path / "a.txt").read_bytes() == b"two"
    with suppress(ZeroDivisionError), whole(tmp_path / "b.txt") as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    for content in ("one", "two"):
        with whole_folder(tmp_path / "folder", replace=True) as folder:
            (folder / "x").write_text(content)
    assert (tmp_path / "folder" / "x").read_text() == "two"
    (tmp_path / "empty").mkdir()
    with whole_folder(tmp_path / "empty") as folder:
        (folder / "x").write_text("three")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "empty", "folder"]


def test_what_was_left_behind_goes_after_a_day(windows, tmp_path):
    old, young = (tmp_path / f".a.txt.{token * 16}.tmp" for token in "ab")
    for path in (old, young):
        path.write_bytes(b"half")
    before = time.time() - 2 * 24 * 3600
    os.utime(old, (before, before))
    write_whole(tmp_path / "a.txt", b"one")
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "a.txt"]
