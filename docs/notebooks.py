"""Write the notebooks of docs/notebooks from the tutorials of the same name: python docs/notebooks.py

Text becomes text, blocks of Python become cells of code, and outputs are left empty.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

DOCS = Path(__file__).parent
NAMES = ("anomalies", "pretrained")


def notebook(name: str) -> str:
    """The notebook of a tutorial, as JSON."""
    text = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    text = re.sub(r"^Download this page as a notebook.*\n\n", "", text, flags=re.M)
    text = re.sub(r"\]\((?!\w+:)([^)#]+)", at_home, text)
    parts = re.split(r"^```python\n(.*?)^```\n", text, flags=re.M | re.S)
    cells = [cell(part.strip("\n"), i, code=i % 2 == 1) for i, part in enumerate(parts) if part.strip()]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    book = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def cell(text: str, number: int, *, code: bool) -> dict:
    """One cell."""
    made = {"cell_type": "code" if code else "markdown", "id": f"cell-{number}", "metadata": {}}
    made["source"] = text.splitlines(keepends=True)
    return made | ({"execution_count": None, "outputs": []} if code else {})


def at_home(link: re.Match) -> str:
    """A link of the tutorial, as one of the notebook."""
    return "](" + posixpath.relpath(posixpath.join("tutorials", link[1]), "notebooks")


def main() -> None:
    (DOCS / "notebooks").mkdir(exist_ok=True)
    for name in NAMES:
        (DOCS / "notebooks" / f"{name}.ipynb").write_text(notebook(name), encoding="utf-8")


if __name__ == "__main__":
    main()
