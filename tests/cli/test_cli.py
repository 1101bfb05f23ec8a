"""The command line: instant help, one-line errors, JSON, and a configuration that runs again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lapae import LaplacianAutoencoder
from lapae.cli import main
from lapae.cli.new_data import Rows
from lapae.cli.registry import COMMANDS
from lapae.cli.score import named_by
from lapae.cli.train import MOST_USED
from lapae.runs import CONFIG, HISTORY, METRICS, MODEL, read_tensor_file
from lapae.runs.toml import read_config

QUICK = ["--method", "ae", "--hidden", "8", "--epochs", "2", "--device", "cpu", "--no-verbose"]

HEAVY = """
import sys
from lapae.cli import main
from lapae.cli.new_data import Rows
for command in ([], *([name] for name in sys.argv[1:])):
    try:
        main([*command, "--help"])
    except SystemExit as stop:
        assert stop.code == 0, (command, stop.code)
    loaded = {"torch", "sklearn", "matplotlib", "numpy", "safetensors"} & set(sys.modules)
    assert not loaded, (command, loaded)
"""


def test_help_where_the_terminal_has_ascii_alone():
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-m", "lapae", "train", "--help"], capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    assert b"usage: lapae train" in done.stdout
    assert done.stdout.isascii()


def test_help_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", HEAVY, *COMMANDS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: lapae") == 1 + len(COMMANDS)


def test_training_imports_neither_figures_nor_export(tmp_path):
    """Seconds at every start."""
    heavy = "{'matplotlib', 'torch.onnx', 'sklearn', 'scipy', 'pandas'}"
    code = f"import sys; from lapae.cli import main; main(sys.argv[1:]); print(*({heavy} & set(sys.modules)))"
    command = ["train", "digits", "--epochs", "1", "--hidden", "8", "--no-verbose", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == [""], done.stderr + done.stdout
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_public_names_are_lazy_and_there():
    import lapae

    assert lapae.Gaussian(sigma=2.0).sigma == 2.0
    assert "LaplacianAutoencoder" in dir(lapae)
    with pytest.raises(AttributeError, match="nope"):
        lapae.nope  # noqa: B018


def test_every_command_is_explained(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert main(["--version"]) == 0
    assert main([]) == 2


def test_train_writes_a_run_that_its_own_config_repeats(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", *QUICK, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    run = tmp_path / printed["run"]
    assert printed["run"] == "runs/digits-ae-1"
    assert printed["epochs"] == 2
    assert printed["test"]["squared_error"] > 0
    assert all((run / name).exists() for name in (CONFIG, HISTORY, METRICS, MODEL))
    assert main(["train", "--config", str(run / CONFIG)]) == 0
    assert "runs/digits-ae-2" in capsys.readouterr().out
    assert read_config(tmp_path / "runs/digits-ae-2" / CONFIG) == read_config(run / CONFIG)
    first, second = (read_tensor_file(tmp_path / f"runs/digits-ae-{n}" / MODEL)[0] for n in (1, 2))
    assert all((first[name] == second[name]).all() for name in first)


def test_flags_go_on_top_of_the_file(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(
        "[model]\nhidden = [8]\nlatent_dim = 3\n[method]\nmethod = 'ae'\n[train]\nepochs = 7\nverbose = false\n"
    )
    out = tmp_path / "run"
    assert main(["train", f"--config={file}", "--epochs", "1", "--device", "cpu", "--out", str(out)]) == 0
    config = read_config(out / CONFIG)
    assert (config.model.hidden, config.model.latent_dim, config.train.epochs) == ((8,), 3, 1)
    capsys.readouterr()


def test_a_file_of_ones_own_is_kept_by_its_full_path(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("mine.npy", np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32))
    assert main(["train", "mine.npy", *QUICK]) == 0
    assert "runs/mine-ae-1" in capsys.readouterr().out
    assert read_config("runs/mine-ae-1/config.toml").data.source == str(tmp_path / "mine.npy")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nope"], "unknown command 'nope': expected one of demo, train, "),
        (["trian"], "unknown command 'trian': did you mean 'train'?"),
        (["list", "absent"], "absent: no such folder"),
        (["train", "absent.npy", *QUICK], "absent.npy: no such file"),
        (["train", "digits", *QUICK, "--network", "nope"], "unknown network 'nope'"),
        (["train", "digits", *QUICK, "--method", "nope"], "unknown method 'nope'"),
        (["train", "digits", *QUICK, "--batch-size", "0"], "batch_size = 0: expected at least 1"),
        (["train", "--config", "absent.toml"], "cannot read the configuration absent.toml"),
        (["train", "--resume", "absent"], "there is no run at absent"),
        (["train", "--resume", "."], "is not a run"),
        (["train", "--resume", ".", "--config", "x.toml"], "leave out --config"),
        (["data", "fetch"], "fetch which?"),
        (["data", "fetch", "mnits"], "did you mean 'mnist'?"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing_behind(arguments, complaint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lapae: ")
    assert captured.err.count("\n") == 1
    assert complaint in captured.err
    assert not [path for path in tmp_path.rglob("*") if path.name != "runs"]


def test_run_that_is_there_is_not_overwritten_but_resumed(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "digits", *QUICK, "--out", str(out)]) == 0
    before = (out / MODEL).read_bytes()
    assert main(["train", "digits", *QUICK, "--out", str(out)]) == 2
    assert f"already holds a run: choose another --out, or continue it with --resume {out}" in capsys.readouterr().err
    assert main(["train", "--resume", str(out), "--batch-size", "7"]) == 2
    assert "a resumed run cannot change batch_size (from 64 to 7)" in capsys.readouterr().err
    assert main(["train", "--resume", str(out)]) == 0
    assert (out / MODEL).read_bytes() == before
    assert main(["train", "--resume", str(out), "--epochs", "3"]) == 0
    assert "3 epochs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --epoch 3", "there is no option --epoch; perhaps you meant --epochs; see lapae train --help"),
        ("train --epochs x", "--epochs: expected a whole number, got 'x'; see lapae train --help"),
        ("train --hidden 3 x", "--hidden: expected whole numbers, got '3', 'x'; see lapae train --help"),
        ("train --fit blue", "--fit: expected one of border, crop, stretch, got 'blue'; see lapae train --help"),
        ("train --epochs", "--epochs: a value is missing; see lapae train --help"),
        ("train digits more", "not understood: more; see lapae train --help"),
        (
            "score run in.csv -o a.csv --rate x",
            "--false-alarm-rate: expected a number, got 'x'; see lapae score --help",
        ),
        ("score", "missing: RUN, INPUT, --out; see lapae score --help"),
    ],
)
def test_a_mistake_is_one_line(arguments, said, capsys):
    assert main(arguments.split()) == 2
    assert capsys.readouterr().err == f"lapae: {said}\n"


def test_data_lists(tmp_path, capsys):
    assert main(["data", "--data-dir", str(tmp_path)]) == 0
    assert "digits         here" in capsys.readouterr().out
    assert main(["data", "list", "--data-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mnist"]["present"] is False
    assert main(["data", "fetch", "digits"]) == 0


def test_runs_are_listed_with_how_far_they_got(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(["list"]) == 0
    assert "no runs in runs" in capsys.readouterr().out
    assert main(["train", "digits", *QUICK, "--out", "runs/deep/first"]) == 0
    LaplacianAutoencoder(method="vae", epochs=1, device="cpu").fit(np.eye(30)).save("runs/second")
    assert main(["train", "digits", *QUICK, "--out", "runs/third"]) == 0
    for file in ("metrics.json", "model.safetensors"):  # as a kill leaves it
        (tmp_path / "runs/third" / file).unlink()
    (tmp_path / "runs/fourth").mkdir()
    (tmp_path / "runs/fourth/config.toml").write_text("[data")
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    found = {row["run"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert list(found)[:2] == ["runs/deep/first", "runs/second"]
    assert (found["runs/deep/first"]["data"], found["runs/deep/first"]["state"]) == ("digits", "2 epochs")
    assert (found["runs/second"]["method"], found["runs/second"]["data"]) == ("vae", "arrays (--data FILE)")
    assert "--resume" in found["runs/third"]["state"]
    assert found["runs/fourth"]["state"] == "cannot be read"
    assert main(["list", "."]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_a_printed_configuration_trains_what_it_says(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", *QUICK, "--latent-dim", "3", "--print-config"]) == 0
    text = capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    Path("mine.toml").write_text(text)
    assert main(["train", "--config", "mine.toml", "--out", "run"]) == 0
    assert read_config("run/config.toml") == read_config("mine.toml")
    assert read_config("mine.toml").model.latent_dim == 3


def test_the_options_that_matter_come_first(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    short = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    every = capsys.readouterr().out
    assert len(MOST_USED) == 11
    for flag in MOST_USED:
        assert flag.split()[0] in short
        assert flag.split()[0] in every
    assert len(short.splitlines()) < 30
    assert short.count("\n  lapae train ") == 2
    assert "--forgetting" in every
    assert "{None}" not in every


def test_help_shows_every_command_once_under_a_heading(capsys):
    from lapae.cli import GROUPS
    from lapae.cli.registry import COMMANDS

    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("  --")]
    assert sorted(shown) == sorted(COMMANDS.visible())
    assert shown[:4] == ["demo", "data", "train", "list"]
    assert [line for line in lines if line.removesuffix(":") in GROUPS] == [f"{head}:" for head in GROUPS]


def test_a_row_is_named_by_a_column_that_tells_rows_apart():
    names = ["shop", "note", "order"]
    cells = [["7", "two\nlines", "A1"], ["7", "b", "A2"], ["7", "c", ""]]
    rows = Rows(names, cells, {})
    assert [named_by(rows, i) for i in range(3)] == ["order A1", "note b", "note c"]
    assert named_by(Rows(["shop"], [["7"], ["7"]], {}), 0) == ""


def test_training_and_scoring_say_what_came_of_it(tmp_path, monkeypatch, capsys):
    """How long, how much is explained, what is next; how many are flagged beside chance, and which row is worst."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    size = rng.lognormal(0, 0.5, 200)
    rows = [f"{i},{9 * s:.3f},{5 + 2 * s:.3f},{s + 1:.3f}" for i, s in zip(range(700, 900), size, strict=True)]
    Path("known.csv").write_text("\n".join(["id,weight,length,price", *rows[:150]]))
    rows[170] = "870,9.1,7.0,96.0"
    Path("new.csv").write_text("\n".join(["id,weight,length,price", *rows[150:]]))
    assert main(["train", "known.csv", "--out", "run"]) == 0
    said = capsys.readouterr()
    line = r"trained in \d+ s \(\d+ epochs\) · explains \d+ % \(PCA \d+ %\) · next: lapae report run"
    assert re.fullmatch(line, said.out.splitlines()[-1])
    epochs = [int(n) for n in re.findall(r"^epoch (\d+)/", said.err, re.M)]
    assert epochs[0] == 1
    assert all(n % 10 == 0 for n in epochs[1:-1])
    assert main(["score", "run", "new.csv", "--out", "scores.csv"]) == 0
    said = capsys.readouterr().out
    assert re.match(r"scores.csv: 50 rows scored, \d+ flagged at 5 % \(2 expected by chance\); ", said)
    found = re.search(r"most unusual: id 870, price 96, expected ([\d.]+)$", said.strip())
    assert found is not None
    assert 1.5 < float(found[1]) < 3
