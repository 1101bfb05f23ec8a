"""The notebooks are code that the guide runs, with outputs, and are those of their tutorials: no Jupyter needed."""

from __future__ import annotations

import json
import re
import runpy

import pytest
from pages import PAGES, ROOT, blocks

BOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
FIELDS = {"markdown": {"cell_type", "id", "metadata", "source"}}
FIELDS["code"] = FIELDS["markdown"] | {"execution_count", "outputs"}


def cells(path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_there_are_notebooks():
    assert [path.stem for path in BOOKS] == sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_the_cells_are_blocks_that_run(path):
    """`test_guide` runs the blocks of the tutorial: the cells are those of Python, all of them, in their order."""
    page = ROOT / "docs" / "tutorials" / f"{path.stem}.md"
    assert page in PAGES
    run = [block for block in blocks(page) if block.reason is None and block.language == "python"]
    code = ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"]
    assert code == [block.code.strip("\n") for block in run]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_whole_and_holds_outputs(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in book["cells"]:
        assert set(cell) == FIELDS[cell["cell_type"]]
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]
    for cell in code:
        assert bool(cell["outputs"]) == bool(re.search(r"^ *print\(|savefig", "".join(cell["source"]), re.M)), cell[
            "id"
        ]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_that_of_its_tutorial(path):
    """`python docs/notebooks.py` writes them anew after a change."""
    made = json.loads(runpy.run_path(str(ROOT / "docs" / "notebooks.py"))["notebook"](path.stem))
    book = json.loads(path.read_text(encoding="utf-8"))
    for cell in book["cells"]:
        cell |= {"outputs": []} if "outputs" in cell else {}
    assert book == made


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path):
    text = "".join("".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "markdown")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert targets
    assert not [target for target in targets if not (path.parent / target).exists()]
