"""What the browser gets: the pages of the report and of the explorer, and the scripts and styles that they share.

shared.css, map.js, numbers.js    both pages
report.html, report.js            the report, which has everything in one file
explore.html, .css, .js, datum.js the explorer, served file by file
"""

from __future__ import annotations

from importlib.resources import files


def asset(name: str) -> str:
    """The text of a file of this folder."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
