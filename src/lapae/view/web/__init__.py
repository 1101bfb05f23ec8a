"""What the browser gets: the pages of the report and of the explorer, and the scripts and styles that they share.

shared.css, map.js, numbers.js    both pages
report.html, report.js            the report, which has everything in one file
explore.html, .css, .js, datum.js the explorer, served file by file
"""

from __future__ import annotations

from importlib.resources import files

REPORT = "report.html"
"""The report, in the folder of a run."""
LINK = 'target="lapae-explorer" href="http://127.0.0.1:8765/'
"""How a link of the report into the explorer begins: to where one listens unless it is told otherwise, which knows the
browsers that have opened it by a cookie. An explorer that serves the report itself puts its own address there."""


def asset(name: str) -> str:
    """The text of a file of this folder."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
