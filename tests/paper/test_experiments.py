"""Every experiment at the quick size through the command line, in one folder: models are shared as for a user."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from lapae.cli import main
from lapae_paper.experiments import EXPERIMENTS
from lapae_paper.experiments.base import Size
from lapae_paper.experiments.workspace import key

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduced")


@pytest.fixture(autouse=True)
def _decoded_faces_stay_here(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setenv("LAPAE_CACHE", str(root / "cache"))


@pytest.fixture
def _table_as_it_was():
    kept = dict(EXPERIMENTS)
    yield
    EXPERIMENTS.clear()
    EXPERIMENTS.update(kept)  # in its order, which is that of the page


def trained(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (root / "runs").glob("*/model.safetensors")}


def reproduce(root: Path, name: str) -> dict:
    assert main(["reproduce", name, "--quick", "--device", "cpu", "--out", str(root)]) == 0
    return json.loads((root / name / "result.json").read_text("utf-8"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick(root: Path, name: str) -> None:
    before = trained(root)
    record = reproduce(root, name)
    after = trained(root)
    assert before.items() <= after.items(), "a model that another experiment had trained was trained again"
    plan = EXPERIMENTS[name].plan(Size(quick=True)).values()
    assert {key(trial) for trial in plan} <= {path.parent.name for path in after}

    assert record["quick"] is True
    assert record["tables"]
    for table in record["tables"]:
        assert table["rows"], table["title"]
        assert not any("paper" in column for column in table["columns"]), "other data than the paper's"
        for row in table["rows"]:
            assert len(row) == len(table["columns"])
            assert not any(re.search(r"\b(nan|inf)\b", text) for text in row), row
        assert any(NUMBER.search(text) for row in table["rows"] for text in row[1:]), table["title"]
    assert record["raw"]
    assert_finite(record["raw"])
    assert len(set(record["figures"])) == len(record["figures"])
    for figure in record["figures"]:
        picture = (root / name / figure).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert 2_000 < len(picture) < 200_000, f"{figure}: {len(picture)} bytes"


def assert_finite(value: object) -> None:
    """Raw numbers are plain JSON, where a number that is not finite was written as null."""
    if isinstance(value, dict):
        for item in value.values():
            assert_finite(item)
    elif isinstance(value, list):
        for item in value:
            assert_finite(item)
    else:
        assert value is not None
        assert not isinstance(value, float) or math.isfinite(value)


def test_page_has_every_experiment(root: Path) -> None:
    """The last run left the pages; each experiment is on them with its tables, notes and figures."""
    done = [name for name in EXPERIMENTS if (root / name / "result.json").exists()]
    if not done:  # this test was chosen alone
        done = ["vae-variance"]
        reproduce(root, *done)
    markdown, html = (root / "results.md").read_text("utf-8"), (root / "index.html").read_text("utf-8")
    places = [markdown.index(f"## {name}: ") for name in done]
    assert places == sorted(places), "the paper's order"
    for name in done:
        record = json.loads((root / name / "result.json").read_text("utf-8"))
        for table in record["tables"]:
            assert f"**{table['title']}**" in markdown
        for note in record["notes"]:
            assert note in markdown
        for figure in record["figures"]:
            assert f"({name}/{figure})" in markdown
        assert name in html
    assert html.count("data:image/png;base64,") == markdown.count("![")


def test_second_run_trains_nothing_and_finds_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = reproduce(root, "linearization")
    before = trained(root)
    capsys.readouterr()
    second = reproduce(root, "linearization")
    assert "to train" not in capsys.readouterr().out
    assert trained(root) == before
    assert second["tables"] == first["tables"]
    assert second["raw"] == first["raw"]


@pytest.mark.usefixtures("_table_as_it_was")
def test_all_keeps_what_is_done(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce(root, "vae-variance")
    for name in [name for name in EXPERIMENTS if name not in ("vae-variance", "linearization")]:
        del EXPERIMENTS[name]  # put back by the fixture
    reproduce(root, "linearization")
    times = {name: (root / name / "result.json").stat().st_mtime_ns for name in EXPERIMENTS}
    capsys.readouterr()
    assert main(["reproduce", "all", "--quick", "--device", "cpu", "--out", str(root)]) == 0
    assert capsys.readouterr().out.count("already done") == len(EXPERIMENTS)
    assert times == {name: (root / name / "result.json").stat().st_mtime_ns for name in EXPERIMENTS}
