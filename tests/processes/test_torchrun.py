"""Real jobs under torchrun: what is written, what happens when a process dies, and jobs that are started again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from narrow import sure
from ranks import PortTakenError, agent_store, at_a_free_port, environment, on_processes
from trained import weights
from waiting import PATIENCE, until

from lapae.cli import main
from lapae.runs import HISTORY, MODEL, Run
from lapae.train.checkpoint import load_checkpoint

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAPAE = ["-m", "lapae"]
QUICK = ["--hidden", "8", "--device", "cpu", "--batch-size", "101", "--hessian", "approx", "--schedule", "plateau"]
"""Without noise that belongs to data, and with a learning rate that does not depend on the number of epochs."""
EPOCHS = 40
"""So many that a job is still at work when it is killed."""


def job(*arguments: str, restarts: int = 0) -> list[str]:
    return [*TORCHRUN, "--max-restarts", str(restarts), *LAPAE, *arguments]


def assert_close(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=2e-3, atol=2e-3 * float(value.abs().max()))


def worker(torchrun: int, rank: int) -> int:
    """Process id of a process of a job."""
    for child in Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text("utf-8").split():
        if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    raise AssertionError(f"no process {rank} among the children of {torchrun}")


def wait_for_epoch(run: Path, epoch: int, process: subprocess.Popen) -> None:
    def come() -> bool:
        found = (run / HISTORY).exists() and len((run / HISTORY).read_text("utf-8").splitlines()) >= epoch
        assert found or process.poll() is None, f"the job ended with {process.returncode} before epoch {epoch}"
        return found

    until(come, f"epoch {epoch} comes")


def command(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(arguments)
    return code, out.getvalue(), errors.getvalue()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> None:
    """Have torchrun leave its folders of logs below the test's own folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Where a run of one process is, and one of two that were never disturbed."""
    root = tmp_path_factory.mktemp("jobs")
    options = ["train", "digits", *QUICK, "--epochs", str(EPOCHS)]
    assert main([*options, "--no-verbose", "--out", str(root / "one")]) == 0
    first, second = on_processes(command, [*options, "--out", str(root / "two")])
    assert first[0] == second[0] == 0
    assert f"({EPOCHS} epochs)" in first[1]
    assert first[2].count(f"epoch 1/{EPOCHS} ") == 1
    assert second[1:] == ("", "")  # one process speaks
    return root


def test_a_job_of_two_learns_what_one_process_learns(place):
    assert_close(weights(place / "one"), weights(place / "two"))


