"""Input that changes while it is read, output that cannot be written, SIGTERM: an error, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE, until

from lapae.cli import main
from lapae.data import reader as base
from lapae.model import Model

FAST = ["--n-samples", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A run on a table, and the table."""
    root = tmp_path_factory.mktemp("runs")
    write_table(root / "t.csv", 60)
    quick = ["--hidden", "8", "--epochs", "1", "--device", "cpu", "--no-verbose"]
    assert main(["train", str(root / "t.csv"), "--out", str(root / "run"), *quick]) == 0
    return root


def table(n: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, 3)).astype(np.float32)


def write_table(path: Path, n: int) -> None:
    np.savetxt(path, table(n), fmt="%.4f", delimiter=",", header="a,b,c", comments="")


def at_first_block(monkeypatch, act) -> None:
    """Do something when the first block of an input has been read, and the others have not."""
    done: list[bool] = []
    before = Model.judge

    def judge(self, x, **asked):
        if not done:
            done.append(True)
            act()
        return before(self, x, **asked)

    monkeypatch.setattr(base, "BLOCK_ROWS", 100)
    monkeypatch.setattr(Model, "judge", judge)


@pytest.mark.parametrize("suffix", ["csv", "npy"])
@pytest.mark.parametrize("how", ["cut short", "replaced", "removed"])
def test_an_input_that_changes_while_it_is_read(how, suffix, place, tmp_path, monkeypatch, capsys):
    source, out = tmp_path / f"x.{suffix}", tmp_path / "s.csv"
    if suffix == "csv":
        write_table(source, 5000)
    else:
        np.save(source, table(5000))

    def change() -> None:
        if how == "cut short":
            lines = source.read_bytes().splitlines(keepends=True)  # at the end of a row, where nothing else tells
            os.truncate(source, sum(map(len, lines[:3000])) if suffix == "csv" else 1000)
        elif how == "removed":
            source.unlink()
        else:
            write_table(source, 10) if suffix == "csv" else np.save(source, table(10))

    at_first_block(monkeypatch, change)
    assert main(["score", str(place / "run"), str(source), "-o", str(out), *FAST]) == 2
    assert str(source) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path != source] == []


@pytest.mark.parametrize("command", ["score", "embed", "impute", "sample"])
@pytest.mark.parametrize("out", ["folder.npy", "none/x.npy"])
def test_an_output_that_cannot_be_written_is_said_before_the_work(command, out, place, tmp_path, monkeypatch, capsys):
    def work(*arguments):
        raise AssertionError("the model was loaded before the output was looked at")

    (tmp_path / "folder.npy").mkdir()
    np.save(tmp_path / "x.npy", table(10))
    modules = [import_module(f"lapae.cli.{name}") for name in ("new_data", "impute", "sample")]  # before any is patched
    for module in modules:
        monkeypatch.setattr(module, "open_model", work)
    source = [] if command == "sample" else [str(tmp_path / "x.npy")]
    assert main([command, str(place / "run"), *source, "-o", str(tmp_path / out)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_sigterm_leaves_nothing_half_written(place, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1_000_000, 3), np.float32))
    command = ["score", str(place / "run"), str(tmp_path / "x.npy"), "-o", str(tmp_path / "s.csv"), "--device", "cpu"]
    with subprocess.Popen([sys.executable, "-m", "lapae", *command], stderr=subprocess.PIPE, text=True) as process:
        until(lambda: list(tmp_path.glob(".s.csv.*.tmp")) or process.poll() is not None, "it begins to write")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert errors.strip().endswith("lapae: terminated")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
