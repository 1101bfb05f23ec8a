"""What is no regular file of a bounded size in place of a file of a run: an answer in moments, and no traceback."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lapae.cli import main
from lapae.errors import ConfigError, RunError
from lapae.runs import CHECKPOINT, CONFIG, HISTORY, METRICS, MODEL, PREVIOUS, Run
from lapae.runs.results import Record, Table, load_results
from lapae.runs.texts import MOST_BYTES
from lapae.runs.toml import read_config
from lapae.storage import load_run

from .runs import curve, train

SECONDS = 60
"""Far more than any of this takes: a pipe would be waited for without end."""


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)


WAYS = {
    "pipe": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "itself": lambda path: path.symlink_to(path.name),
    "large": large,
    "brackets": lambda path: path.write_text("[" * 200_000),
}


@contextmanager
def in_time() -> Iterator[None]:
    def late(*_) -> None:
        raise TimeoutError(f"no answer in {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    train(root / "run", curve(root / "curve.npy"), 1)
    record = Record("mine", {}, {"x": 1.0}, [], 1.0, Table(("", "value"), [("x", 1.0)]))
    (root / "run" / "tasks").mkdir()
    Run(root / "run").write_json("tasks/mine.json", vars(record) | {"table": vars(record.table)})
    return root / "run"


@pytest.fixture(params=WAYS)
def put(request, finished, tmp_path):
    """A function that puts something in place of a file of a copy of the run, which it gives back."""

    def put(name: str) -> Run:
        shutil.copytree(finished, tmp_path / "run")
        (tmp_path / "run" / name).unlink()
        WAYS[request.param](tmp_path / "run" / name)
        return Run(tmp_path / "run")

    return put


def test_metrics(put):
    run = put(METRICS)
    with in_time(), pytest.warns(UserWarning, match=r"metrics\.json.*left aside"):
        assert load_run(run.path).metrics == {}


def test_history(put):
    run = put(HISTORY)
    with in_time(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run.read_history() == []
    assert all("cannot read" in str(warning.message) for warning in caught)


def test_task_results(put):
    run = put("tasks/mine.json")
    with in_time(), pytest.raises(RunError, match=r"mine\.json"):
        load_results(run)


def test_configuration(put):
    run = put(CONFIG)
    with in_time(), pytest.raises(ConfigError, match=r"config\.toml"):
        read_config(run / CONFIG)


@pytest.mark.parametrize("name", [MODEL, CHECKPOINT])
def test_tensors(name, put):
    run = put(name)
    for other in {MODEL, CHECKPOINT, PREVIOUS} - {name}:
        (run / other).unlink(missing_ok=True)
    with in_time(), pytest.raises(RunError, match=r"safetensors|no model yet"):
        load_run(run.path)


@pytest.mark.parametrize("name", [METRICS, HISTORY, CONFIG])
def test_resuming_mends_it_or_says_what_is_in_the_way(name, put, capsys):
    run = put(name)
    folder = (run / name).is_dir()
    with in_time():
        done = main(["train", "--resume", str(run.path), "--no-verbose"])
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert done == 0 or (done == 2 and folder and name in errors)
    if done == 0 and name == METRICS:
        assert run.finished