def test_a_killed_process_and_a_restart_end_at_the_same_weights(place, tmp_path):
    """torchrun ends the others and starts the job again, which continues from the last checkpoint."""
    run = tmp_path / "run"
    arguments = ["digits", *QUICK, "--epochs", str(EPOCHS), "--out", str(run)]
    with subprocess.Popen(job("train", *arguments, restarts=3), stderr=subprocess.PIPE, text=True) as process:
        wait_for_epoch(run, 3, process)
        os.kill(worker(process.pid, 1), signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert errors.count(f"epoch 1/{EPOCHS} ") == 1, errors  # not from the beginning
    for name, value in weights(place / "two").items():
        assert torch.equal(weights(run)[name], value), name
    assert len((run / HISTORY).read_text("utf-8").splitlines()) == EPOCHS


def test_a_killed_process_ends_the_job_with_its_reason(tmp_path):
    run = tmp_path / "run"
    arguments = ["digits", *QUICK, "--epochs", "1000", "--patience", "1000", "--out", str(run)]
    with subprocess.Popen(job("train", *arguments), stderr=subprocess.PIPE, text=True) as process:
        wait_for_epoch(run, 2, process)
        os.kill(worker(process.pid, 1), signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "Signal 9 (SIGKILL)" in errors
    # torchrun may end the other process between two renames: there are three names to look at
    assert sure(load_checkpoint(Run(run))).state.epoch >= 1
    assert not (run / MODEL).exists()


def machines(run: Path, port: int) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of two torchrun commands with one process each, as on two machines."""
    arguments = ["train", "digits", *QUICK, "--epochs", "1", "--json", "--out", str(run)]
    meeting = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port), "--nproc-per-node", "1"]
    commands = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *meeting, "--node-rank", str(node), *LAPAE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in (0, 1)
    ]
    said = []
    try:
        for machine in commands:
            out, errors = machine.communicate(timeout=PATIENCE)
            if "EADDRINUSE" in errors:
                raise PortTakenError
            said.append((machine.returncode, out, errors))
    finally:
        for machine in commands:
            machine.kill()
    return said


def test_machines_meet(tmp_path):
    first, second = at_a_free_port(lambda port: machines(tmp_path / "run", port))
    assert first[0] == second[0] == 0, first[2] + second[2]
    assert json.loads(first[1])["processes"] == 2
    assert second[1] == ""


def test_the_first_process_keeps_the_meeting_place_where_no_agent_does(tmp_path):
    arguments = ["train", "digits", *QUICK, "--epochs", "1", "--json", "--out", str(tmp_path / "run")]
    first, second = at_a_free_port(lambda port: on_processes(command, arguments, port=port))
    assert json.loads(first[1])["processes"] == 2
    assert second[:2] == (0, "")


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        (["--devices", "2"], "torchrun --nproc-per-node 2 -m lapae train digits --out 'my run'"),
        (["--devices=0"], "torchrun --nproc-per-node 0 -m lapae train digits --out 'my run'"),
        (["--devices"], "torchrun --nproc-per-node 1 -m lapae train digits --out 'my run'"),
        (["--devices", "2", "--num-nodes", "3"], "torchrun --nnodes 3 --nproc-per-node 2 -m lapae train digits"),
        (["--num-nodes", "3"], "torchrun --nnodes 3 --nproc-per-node 1 -m lapae train digits --out 'my run'"),
    ],
)
def test_flags_that_started_processes_say_how_torchrun_does(flags, start, capsys):
    assert main(["train", "digits", "--out", "my run", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"lapae: torchrun starts several processes, not lapae; use: {start}")


def test_a_run_goes_on_with_another_number_of_processes(place, tmp_path):
    run = tmp_path / "run"
    assert main(["train", "digits", *QUICK, "--epochs", "5", "--no-verbose", "--out", str(run)]) == 0
    for code, *_ in on_processes(command, ["train", "--resume", str(run), "--epochs", str(EPOCHS)]):
        assert code == 0
    assert_close(weights(place / "one"), weights(run))


def test_an_error_of_the_first_process_is_said_once(place):
    arguments = ["train", "digits", *QUICK, "--epochs", "1", "--out", str(place / "one")]
    first, second = on_processes(command, arguments)
    assert first[0] == second[0] == 2
    assert "lapae: process 0: " in first[2]
    assert "already holds a run" in first[2]
    assert second[1:] == ("", "")


def test_a_run_in_use_is_refused(place):
    with Run(place / "one").lock():
        first, second = on_processes(command, ["train", "--resume", str(place / "one"), "--epochs", "50"])
    assert first[0] == second[0] == 2
    assert "is in use" in first[2]
    assert second[1:] == ("", "")


def test_commands_of_one_process_say_so(place, monkeypatch, capsys):
    for name, value in environment(0, 2, 0).items():
        monkeypatch.setenv(name, value)
    assert main(["sample", str(place / "one"), "--out", "x.png"]) == 2
    assert "runs in one process, but torchrun started 2" in capsys.readouterr().err


def test_a_job_that_may_be_started_again_needs_a_place(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert main(["train", "digits"]) == 2
    assert "give its folder with --out" in capsys.readouterr().err


def test_a_job_that_was_refused_is_refused_again(place, tmp_path, monkeypatch, capsys):
    """torchrun starts it again, as it does a job whose process died: the run in --out is not for that its own."""
    store = agent_store()
    environment = {"USE_AGENT_STORE": "True", "MAX_RESTARTS": "1", "RESTART_COUNT": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    options = ["train", "digits", *QUICK, "--no-verbose", "--epochs"]
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        assert main([*options, str(EPOCHS + 1), "--out", str(place / "one")]) == 2
        assert "already holds a run" in capsys.readouterr().err
    for attempt in ("0", "1"):  # one that has begun goes on
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        assert main([*options, "1", "--out", str(tmp_path / "run")]) == 0


def test_resume_if_exists(place, tmp_path, capsys):
    run = str(tmp_path / "run")
    options = ["train", "digits", *QUICK, "--epochs", str(EPOCHS), "--no-verbose", "--out", run, "--resume-if-exists"]
    assert main([*options[:-1], "--epochs", "5"]) == 0
    for _ in range(2):  # once to go on, once to find it finished
        assert main(options) == 0
    for name, value in weights(place / "one").items():
        assert torch.equal(weights(Path(run))[name], value), name
    assert main([*options, "--batch-size", "7"]) == 2
    assert "cannot change batch_size" in capsys.readouterr().err
