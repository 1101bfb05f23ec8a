"""The record of the paper: page and JSON agree, and its age is told."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lapae.cli import main
from lapae.runs.texts import digest_of as digest
from lapae_paper.experiments import EXPERIMENTS
from lapae_paper.experiments.base import Size
from lapae_paper.experiments.claims import claims
from lapae_paper.experiments.record import BLOCK, commits_since, faults, filled, publish, records_of
from lapae_paper.experiments.results import tables
from lapae_paper.experiments.workspace import Workspace
from lapae_paper.tasks.ood import SCORES

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
TEXT = PAGE.read_text("utf-8")


def sections() -> dict[str, str]:
    found = {}
    for part in re.split(r"(?m)^(?=## )", TEXT):
        name = re.match(r"## ([a-z-]+):", part)
        if name:
            found[name[1]] = part
    return found


def test_page_and_results_agree() -> None:
    assert filled(TEXT, records_of(PAGE)) == TEXT, "write it with lapae reproduce --page docs/results.md"


def test_every_table_and_every_figure_that_is_shown_is_of_the_record() -> None:
    records = records_of(PAGE)
    assert list(records) == [name for name in EXPERIMENTS if name in records]
    assert set(sections()) == set(records)
    blocks = [match[1] for match in BLOCK.finditer(TEXT)]
    expected = [f"{name} {i + 1}" for name, record in records.items() for i in range(len(record["tables"]))]
    assert sorted(blocks) == sorted(["head", "claims", *expected])
    for name, part in sections().items():
        figures = re.findall(r"\]\(images/results/([^)]+)\)", part)
        assert set(figures) <= set(records[name]["figures"])
        assert all((PAGE.parent / "images" / "results" / figure).is_file() for figure in figures)


@pytest.mark.parametrize("name", records_of(PAGE))
def test_spreads_that_the_prose_quotes_are_in_the_tables(name: str) -> None:
    cells = " ".join(text for table in tables(records_of(PAGE)[name]) for row in table.rows for text in row)
    prose = re.sub(r"\s+", " ", BLOCK.sub("", sections()[name]))
    for quoted in re.findall(r"\d+(?:\.\d+)? ± \d+(?:\.\d+)?", prose):
        assert quoted in cells, f"{name}: {quoted} is in no table"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A page with its results, in a repository of its own."""
    page = tmp_path / "docs" / "results.md"
    shutil.copytree(PAGE.with_suffix(""), page.with_suffix(""))
    page.write_text(TEXT, "utf-8")
    for name in set(EXPERIMENTS) - set(records_of(PAGE)):
        record = records_of(PAGE)["vae-variance"] | {"experiment": name}
        (page.with_suffix("") / f"{name}.json").write_text(json.dumps(record), "utf-8")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path, "src/lapae/curvature/a.py", "1")
    return page


def git(folder: Path, *command: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(folder), *who, *command], check=True, capture_output=True, text=True).stdout


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", name)
    return git(folder, "rev-parse", "HEAD").strip()[:10]


