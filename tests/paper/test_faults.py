"""Experiments that are stopped or killed, whose files are damaged, or that share their folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from matplotlib.figure import Figure
from waiting import until

from lapae.cli import main
from lapae.errors import RunError
from lapae.runs import METRICS, MODEL
from lapae_paper.experiments import EXPERIMENTS, Outcome, Size, Table, Workspace, experiment, find, results
from lapae_paper.experiments.trials import dense

QUICK = Size(quick=True)


def not_run(workspace: Workspace) -> Outcome:
    """What an experiment does of which a test asks for the models alone."""
    raise AssertionError("run")


@pytest.fixture
def pair():
    """Two experiments without models; the figures and raw numbers of the first are what the test says."""
    told: dict = {"figures": ("a", "b"), "raw": 1.0}
    kept = dict(EXPERIMENTS)
    EXPERIMENTS.clear()

    @experiment("first", of="nothing", about="a test", minutes=(0, 0))
    def first(workspace: Workspace) -> Outcome:
        if "error" in told:
            raise told["error"]
        figures = {name: Figure(figsize=(1, 1)) for name in told["figures"]}
        return Outcome([Table("t", ("a",), [("1",)])], figures, {"a": told["raw"]})

    @experiment("second", of="nothing", about="a test", minutes=(0, 0))
    def second(workspace: Workspace) -> Outcome:
        return Outcome([Table("t", ("a",), [("2",)])], raw={"a": 2.0})

    yield told
    EXPERIMENTS.clear()
    EXPERIMENTS.update(kept)


def reproduce(name: str, root: Path, *more: str) -> int:
    return main(["reproduce", name, "--quick", "--device", "cpu", "--out", str(root), *more])


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_an_out_that_cannot_be_a_folder(place, tmp_path, pair, capsys):
    (tmp_path / "file").write_text("")
    assert reproduce("first", tmp_path / place) == 2
    assert "cannot make the folder" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "null", '{"quick": true}', "[" * 5000])
def test_a_damaged_result_is_left_aside_and_made_again(content, tmp_path, pair, capsys):
    assert reproduce("first", tmp_path) == 0
    path = tmp_path / "first" / "result.json"
    whole = path.read_text("utf-8")
    path.write_text(content)
    assert reproduce("second", tmp_path) == 0
    assert "first/result.json is damaged and ignored" in capsys.readouterr().err
    assert "## first" not in (tmp_path / "results.md").read_text("utf-8")
    assert reproduce("all", tmp_path) == 0
    assert "second: already done" in capsys.readouterr().out
    assert json.loads(path.read_text("utf-8"))["tables"] == json.loads(whole)["tables"]
    assert "## first" in (tmp_path / "results.md").read_text("utf-8")


def test_a_result_that_names_a_file_elsewhere_is_left_aside(tmp_path, pair, capsys):
    (tmp_path / "secret.png").write_bytes(b"not for the page")
    assert reproduce("first", tmp_path) == 0
    path = tmp_path / "first" / "result.json"
    path.write_text(path.read_text("utf-8").replace('"b.png"', '"../secret.png"'))
    assert reproduce("second", tmp_path) == 0
    assert "a figure that is elsewhere" in capsys.readouterr().err
    assert 'id="first"' not in (tmp_path / "index.html").read_text("utf-8")


def test_a_result_without_its_picture_is_left_aside(tmp_path, pair, capsys):
    assert reproduce("first", tmp_path) == 0
    (tmp_path / "first" / "b.png").unlink()
    assert reproduce("second", tmp_path) == 0
    assert "there is no b.png beside it: run first again" in capsys.readouterr().err


def test_killed_between_the_pictures_and_the_result_the_old_result_has_its_pictures(tmp_path, pair, monkeypatch):
    assert reproduce("first", tmp_path) == 0
    pair["figures"] = ("b", "c")
    plain = results.write_whole

    def killed(path, content):
        if path.name == results.RESULT:
            raise KeyboardInterrupt
        plain(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(results, "write_whole", killed)
        assert reproduce("first", tmp_path) == 130
    assert reproduce("second", tmp_path) == 0
    assert "![a.png](first/a.png)" in (tmp_path / "results.md").read_text("utf-8")
    assert reproduce("first", tmp_path) == 0
    assert {path.name for path in (tmp_path / "first").glob("*.png")} == {"b.png", "c.png"}


def test_an_experiment_that_cannot_be_measured_leaves_the_others_alone(tmp_path, pair, capsys):
    pair["error"] = RunError("what it needs is not there")
    assert reproduce("all", tmp_path) == 2
    assert "not done: first (what it needs is not there)" in capsys.readouterr().err
    assert "## second" in (tmp_path / "results.md").read_text("utf-8")


def test_numbers_that_are_none_are_printed_as_json(tmp_path, pair, capsys):
    pair["raw"] = float("nan")
    assert reproduce("first", tmp_path, "--json") == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed["experiments"][0]["raw"] == {"a": None}


@pytest.mark.parametrize("whose", ["fitted", "start"])
def test_a_trained_model_that_is_damaged_is_made_anew(whose, tmp_path, pair):
    fitted = dense(QUICK, "posthoc")
    experiment("third", of="nothing", about="a test", minutes=(0, 0), plan=lambda size: {"it": fitted})(not_run)
    whole = Workspace(find("third"), QUICK, tmp_path, device="cpu").model("it").method.state_dict()
    workspace = Workspace(find("third"), QUICK, tmp_path, device="cpu")
    assert fitted.start is not None
    if whose == "start":  # read where the posterior is fitted, which is to be done again
        (workspace.folder(fitted) / METRICS).unlink()
    damaged = workspace.folder(fitted if whose == "fitted" else fitted.start) / MODEL
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.warns(UserWarning, match=rf"{damaged.parent.name}.*damaged.*made again"):
        found = workspace.model("it").method.state_dict()
    assert all((found[name] == whole[name]).all() for name in whole)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-3],
        lambda text: "{}",
        lambda text: "null",
        lambda text: text.replace("1.25", "9.25"),
        lambda text: text.replace(" CPU", " GPU"),
        lambda text: "[" * 5000,
        lambda text: text,
    ],
)
def test_what_was_measured_counts_where_it_is_whole_and_of_this_machine(damage, tmp_path, pair):
    one = dense(QUICK, "ae")
    asked: list[object] = []

    def measure(workspace: Workspace, name: str, model: object) -> dict[str, float]:
        asked.append(model)
        return {"number": 1.25}

    about = {"of": "nothing", "about": "a test", "minutes": (0, 0), "measure": measure}
    experiment("third", plan=lambda size: {"it": one}, **about)(not_run)
    workspace = Workspace(find("third"), QUICK, tmp_path, device="cpu")
    workspace._models = {"it": None}  # type: ignore[dict-item]
    assert workspace.measured("it") == {"number": 1.25}
    (path,) = workspace.folder_of_measures.iterdir()
    before = path.read_text("utf-8")
    path.write_text(damage(before))
    same = path.read_text("utf-8") == before
    assert workspace.measured("it") == {"number": 1.25}
    assert len(asked) == (1 if same else 2)


def test_what_cannot_be_kept_is_measured_all_the_same(tmp_path, pair, monkeypatch):
    """Another command on the same folder measures again, and removes what was measured."""
    one = dense(QUICK, "ae")
    about = {"of": "nothing", "about": "a test", "minutes": (0, 0), "measure": lambda workspace, name, model: [1.0]}
    experiment("third", plan=lambda size: {"it": one}, **about)(not_run)
    workspace = Workspace(find("third"), QUICK, tmp_path, device="cpu")
    workspace._models = {"it": None}  # type: ignore[dict-item]
    monkeypatch.setattr("lapae_paper.experiments.workspace.make_folder", lambda path: None)
    with pytest.warns(UserWarning, match="there is no folder .*; measured again if this is interrupted"):
        assert workspace.measured("it") == [1.0]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_processes_that_train_end_with_the_one_that_started_them(tmp_path):
    """kill -9 leaves nobody behind: not in the middle of a training, and not waiting for the next."""
    command = [sys.executable, "-m", "lapae", "reproduce", "teaser", "--quick", "--jobs", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: list(tmp_path.glob("runs/*/config.toml")), "a training begins")
        children = [
            int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("utf-8").split()
        ]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert len(children) >= 2
    try:
        until(lambda: not any(map(running, children)), "those that it started end")
    finally:
        for pid in filter(running, children):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(CHROMIUM is None, reason="no browser here")
def test_the_page_fits_a_telephone(tmp_path):
    for name in EXPERIMENTS:
        long = Table(f"what {name} found, " + "at length, " * 20, ("a column",) * 9, [("a number",) * 9])
        results.save(Workspace(find(name), QUICK, tmp_path, device="cpu"), Outcome([long]), 0.0)
    results.write_pages(tmp_path)
    with Browser(tmp_path / "browser") as browser:
        browser.open(f"file://{tmp_path}/index.html")
        browser.screenshot(tmp_path / "page.png", width=390)
        assert browser.run("document.documentElement.scrollWidth") == 390
        wide = "[...document.querySelectorAll('h3')].filter((e) => e.scrollWidth > e.clientWidth).length"
        assert browser.run(wide) == 0
        assert browser.problems() == []
