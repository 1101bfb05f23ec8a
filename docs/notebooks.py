"""Write the notebooks of docs/notebooks from the tutorials, with their outputs: python docs/notebooks.py [NAME ...]

Text becomes text, blocks of Python cells of code: what they print, and the pictures they save, are their outputs. Those
that are named are run; of the others, those whose code has changed. Blocks for a shell stay text.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import posixpath
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent
NAMES = ("anomalies", "missing_values", "images", "time_series", "pretrained")


def notebook(name: str, outputs: Iterator[list[dict]] | None = None) -> str:
    """Write the notebook of a tutorial, as JSON.

    Args:
        name: of the tutorial.
        outputs: of its cells of code, in their order; default: none.
    """
    text = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    text = re.sub(r"^Download this page as a notebook.*\n\n", "", text, flags=re.M)
    text = re.sub(r"\]\((?!\w+:)([^)#]+)", at_home, text)
    parts = re.split(r"^```python\n(.*?)^```\n", text, flags=re.M | re.S)
    cells = []
    for i, part in enumerate(parts):
        if i % 2:
            cells.append(cell(part, i) | {"execution_count": None, "outputs": next(outputs) if outputs else []})
        elif part.strip():
            cells.append(cell(part, i))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    book = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def cell(text: str, number: int) -> dict:
    """One cell, without outputs."""
    lines = text.strip("\n").splitlines(keepends=True)
    kind = "code" if number % 2 else "markdown"
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines}


def at_home(link: re.Match) -> str:
    """A link of the tutorial, as one of the notebook."""
    return "](" + posixpath.relpath(posixpath.join("tutorials", link[1]), "notebooks")


def run(name: str) -> Iterator[list[dict]]:
    """Run the cells of a tutorial in one namespace and a folder of their own: the outputs of each."""
    names: dict = {"__name__": "__main__"}
    for part in json.loads(notebook(name))["cells"]:
        if part["cell_type"] != "code":
            continue
        before, said = set(Path().glob("*.png")), io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile("".join(part["source"]), f"{name}, {part['id']}", "exec"), names)
        outputs: list[dict] = []
        if said.getvalue():
            text = said.getvalue().splitlines(keepends=True)
            outputs.append({"output_type": "stream", "name": "stdout", "text": text})
        for picture in sorted(set(Path().glob("*.png")) - before):
            shown = {"image/png": base64.b64encode(picture.read_bytes()).decode()}
            outputs.append({"output_type": "display_data", "metadata": {}, "data": shown})
        yield outputs


def kept(name: str) -> Iterator[list[dict]] | None:
    """Outputs of the notebook that is there, if the code is still that of the tutorial."""
    path = DOCS / "notebooks" / f"{name}.ipynb"
    old, new = (
        [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        for text in (path.read_text(encoding="utf-8") if path.exists() else notebook(name), notebook(name))
    )
    same = path.exists() and [cell["source"] for cell in old] == [cell["source"] for cell in new]
    return iter([cell["outputs"] for cell in old]) if same else None


def main() -> None:
    """Write all notebooks; run those that are named, or have changed."""
    for name in NAMES:
        outputs = None if name in sys.argv[1:] else kept(name)
        if outputs is None:
            home = Path.cwd()
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                outputs = iter(list(run(name)))
                os.chdir(home)
        (DOCS / "notebooks" / f"{name}.ipynb").write_text(notebook(name, outputs), encoding="utf-8")


if __name__ == "__main__":
    main()
