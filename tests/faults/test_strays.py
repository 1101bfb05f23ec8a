"""Temporary files: what a killed process leaves goes with the next that writes there, a signal leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE

from lapae.cli import main
from lapae.runs.files import whole, whole_folder, write_whole

WRITING = """
import signal, sys, threading
from pathlib import Path
from lapae.cli.signals import cleaning_up
from lapae.runs.files import whole, whole_folder
place, out = Path(sys.argv[1]), sys.stdout
run = whole_folder(place / "run", replace=True)
with cleaning_up(), whole(place / "s.csv"), whole_folder(place / "images"), run as run:
    (run / "config.toml").touch()
    print("writing", flush=True)
    stop = threading.Lock()
    stop.acquire()
    stop.acquire()  # as in a collective: a signal does not end it
"""


def end_while_writing(place: Path, number: signal.Signals, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a process that is writing three things, and got a signal."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITING, str(place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert len(list(place.iterdir())) == 3
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


def write_file(place: Path) -> None:
    write_whole(place / "other", b"")


def write_folder(place: Path) -> None:
    with whole_folder(place / "other"):
        pass


def replace_folder(place: Path) -> None:
    with whole_folder(place / "other", replace=True):
        pass


@pytest.mark.parametrize("write", [write_file, write_folder, replace_folder])
def test_the_next_that_writes_there_removes_what_a_killed_process_left(write, tmp_path):
    assert end_while_writing(tmp_path, signal.SIGKILL)[0] == -signal.SIGKILL
    names = {path.name for path in tmp_path.iterdir()}
    assert {name.split(".")[1] for name in names} == {"s", "images", "run"}
    for name in (".s.csv.mine.tmp", ".x.tmp", "s.csv.0123456789abcdef.tmp"):  # none of ours
        (tmp_path / name).touch()
    with whole(tmp_path / "t.csv") as held:
        write(tmp_path)
        assert held.exists()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"other", "t.csv", ".s.csv.mine.tmp", ".x.tmp", "s.csv.0123456789abcdef.tmp"}


def test_one_of_several_processes_that_is_terminated_while_it_waits_for_another(tmp_path):
    """It leaves nothing, and dies of the signal, as torchrun expects."""
    job = {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": "2", "RANK": "0"}
    assert end_while_writing(tmp_path, signal.SIGTERM, **job) == (-signal.SIGTERM, "")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    x = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    np.save(root / "x.npy", x)
    quick = ["--hidden", "8", "--epochs", "1", "--device", "cpu", "--no-verbose"]
    assert main(["train", str(root / "x.npy"), "--out", str(root / "run"), *quick]) == 0
    return root / "run"


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a terminal: the shell has it ignored in a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_within_savez(number, code, run, tmp_path, monkeypatch, capsys):
    """Of all moments, while it closes a part of the archive: zipfile could not close the whole, and would say so."""
    part = zipfile._ZipWriteFile  # pyright: ignore[reportAttributeAccessIssue]
    close, calls = part.close, []

    def signalled(self) -> None:
        if not calls:
            calls.append(True)
            os.kill(os.getpid(), number)
        close(self)

    monkeypatch.setattr(part, "close", signalled)
    source, out = run.parent / "x.npy", tmp_path / "z.npz"
    assert main(["embed", str(run), str(source), "-o", str(out), "--device", "cpu"]) == code
    assert calls
    errors = capsys.readouterr().err
    assert errors == f"lapae: {'terminated' if code == 143 else 'interrupted'}\n"
    assert not list(tmp_path.iterdir())
