"""The code blocks of the guide and the README, as the tests find them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/tutorials").glob("*.md"))]
SHELL = ("console", "sh", "bash")
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block of Python or of shell commands."""

    page: str
    line: int
    language: str
    code: str
    reason: str | None
    """Why it is not run, from a comment in front of it: `<!-- not run: REASON -->`."""

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block that are commands: those after a prompt where it has some, else all."""
        lines = self.code.replace("\\\n", " ").splitlines()
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        found = prompted if prompted or self.language == "console" else lines
        return [line.split("  #")[0].strip() for line in found if line.strip() and not line.startswith("#")]


def blocks(path: Path) -> list[Block]:
    """The blocks of a page that hold code, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(path.name, text[: found.start("code")].count("\n") + 1, found["language"], found["code"], found["reason"])
        for found in BLOCK.finditer(text)
        if found["language"] == "python" or found["language"] in SHELL
    ]
