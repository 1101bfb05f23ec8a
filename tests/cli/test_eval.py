"""`lapae eval` and `lapae report`, as a user calls them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lapae.cli import main
from lapae.evaluate import TASKS


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
    """Those of the library, and one of another package."""
    assert main(["eval", "detection", str(run), "--against", "digits", "--bootstrap", "5"]) == 0
    assert "AUROC" in capsys.readouterr().out
    assert main(["eval", "ood", str(run), "--against", "digits", "digits", "--n-samples", "3", "--bootstrap", "5"]) == 0
    assert "typicality" in capsys.readouterr().out
    assert main(["eval", "imputation", str(run), "--limit", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_data"] == 5
    assert main(["eval", "coverage", str(run)]) == 0
    assert "of 180 test samples" in capsys.readouterr().out
    for task in ("detection", "ood", "imputation", "coverage"):
        kept = json.loads((run / "tasks" / f"{task}.json").read_text("utf-8"))
        assert all((run / "figures" / name).stat().st_size for name in kept["figures"])
    assert main(["report", str(run), "--n-samples", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"] < 5_000_000
    page = (run / "report.html").read_text("utf-8")
    shown = ("Detection of unusual samples", "Imputation of missing values", "Out-of-distribution", "coverage_p_values")
    assert all(title in page for title in shown)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["eval", "nope", "RUN"], "unknown task 'nope': expected one of coverage, detection, imputation"),
        (["eval", "detection", "RUN"], "which labels are unusual? Name them with --unusual; there are 0, 1, 2"),
        (["eval", "detection", "RUN", "--unusual", "12"], "there is no label '12'"),
        (["eval", "detection", "absent", "--against", "digits"], "there is no run at absent"),
        (["eval", "detection", "RUN", "--against", "nowhere.npy"], "nowhere.npy: no such file"),
        (["eval", "coverage", "RUN", "--level", "2"], "level = 2.0: expected a probability"),
        (["eval", "imputation", "RUN", "--missing", "1"], "missing = 1.0: expected a probability"),
        (["report", "absent"], "there is no run at absent"),
        (["report", "RUN", "--points", "0"], "points = 0: expected at least 1"),
    ],
)
def test_mistakes_are_one_line(run, arguments, complaint, capsys):
    assert main([str(run) if a == "RUN" else a for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert complaint in captured.err


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A run on rows of which a tenth is marked as faulty, in a column that is not learned; and the rows."""
    root = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    x = np.stack([z, 2 * z, -z, z + 1], 1) + 0.1 * rng.normal(size=(300, 4))
    faulty = np.arange(300) % 10 == 0
    x[faulty] = 4 * rng.normal(size=(30, 4))
    states = np.where(faulty, "bad", "good")
    rows = [",".join([*(f"{value:.4f}" for value in row), state]) for row, state in zip(x, states, strict=True)]
    (root / "t.csv").write_text("\n".join(["a,b,c,d,state", *rows]) + "\n")
    quick = ["--epochs", "20", "--no-verbose", "--device", "cpu", "--out", str(root / "run")]
    assert main(["train", str(root / "t.csv"), "--label-column", "state", *quick]) == 0
    return root


@pytest.mark.parametrize("data", [False, True], ids=["held out", "given"])
def test_rows_are_told_apart_by_a_column_of_labels(table, data, capsys):
    given = ["--data", str(table / "t.csv")] if data else []
    assert main(["eval", "detection", str(table / "run"), "--unusual", "bad", "--json", *given]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["split"] == ("test" if data else "validation")
    assert ("no test samples" in captured.err) == (not data)
    assert found["sets"]["bad"]["auroc"]["value"] > 0.9
    if data:
        assert (found["normal"]["n"], found["sets"]["bad"]["n"]) == (270, 30)


def test_a_label_column_is_one_of_the_file(table, capsys):
    run, file = str(table / "run"), str(table / "t.csv")
    assert main(["eval", "detection", run, "--data", file, "--label-column", "nope"]) == 2
    assert "no column 'nope' besides the features; expected one of 'state'" in capsys.readouterr().err


def test_a_table_is_imputed_by_column(table, capsys):
    assert main(["eval", "imputation", str(table / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["columns"]) == {"a", "b", "c", "d"}
    assert found["columns"]["a"]["relative"] < 1
