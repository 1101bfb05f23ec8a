"""A full disk, at every write of a run in turn: what was good stays good, and the run goes on when there is room."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
import sys

import pytest

from lapae.errors import RunError
from lapae.runs import CHECKPOINT, MODEL, POSTERIOR, Run, read_tensor_file
from lapae.runs.files import whole_folder
from lapae.runs.outputs import csv_rows
from lapae.storage import CALIBRATION
from lapae.train.checkpoint import load_checkpoint

from .runs import assert_same, curve, train


class Disk:
    """Counts what a run does to its disk; the disk is full from operation `full_from` on."""

    def __init__(self, monkeypatch, full_from: int) -> None:
        self.n, self.full_from = 0, full_from
        for owner, name in [(os, "fsync"), (os, "replace")]:
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))
        monkeypatch.setattr(os, "open", self.creating(os.open))
        monkeypatch.setattr(os, "fdopen", self.opening(os.fdopen))
        for module in ("lapae.train.loop", "lapae.runs"):
            monkeypatch.setattr(f"{module}.open", self.opening(builtins.open), raising=False)

    def use(self) -> None:
        self.n += 1
        if self.n >= self.full_from:
            raise OSError(errno.ENOSPC, "No space left on device")

    def counted(self, function):
        def call(*args, **kwargs):
            self.use()
            return function(*args, **kwargs)

        return call

    def creating(self, function):
        def call(path, flags, *args, **kwargs):
            if flags & os.O_CREAT:
                self.use()
            return function(path, flags, *args, **kwargs)

        return call

    def opening(self, function):
        def call(*args, **kwargs):
            file = function(*args, **kwargs)
            if file.writable():
                plain = file.write

                def write(content):
                    try:
                        self.use()
                    except OSError:
                        plain(content[: len(content) // 2])  # as much as there was room for
                        raise
                    return plain(content)

                file.write = write
            return file

        return call


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return curve(tmp_path_factory.mktemp("data") / "curve.npy")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, source):
    path = tmp_path_factory.mktemp("runs") / "whole"
    train(path, source, 3)
    return path


def test_full_at_every_operation_in_turn(source, whole, tmp_path):
    """Of config, metrics, checkpoint, posterior, calibration and model no more is lost than what is being written."""
    failed, last = [], 0
    for full_from in range(1, 1000):
        path = tmp_path / str(full_from)
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, full_from)
            try:
                train(path, source, 3)
            except RunError as error:
                assert "No space left on device" in str(error)  # noqa: PT017
                failed.append(str(error).split(":")[0].split("/")[-1])
            else:
                assert disk.n < full_from
                break
        n_saved = 0
        if path.exists():
            for name in (CHECKPOINT, MODEL, POSTERIOR, CALIBRATION):
                if (path / name).exists():
                    read_tensor_file(path / name)
            checkpoint = load_checkpoint(Run(path))  # without a warning: the newest is good
            n_saved = checkpoint.state.epoch if checkpoint else 0
        assert n_saved >= last, "with more room, less was saved"
        last = n_saved
        train(path, source, 3)
        assert_same(path, whole)
    assert set(failed) >= {"config.toml", "metrics.jsonl", "metrics.json", MODEL, POSTERIOR, CALIBRATION, CHECKPOINT}
    assert_same(path, whole)


@pytest.mark.parametrize("call", ["open", "mkdir"])
def test_outputs_of_commands(call, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    writer = csv_rows(tmp_path / "x.csv", ["a"]) if call == "open" else whole_folder(tmp_path / "x")
    with pytest.raises(RunError, match=r"cannot write .*x.*: No space left on device"), writer:
        pass
    assert not list(tmp_path.iterdir())


IN_A_SMALL_DISK = """
import os, subprocess, sys, warnings
from pathlib import Path
import numpy as np
disk, source, whole = map(Path, sys.argv[1:4])
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=384k", "tmpfs", str(disk)], capture_output=True).returncode:
    sys.exit(77)
sys.path.insert(0, sys.argv[4])
from faults.runs import assert_same, train
from lapae.errors import RunError
from lapae.runs.files import npy_rows
from lapae.runs.outputs import csv_rows, write_arrays
from lapae.runs import Run
from lapae.train.checkpoint import load_checkpoint

big = np.zeros((200, 1000))
def into_npy():
    with npy_rows(disk / "x.npy", 200) as write:
        write(big)
def into_csv():
    with csv_rows(disk / "x.csv", None) as write:
        write(big.tolist())
for write in (into_npy, into_csv, lambda: write_arrays(disk / "x.npz", {"x": big})):
    try:
        write()
        raise SystemExit("there was room")
    except RunError as error:
        assert "No space left on device" in str(error), error
    assert not list(disk.iterdir()), list(disk.iterdir())

failures = 0
for left in range(8_192, 393_216, 24_576):
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        try:
            file.write(bytes(393_216))
        except OSError:
            pass
    os.truncate(ballast, 393_216 - left)
    run = disk / "run"
    try:
        train(run, source, 3)
    except RunError as error:
        assert "No space left on device" in str(error), error
        failures += 1
        if run.exists():
            load_checkpoint(Run(run))
    ballast.unlink()
print("failures", failures, file=sys.stderr)
assert failures > 2, failures
train(run, source, 3)
assert_same(run, whole)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs of its own, which is a thing of Linux")
def test_on_a_small_disk(source, whole, tmp_path):
    """A tmpfs of 384 kB in a mount namespace of its own, filled up until less and less fails."""
    disk = tmp_path / "disk"
    disk.mkdir()
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    script = [sys.executable, "-c", IN_A_SMALL_DISK, str(disk), str(source), str(whole), tests]
    done = subprocess.run(["unshare", "-rm", *script], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr.split("\n")[0]:
        pytest.skip("this system does not let a user mount a tmpfs")
    assert done.returncode == 0, done.stderr
