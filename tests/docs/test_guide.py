"""Every code block of the guide and of the README runs: a page's blocks in order, in one namespace and one folder."""

from __future__ import annotations

import shlex

import pytest
from pages import PAGES, ROOT, Block, blocks

from lapae.cli import main
from lapae.curvature import register
from lapae.export import can_export


def run(block: Block, names: dict) -> None:
    """Run a block as its reader would."""
    if block.language == "python":
        # the line numbers are those of the page, for the traceback
        exec(compile("\n" * (block.line - 1) + block.code, block.page, "exec"), names)
        return
    for command in block.commands:
        program, *arguments = shlex.split(command)
        where = f"{block.page}, line {block.line}: {command}"
        if program == "cd":
            raise AssertionError(f"{where}: blocks of a page run in one folder")
        assert program == "lapae", (
            f"{where}: not a lapae command; if it cannot be run here, "
            "write a line `<!-- not run: the reason -->` in front of the block"
        )
        try:
            code = main(arguments)
        except SystemExit as stop:  # --help
            code = stop.code
        assert code in (0, None), where


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, request):
    if page.name == "deploy.md" and not can_export():
        pytest.skip("export needs a later release of torch")
    if page.name != "README.md":
        request.getfixturevalue("short")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    with register():
        for block in blocks(page):
            if block.reason is None:
                run(block, names)


def test_what_is_not_run_is_little_and_has_a_reason(capsys):
    every = [block for page in PAGES for block in blocks(page)]
    left_out = [block for block in every if block.reason is not None]
    with capsys.disabled():
        for block in left_out:
            print(f"\nnot run: {block.page}, line {block.line}: {block.reason}", end="")
    assert not [block for block in left_out if block.language == "python"], "Python can be run: write it so"
    assert len(left_out) < len(every) / 3


def test_the_readme_starts_with_six_lines():
    first = next(block for block in blocks(ROOT / "README.md") if block.language == "python")
    assert len([line for line in first.code.splitlines() if line.strip()]) <= 6
    assert "LaplacianAutoencoder" in first.code
