"""Fill in where the repository is: python requirements/release.py https://HOST/OWNER/NAME [FOLDER]

pyproject.toml and CITATION.cff carry a placeholder, and the README links to files beside it, so that it can be read in
a checkout. In what is published all links are absolute. The release runs this in a checkout before it builds.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PLACEHOLDER = "https://repository.invalid/lapae"
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)\s]+)\)")


def filled(text: str, repository: str) -> str:
    """Return a file with the placeholder replaced by the address of the repository."""
    return text.replace(PLACEHOLDER, repository)


def absolute(text: str, repository: str) -> str:
    """Return a page with links to files of the repository as addresses; those of pictures give the picture."""

    def led(link: re.Match) -> str:
        picture, words, target = link.groups()
        return f"{picture}{words}({repository}/{'raw' if picture else 'blob'}/main/{target})"

    return LINK.sub(led, text)


def main() -> None:
    """Rewrite the files of a checkout."""
    repository, folder = sys.argv[1].rstrip("/"), Path(sys.argv[2] if len(sys.argv) > 2 else ".")
    if not repository.startswith("https://"):
        raise SystemExit(f"{repository}: expected the address of the repository, https://HOST/OWNER/NAME")
    for name, change in (("pyproject.toml", filled), ("CITATION.cff", filled), ("README.md", absolute)):
        path = folder / name
        path.write_text(change(path.read_text(encoding="utf-8"), repository), encoding="utf-8")


if __name__ == "__main__":
    main()
