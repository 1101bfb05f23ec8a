"""Another package adds a method with an option, and a command, through entry points; runs of either kind open."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from lapae.cli import main
from lapae.runs.toml import read_config

QUICK = ["--limit", "120", "--epochs", "1", "--device", "cpu", "--no-verbose"]


COMMANDS = """
import contextlib, io, json, sys
from lapae.cli import main
said = []
for arguments in json.loads(sys.argv[1]):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main(arguments)
        except SystemExit as stop:  # --help
            code = stop.code
    said.append([code or 0, out.getvalue(), errors.getvalue()])
print(json.dumps(said))
"""


class Said(NamedTuple):
    """What a command said."""

    code: int
    out: str
    errors: str


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Where the package of tests/plugin is installed."""
    place = tmp_path_factory.mktemp("plugin")
    source = place / "source"
    source.mkdir()
    for file in (Path(__file__).parent / "plugin").iterdir():  # a copy: building leaves files beside the source
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(place / "installed")]
    subprocess.run([*pip, *alone, str(source)], check=True, capture_output=True, text=True)
    return place / "installed"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The run that its method trains."""
    return tmp_path_factory.mktemp("runs") / "jitter"


@pytest.fixture(scope="module")
def said(installed, run) -> dict[str, Said]:
    """Commands with the package installed beside lapae, in one process: torch is imported once."""
    jitter = ["train", "digits", "--method", "jitter"]
    commands = {
        "help": ["--help"],
        "wave": ["wave", "there"],
        "help of jitter": ["train", "--method", "jitter", "--help-all"],
        "help of train": ["train", "--help-all"],
        "negative width": [*jitter, "--width", "-1"],
        "width of online": ["train", "digits", "--width", "1"],
        "train": [*jitter, "--width", "0.05", *QUICK, "--out", str(run), "--json"],
        "report": ["report", str(run), "--n-samples", "3", "--points", "50"],
    }
    paths = [str(installed), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    words = [sys.executable, "-c", COMMANDS, json.dumps([*commands.values()])]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Said(*its) for name, its in zip(commands, found, strict=True)}


def test_the_command_is_one_of_ours(said):
    assert "wave         greet from another package" in said["help"].out
    assert said["wave"] == Said(0, "hello there\n", "")


def test_the_help_shows_the_method_and_its_option(said):
    shown = said["help of jitter"].out
    assert re.search(r"jitter +autoencoder that jitters", shown)
    assert "--width" in shown
    assert "Standard deviation of every weight." in shown
    assert "--width" not in said["help of train"].out


def test_its_run_is_reported(said, run):
    assert said["train"].code == 0, said["train"].errors
    assert json.loads(said["train"].out)["method"] == "jitter"
    assert "width = 0.05" in (run / "config.toml").read_text("utf-8")
    assert said["report"].code == 0, said["report"].errors
    page = (run / "report.html").read_text("utf-8")
    assert "autoencoder that jitters" in page
    assert "width 0.05" in page


def test_its_mistakes_are_named_like_ours(said):
    assert said["negative width"].code == said["width of online"].code == 2
    assert "width = -1.0: expected a finite number above 0" in said["negative width"].errors.replace("\n", " ")
    assert "'online' has no option 'width': it belongs to jitter" in said["width of online"].errors


def test_without_the_package_its_run_says_what_is_missing(said, run, capsys):
    assert main(["report", str(run)]) == 2
    assert "unknown method 'jitter'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--method", "noisy-adam", "--hidden", "8"], "Noisy Adam"),
        (["--network", "faulty-conv", "--channels", "2", "--hidden", "4"], "faulty-conv"),
    ],
)
def test_runs_of_the_papers_own_variants_open(flags, shown, tmp_path, capsys):
    """Those of lapae_paper, which is in the same installation and uses the same entry points."""
    run = tmp_path / "run"
    assert main(["train", "digits", *flags, *QUICK, "--out", str(run)]) == 0
    assert main(["report", str(run), "--n-samples", "3", "--points", "50"]) == 0
    assert shown in (run / "report.html").read_text("utf-8")
    assert read_config(run / "config.toml").resolved() == read_config(run / "config.toml")
    capsys.readouterr()
