"""Write requirements/licences.md: what lapae needs to run, and the licences of that, as the installed packages say.

python requirements/licences.py
"""

from __future__ import annotations

import re
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any


def licence(name: str) -> str:
    """What a package says of itself, in a few words."""
    about: Any = metadata(name)  # its type has not all that it has
    found = about.get("License-Expression") or ""
    classifiers = [
        line.rpartition(":: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License")
    ]
    short = (about.get("License") or "").strip().splitlines()
    return found or ", ".join(classifiers) or (short[0][:60] if short else "see its home page")


def main() -> None:
    needed = [line for line in requires("lapae") or [] if "extra ==" not in line]
    names = sorted(re.split(r"[<>=!~ ;\[]", line)[0] for line in needed)
    rows = [f"| {name} | {licence(name)} |" for name in names]
    text = [
        "# Licences",
        "",
        "lapae is under the MIT licence. It copies no code of others; it needs these packages, each under a licence of",
        "its own, and what they need in turn. `requirements/licences.py` writes this from what installed packages say.",
        "",
        "| package | licence |",
        "|---|---|",
        *rows,
        "",
    ]
    (Path(__file__).parent / "licences.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
