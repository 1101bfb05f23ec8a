"""kill -9 at random moments, twenty times in a row: the run ends where an undisturbed one does."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from lapae.cli import main
from lapae.cli.run_folder import train_in
from lapae.errors import RunError
from lapae.runs import CHECKPOINT, CONFIG, MODEL, Run, read_tensor_file
from lapae.runs.toml import write_config

from .runs import assert_same, config, curve, epochs_of, train, train_and_die

EPOCHS = 60
KILLS = 20
EVERY = 5
"""Epochs between checkpoints: a training this short would write none before its end."""
COMMAND = [sys.executable, "-m", "lapae", "train"]


@pytest.fixture(scope="module")
def processes():
    """A server that has imported everything and forks: a process starts within milliseconds, and is a real one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lapae.cli.train", "lapae.fit"])
    return context


def test_killed_twenty_times_it_ends_at_the_same_weights(processes, tmp_path):
    source, whole = curve(tmp_path / "curve.npy"), tmp_path / "whole"
    child = processes.Process(target=train, args=(whole, source, EPOCHS, EVERY))
    child.start()
    child.join()
    assert child.exitcode == 0
    chance = random.Random(0)
    n_runs = kills = 0
    run = tmp_path / "run0"
    while kills < KILLS:  # of runs that have something to lose
        last = chance.randint(epochs_of(run), EPOCHS)  # after the last it is calibrated and saved
        how = last, chance.uniform(0, 0.02)  # within an epoch, or while it is written
        child = processes.Process(target=train_and_die, args=(run, source, EPOCHS, EVERY, *how))
        child.start()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        kills += child.exitcode != 0 and (run / CHECKPOINT).exists()
        if epochs_of(run) == EPOCHS:  # it came to its end, or nearly: another one
            train(run, source, EPOCHS, EVERY)
            assert_same(run, whole)
            n_runs += 1
            run = tmp_path / f"run{n_runs}"
    train(run, source, EPOCHS, EVERY)
    assert_same(run, whole)


def written(run: Path) -> int:
    """When the checkpoint was written; 0 where there is none, or for a moment between two renames."""
    try:
        return (run / CHECKPOINT).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@pytest.mark.slow
def test_the_command_killed_twenty_times(tmp_path):
    """The same of the command line, whose start takes seconds: killed once it has done an epoch or more."""
    options = ["--method", "vae", "--hidden", "16", "--device", "cpu", "--epochs", "400", "--patience", "400"]
    run, whole, chance = tmp_path / "run", tmp_path / "whole", random.Random(0)
    arguments = ["digits", *options, "--out", str(run)]
    for _ in range(KILLS):
        before = written(run)
        with subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and written(run) in (0, before):
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.5))
            process.kill()
        assert process.returncode == -signal.SIGKILL
        arguments = ["--resume", str(run)]
    subprocess.run([*COMMAND, *arguments, "--no-verbose"], check=True)
    subprocess.run([*COMMAND, "digits", *options, "--out", str(whole), "--no-verbose"], check=True)
    a, b = (read_tensor_file(path / MODEL)[0] for path in (run, whole))
    assert all(a[name].equal(b[name]) for name in b)


def test_second_process_on_a_run_is_refused_and_the_first_undisturbed(processes, tmp_path, capsys):
    source = curve(tmp_path / "curve.npy")
    run, whole = tmp_path / "run", tmp_path / "whole"
    train(whole, source, EPOCHS)
    first = processes.Process(target=train, args=(run, source, EPOCHS))
    first.start()
    until(lambda: (run / CHECKPOINT).exists() or not first.is_alive(), "it writes a checkpoint", every=0.001)
    os.kill(first.pid, signal.SIGSTOP)  # so that it is in the middle of training when the others come
    try:
        resume = ["--resume", str(run)]
        anew = [str(source), "--out", str(run)]
        for arguments, complaint in [(resume, "in use: process"), (anew, "already holds a run")]:
            assert main(["train", *arguments]) == 2  # this process is the second
            assert complaint in capsys.readouterr().err
    finally:
        os.kill(first.pid, signal.SIGCONT)
    first.join()
    assert first.exitcode == 0
    assert_same(run, whole)


HOLD = """
import sys, time
from pathlib import Path
from lapae.runs import Run
with Run(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.readline()
    Path(sys.argv[1], "config.toml").write_text(sys.argv[2])
"""


def test_two_that_start_at_once(tmp_path):
    """The second finds an empty folder that the first holds: it is refused, and leaves the folder to the first."""
    source, run = curve(tmp_path / "curve.npy"), tmp_path / "run"
    run.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run), write_config(config(source))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == "held\n"
        assert main(["train", str(source), "--out", str(run), "--epochs", "1"]) == 2
        assert run.is_dir()
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.wait() == 0
    assert Path(run / CONFIG).exists()


def test_a_run_that_began_while_waiting_for_the_lock_is_not_overwritten(tmp_path):
    """Both saw a free folder; the first has finished when the second gets the lock."""
    source = curve(tmp_path / "curve.npy")
    late = Run.create(tmp_path / "run")
    train(tmp_path / "run", source)
    before = (late / MODEL).read_bytes()
    with pytest.raises(RunError, match="already holds a run"):
        train_in(late, config(source, 2))
    assert (late / MODEL).read_bytes() == before
