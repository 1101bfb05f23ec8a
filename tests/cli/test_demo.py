"""`lapae demo`: what it prints is what its files and its run give when they are asked again."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from lapae import LaplacianAutoencoder
from lapae.cli import main
from lapae.data.deliveries import ERRORS, deliveries, with_errors, without_some


def test_deliveries_go_together_and_are_the_same_twice():
    x = deliveries(3000)
    assert x.equals(deliveries(3000))
    assert not x.equals(deliveries(3000, 1))
    assert np.corrcoef(x["distance"], x["duration"])[0, 1] > 0.5
    assert not x.loc[x["vehicle"] == "bike", "fuel"].to_numpy().any()
    assert deliveries(3000, longer=3.0)["distance"].mean() == pytest.approx(3 * x["distance"].mean(), rel=0.01)
    assert without_some(x, 0.1).isna().to_numpy().mean() == pytest.approx(0.1, abs=0.01)


def test_planted_errors_change_one_cell_each():
    x = deliveries(50)
    wrong, planted = with_errors(x)
    assert sorted(planted.values()) == sorted(column for column, _, _ in ERRORS)
    changed = {(row, column) for column in x for row in np.flatnonzero((x[column] != wrong[column]).to_numpy())}
    assert changed == set(planted.items())


def test_a_demo_prints_what_it_found_and_where_to_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--epochs", "3"]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) < 30  # a screen
    assert max(len(line) for line in printed.splitlines() if not line.startswith("Report")) < 110
    for word in ("Learn", "Unusual", "Missing", "Shift", "Report", "Next"):
        assert f"\n{word} " in "\n" + printed
    commands = [line.split("lapae ", 1)[1] for line in printed.splitlines() if " lapae " in line]
    assert [command.split()[0] for command in commands] == ["score", "impute", "explore"]
    for command in commands[:2]:
        *arguments, out = command.split()
        assert main([*arguments, str(tmp_path / out)]) == 0
        assert (tmp_path / out).exists()
    assert main(["report", "runs/demo-1", "--n-samples", "2"]) == 0  # its data are in the run


def test_what_a_demo_says_can_be_computed_again(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["demo", "--out", str(run), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found, model = printed["found"], LaplacianAutoencoder.load(run)
    new, planted = pd.read_csv(run / "new.csv"), {int(row) for row in found["planted"]}
    p = model.p_value(new)
    normal = [row for row in range(len(new)) if row not in planted]
    assert found["normal"]["flagged"] == int((p[normal] <= 0.05).sum())
    assert [row["row"] for row in found["unusual"]] == np.argsort(model.score_samples(new), kind="stable")[:5].tolist()
    for row in found["unusual"]:
        assert row["p"] == pytest.approx(p[row["row"]])
        assert row["value"] == new[row["column"]][row["row"]]
    gaps, truth = pd.read_csv(run / "gaps.csv"), deliveries(300, 2)
    names = ["distance", "duration", "packages", "weight", "fuel", "cost"]
    low, high = model.impute_interval(gaps)
    inside = ((truth[names] >= low[names]) & (truth[names] <= high[names])).to_numpy()[gaps[names].isna().to_numpy()]
    assert found["missing"]["inside"] == pytest.approx(inside.mean(), abs=1e-6)
    # and it convinces: errors are found, cells are filled better than by the median, the shift is noticed
    assert found["right"] >= 4
    assert found["normal"]["flagged"] <= 25
    assert found["missing"]["of_median"] < 0.4
    assert found["shift"]["shifted"]["width"] > 1.3 * found["shift"]["ordinary"]["width"]
    assert found["shift"]["shifted"]["flagged"] > 0.4
    assert (run / "report.html").exists()


@pytest.mark.parametrize("kind", ["images", "sensors"])
def test_other_kinds_of_data_have_a_demo_too(kind, tmp_path, capsys):
    assert main(["demo", kind, "--epochs", "5", "--out", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["found"]
    assert found["normal"]["flagged"] < 4 * found["normal"]["expected"]
    if kind == "images":
        assert found["unusual"]["inverted"] > 0.9
        assert found["missing"]["of_median"] < 1
    else:
        assert set(found["unusual"]) == {"stuck thermometer", "leak", "worn bearing"}
        assert found["unusual"]["leak"]["flagged"] > 0.5
