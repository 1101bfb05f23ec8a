"""`lapae eval`, `lapae report` and the demo, as a user calls them."""

from __future__ import annotations

import json

import pytest

from lapae.cli import main
from lapae.tasks import TASKS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval") / "run"
    assert (
        main(
            [
                "train",
                "digits",
                "--epochs",
                "2",
                "--hidden",
                "16",
                "--no-verbose",
                "--device",
                "cpu",
                "--out",
                str(path),
            ]
        )
        == 0
    )
    return path


def test_help_lists_every_task(capsys):
    assert main(["eval", "--help"]) == 0
    printed = capsys.readouterr().out
    assert list(TASKS) == [name for name in TASKS if name in printed]
    assert all(task.title in printed for task in TASKS.values())


def test_tasks_write_results_that_the_report_shows(run, capsys):
    assert main(["eval", "ood", str(run), "--against", "digits", "digits", "--n-samples", "3", "--bootstrap", "5"]) == 0
    assert "AUROC" in capsys.readouterr().out
    assert main(["eval", "imputation", str(run), "--limit", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_data"] == 5
    for task in ("ood", "imputation"):
        kept = json.loads((run / "tasks" / f"{task}.json").read_text("utf-8"))
        assert all((run / "figures" / name).stat().st_size for name in kept["figures"])
    assert main(["report", str(run), "--n-samples", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"] < 5_000_000
    page = (run / "report.html").read_text("utf-8")
    assert all(title in page for title in ("Out-of-distribution detection", "Missing data", "imputation_modes.svg"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["eval", "nope", "RUN"], "unknown task 'nope': expected one of ood, imputation"),
        (["eval", "ood", "RUN"], "needs at least one out-of-distribution set (--against NAME)"),
        (["eval", "ood", "absent", "--against", "digits"], "there is no run at absent"),
        (["eval", "calibration", "RUN", "--n-samples", "0"], "n_samples=0: expected at least 1"),
        (["report", "absent"], "there is no run at absent"),
        (["report", "RUN", "--points", "0"], "points = 0: expected at least 1"),
    ],
)
def test_mistakes_are_one_line(run, arguments, complaint, capsys):
    assert main([str(run) if a == "RUN" else a for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert complaint in captured.err


def test_a_table_is_imputed_without_being_told_what_to_hide(tmp_path, capsys):
    rows = "\n".join(f"{i / 7:.3f},{i % 5},{(i * i) % 11}" for i in range(60))
    (tmp_path / "t.csv").write_text("a,b,c\n" + rows + "\n")
    quick = ["--epochs", "1", "--hidden", "8", "--no-verbose", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main(["train", str(tmp_path / "t.csv"), *quick]) == 0
    capsys.readouterr()
    assert main(["eval", "imputation", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mse_missing"] > 0


def test_demo_tells_the_whole_story(tmp_path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--epochs", "2", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["tasks"]) == {"ood", "imputation", "calibration"}
    assert set(printed["tasks"]["ood"]["sets"]) == {"digits 8 and 9", "inverted digits"}
    assert (out / "report.html").exists()
    assert main(["report", str(out), "--n-samples", "2"]) == 0  # its data are in the run
