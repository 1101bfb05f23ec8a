"""Real jobs under torchrun: what is written, what happens when a process dies, and jobs that are started again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
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
from lapae.config import Config, TrainConfig
from lapae.errors import ConfigError
from lapae.fit import fit
from lapae.runs import HISTORY, MODEL, Run
from lapae.runs.files import passing_folder
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


def worker(launcher: int, rank: int, name: str = "RANK") -> int:
    """Process id of a process of a job."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text("utf-8").split():
        if f"\0{name}={rank}\0".encode() in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    raise AssertionError(f"no process {rank} among the children of {launcher}")


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
def temporary(tmp_path, monkeypatch) -> Path:
    """The temporary folder of the commands: torchrun leaves its own folders behind."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Where a run of one process is, and one of two that were never disturbed."""
    root = tmp_path_factory.mktemp("jobs")
    options = ["train", "digits", *QUICK, "--epochs", str(EPOCHS)]
    assert main([*options, "--no-verbose", "--out", str(root / "one")]) == 0
    first, second = on_processes(command, [*options, "--out", str(root / "two")])
    assert first[0] == second[0] == 0
    assert f"{EPOCHS} epochs done" in first[1]
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


def test_processes_of_its_own_end_together(tmp_path):
    """`--devices 2` without torchrun: the command starts two processes, and ends the other when one is killed."""
    run = tmp_path / "run"
    arguments = ["digits", *QUICK, "--devices", "2", "--epochs", "1000", "--patience", "1000", "--out", str(run)]
    with subprocess.Popen([sys.executable, *LAPAE, "train", *arguments], stderr=subprocess.PIPE, text=True) as process:
        wait_for_epoch(run, 2, process)
        os.kill(worker(process.pid, rank=1, name="LOCAL_RANK"), signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert errors.count("epoch 1/1000") == 1
    assert "lapae: process 1 of this job was ended by SIGKILL, and the others with it" in errors
    assert "Traceback" not in errors


def test_a_killed_command_takes_its_processes_with_it(tmp_path, temporary, monkeypatch):
    run = tmp_path / "run"
    arguments = ["digits", *QUICK, "--devices", "2", "--epochs", "1000", "--patience", "1000", "--out", str(run)]
    with subprocess.Popen([sys.executable, *LAPAE, "train", *arguments], stderr=subprocess.PIPE) as process:
        wait_for_epoch(run, 1, process)
        workers = [worker(process.pid, rank) for rank in (0, 1)]
        process.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the processes of the job end")
    assert [path.stat().st_mode & 0o777 for path in temporary.glob(".lapae-job.*.tmp")] == [0o700]
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    other = temporary / ".other.0123456789abcdef.tmp"  # all programs share this folder
    other.touch()
    with passing_folder("lapae-job") as own:  # the next job
        assert {*temporary.glob(".*.tmp")} == {own, other}
    assert [*temporary.glob(".*.tmp")] == [other]


def test_an_unusable_temporary_folder_is_told_in_a_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    code, _, errors = command(["train", "digits", *QUICK, "--devices", "2", "--out", str(tmp_path / "run")])
    assert code == 2
    assert errors == "lapae: cannot make a temporary folder: Not a directory (TMPDIR chooses another)\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [[], ["--batch-size", "0"]])
def test_a_job_leaves_the_process_as_it_was(options, tmp_path):
    """What its processes are told of their launcher is not for this one: it would end itself in its next training."""
    environment, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
    arguments = ["train", "digits", *QUICK, "--devices", "2", "--epochs", "1", "--out", str(tmp_path / "run")]
    code, _, errors = command([*arguments, *options])
    assert code == (2 if options else 0), errors
    assert dict(os.environ) == environment
    assert signal.getsignal(signal.SIGTERM) == handler


def machines(run: Path, port: int, nodes: tuple[int, ...] = (0, 1)) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of commands with a process each, as on two machines."""
    arguments = ["digits", *QUICK, "--num-nodes", "2", "--epochs", "1", "--json", "--out", str(run)]
    commands = [
        subprocess.Popen(
            [sys.executable, *LAPAE, "train", *arguments],
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": str(node)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in nodes
    ]
    said = []
    try:
        for machine in commands:
            out, errors = machine.communicate(timeout=PATIENCE)
            if "EADDRINUSE" in errors and len(nodes) > 1:
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


def test_machines_that_cannot_meet_say_where(tmp_path):
    with socket.create_server(("", 0)) as taken:
        ((code, _, errors),) = machines(tmp_path / "run", port := taken.getsockname()[1], nodes=(0,))
    assert code == 2
    assert f"lapae: the machines of this job cannot meet at 127.0.0.1:{port}: " in errors
    assert "address already in use" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()


def test_the_first_process_keeps_the_meeting_place_where_no_agent_does(tmp_path):
    arguments = ["train", "digits", *QUICK, "--epochs", "1", "--json", "--out", str(tmp_path / "run")]
    first, second = at_a_free_port(lambda port: on_processes(command, arguments, port=port))
    assert json.loads(first[1])["processes"] == 2
    assert second[:2] == (0, "")


def test_machines_need_a_place_to_meet(monkeypatch, capsys):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert main(["train", "digits", "--num-nodes", "2"]) == 2
    assert "set MASTER_PORT, NODE_RANK, or start the job with torchrun" in capsys.readouterr().err


def test_python_code_starts_no_processes(table):
    with pytest.raises(ConfigError, match="start a program of your own with torchrun"):
        fit(Config(train=TrainConfig(devices=2, device="cpu")), table)


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
    assert "is the work of one process and torchrun started 2" in capsys.readouterr().err


def test_a_job_that_may_be_started_again_needs_a_place(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert main(["train", "digits"]) == 2
    assert "--out says where it is" in capsys.readouterr().err


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