def changed(page: Path, **values: object) -> None:
    for path in page.with_suffix("").glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def test_a_number_that_differs_is_found_and_mended(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy.with_suffix("") / "hessian.json"
    path.write_text(path.read_text("utf-8").replace("165.3 ± 53.3", "165.4 ± 53.3"), "utf-8")
    assert any("differs from its JSON" in fault for fault in faults(copy))
    assert main(["reproduce", "--page", str(copy)]) == 0
    assert "165.4 ± 53.3" in copy.read_text("utf-8")
    assert not any("differs" in fault for fault in faults(copy))


def test_the_age_counts_commits_to_what_decides_the_numbers(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lapae import __version__

    root = copy.parent.parent
    changed(copy, commits=[commit(root, "src/lapae/train/b.py", "1")], lapae=__version__)
    assert main(["reproduce", "--page", str(copy)]) == 0
    assert faults(copy) == []
    assert main(["reproduce", "--page", str(copy), "--check"]) == 0
    commit(root, "src/lapae/score/c.py", "1")
    assert commits_since(records_of(copy), copy.parent) == 0
    commit(root, "src/lapae/posterior/d.py", "1")
    commit(root, "src/lapae/curvature/a.py", "2")
    assert commits_since(records_of(copy), copy.parent) == 2
    assert main(["reproduce", "--page", str(copy), "--check"]) == 2
    assert "2 commits to curvature, posterior, methods, train came after the results" in capsys.readouterr().err
    changed(copy, commits=["0123456789"])
    assert commits_since(records_of(copy), copy.parent) is None


def test_claims_are_decided_by_students_t() -> None:
    """At the edge of the 95 % interval: t is 4.303 with three models."""
    found = {}
    for answer, gains in (
        ("**reproduced**", [4.0, 5.0, 6.0]),
        ("undecided", [1.0, 2.0, 3.0]),
        ("**refuted**", [-4.0, -5.0, -6.0]),
        ("undecided (one model)", [5.0]),
    ):
        rows = {"post-hoc approx": {"test -log p": gains}, "online approx": {"test -log p": [0.0] * len(gains)}}
        found[answer] = claims({"hessian": {"raw": {"rows": rows}}}).rows
        assert found[answer][0][2] == answer
    assert found["**reproduced**"][0][4:] == ("+5.0 ± 0.6", "3")
    assert {row[2] for row in found["undecided"][2:]} == {"not measured"}


def test_results_are_kept_beside_the_page(copy: Path, tmp_path: Path) -> None:
    record = json.loads((copy.with_suffix("") / "vae-variance.json").read_text("utf-8"))
    (tmp_path / "out" / "vae-variance").mkdir(parents=True)
    (tmp_path / "out" / "vae-variance" / "vae_variance.png").write_bytes(b"png")
    record["tables"][1]["rows"][2][1] = "7.77"
    record["raw"]["away_on_vae"] = 1.23456789
    (tmp_path / "out" / "vae-variance" / "faces.png").write_bytes(b"png")
    record["figures"].append("faces.png")  # the page does not show it
    publish(copy, [record], tmp_path / "out")
    assert not (copy.parent / "images" / "results" / "faces.png").exists()
    assert records_of(copy)["vae-variance"]["raw"]["away_on_vae"] == 1.23457
    assert "| VAE of figure 1 | 7.77 |" in copy.read_text("utf-8")
    assert (copy.parent / "images" / "results" / "vae_variance.png").read_bytes() == b"png"


def test_mistakes(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--check"]) == 2
    assert "--check is for a page" in capsys.readouterr().err
    assert main(["reproduce", "vae-variance", "--quick", "--page", str(copy), "--out", str(tmp_path / "q")]) == 2
    assert "the quick size is no record" in capsys.readouterr().err
    assert main(["reproduce", "--page", str(tmp_path / "other.md")]) == 2
    assert "cannot read the page" in capsys.readouterr().err
    (tmp_path / "other.md").write_text("# other")
    assert main(["reproduce", "--page", str(tmp_path / "other.md")]) == 2
    assert "holds no results" in capsys.readouterr().err
    copy.write_text(TEXT + "\n<!-- hessian 9 -->\n<!-- end -->\n", "utf-8")
    assert main(["reproduce", "--page", str(copy)]) == 2
    assert "asks for 'hessian 9'" in capsys.readouterr().err


def test_gains_of_a_single_width_decide_nothing() -> None:
    def found(widths: dict[str, float]) -> str:
        gains = {width: {"-log p": [gain, gain + 0.1], "MSE": [gain, gain]} for width, gain in widths.items()}
        rows = {row[0]: row for row in claims({"width": {"raw": {"gains": gains}}}).rows}
        return rows["gains grow with the width of the network: over post-hoc"][2]

    assert found({"512, 256": 3.0}) == "not measured"
    assert found({"64, 32": 1.0, "512, 256": 9.0}) == "**reproduced**"


def test_a_record_is_extended_by_new_measurements(tmp_path: Path) -> None:
    """Those of the record stand in for what the folder lacks; figures that need more are left as they are."""
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    page.write_text("![a](images/results/ood_roc.png)\n\n<!-- ood 1 -->\n<!-- end -->\n", "utf-8")
    auroc = dict.fromkeys(SCORES, 0.25)
    old = {
        f"paper: AE, seed {seed}": {
            "machine": "a GPU, lapae 0.3.0",
            "commit": "old",
            "date": "2026-01-01",
            "found": {"auroc": {"mc": auroc}},
        }
        for seed in (0, 1)
    }
    (tmp_path / "docs" / "results").mkdir()
    (tmp_path / "docs" / "results" / "ood.json").write_text(json.dumps({"figures": ["ood_roc.png"], "measured": old}))
    workspace = Workspace(EXPERIMENTS["ood"], Size(), tmp_path / "out")
    path = workspace.folder_of_measures / "new.json"
    path.parent.mkdir(parents=True)
    found = {"auroc": {"mc": dict.fromkeys(SCORES, 0.75)}, "scores": {}}
    new = {"name": "paper: AE, seed 1", "machine": "a GPU, lapae 0.3.0", "commit": "new", "date": "2026-02-02"}
    path.write_text(json.dumps(new | {"found": found, "digest": digest(found)}))

    assert main(["reproduce", "ood", "--kept", "--out", str(tmp_path / "out"), "--page", str(page)]) == 0
    record = records_of(page)["ood"]
    assert record["commits"] == ["new", "old"]
    assert record["raw"]["auroc"]["paper"]["AE"]["log_likelihood"] == [0.25, 0.75]
    assert record["figures"] == ["ood_roc.png"]
    assert set(record["measured"]) == set(old)
    assert "scores" not in record["measured"]["paper: AE, seed 1"]["found"]
    assert "draws_all" not in record
    assert main(["reproduce", "ood", "--kept", "--out", str(tmp_path / "none"), "--page", str(page)]) == 0
    assert records_of(page)["ood"]["raw"] == record["raw"]  # the record is enough to make itself
