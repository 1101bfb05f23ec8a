"""Another package adds a method with an option, and a command, through entry points; runs of either kind open."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lapae.cli import main
from lapae.runs.toml import read_config

QUICK = ["--limit", "120", "--epochs", "1", "--device", "cpu", "--no-verbose"]


@pytest.fixture(scope="module")
def lapae(tmp_path_factory):
    """The command line with the package of tests/plugin installed beside lapae."""
    place = tmp_path_factory.mktemp("plugin")
    source = place / "source"
    source.mkdir()
    for file in (Path(__file__).parent / "plugin").iterdir():  # a copy: building leaves files beside the source
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(place / "installed")]
    subprocess.run([*pip, *alone, str(source)], check=True, capture_output=True, text=True)
    paths = [str(place / "installed"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "lapae", *arguments], env=env, capture_output=True, text=True)

    return run


def test_the_command_is_one_of_ours(lapae):
    assert "wave         greet from another package" in lapae("--help").stdout
    assert lapae("wave", "there").stdout == "hello there\n"


def test_the_help_shows_the_method_and_its_option(lapae):
    shown = lapae("train", "--method", "jitter", "--help").stdout
    assert re.search(r"jitter +autoencoder that jitters", shown)
    assert "--width" in shown
    assert "Standard deviation of every weight." in shown
    assert "--width" not in lapae("train", "--help").stdout


@pytest.fixture(scope="module")
def run(lapae, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "jitter"
    done = lapae("train", "digits", "--method", "jitter", "--width", "0.05", *QUICK, "--out", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "jitter"
    return path


def test_its_run_is_reported(lapae, run):
    assert "width = 0.05" in (run / "config.toml").read_text("utf-8")
    done = lapae("report", str(run), "--n-samples", "3", "--points", "50")
    assert done.returncode == 0, done.stderr
    page = (run / "report.html").read_text("utf-8")
    assert "autoencoder that jitters" in page
    assert "width 0.05" in page


def test_its_mistakes_are_named_like_ours(lapae):
    assert "width = -1.0: expected a finite number above 0" in lapae(
        "train", "digits", "--method", "jitter", "--width", "-1"
    ).stderr.replace("\n", " ")
    assert "'online' has no option 'width': it belongs to jitter" in lapae("train", "digits", "--width", "1").stderr


def test_without_the_package_its_run_says_what_is_missing(run, capsys):
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
